"""A run tried as a federation on this machine alone gives what `fedbeyond run` gives, and leaves no process behind."""

import signal

import numpy as np
import pytest

from commands import PATIENCE, fedbeyond, going, left, until
from fedbeyond import experiment
from fedbeyond.config import load

pytestmark = pytest.mark.loopback
METHODS = {"fedsb+ga": "fedsb(budget=2)+ga", "feddag": "feddag(width=2, warmup=0)"}  # of one phase and of two


@pytest.fixture
def asked(tmp_path):
    """Runs of one round on a few images of four domains, one of them unseen: by method, the file of each."""
    rng = np.random.default_rng(0)
    for name in ("east", "north", "south", "west"):
        images = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
        (tmp_path / "data").mkdir(exist_ok=True)
        np.savez(tmp_path / "data" / f"{name}.npz", x=images, y=np.arange(40) % 2)
    paths = {}
    for name, method in METHODS.items():
        paths[name] = tmp_path / f"{name}.toml"
        paths[name].write_text(
            f"""method = "{method}"
target = "west"
data = "npz(root='{tmp_path / "data"}')"
network = "convnet(width=4)"
train = {{rounds = 1, batch_size = 8}}
"""
        )
    return paths


def test_runs_tried_as_a_federation_and_stopped_and_tried_again_are_those_of_the_simulator(asked, tmp_path):
    folder, log = tmp_path / "federation", tmp_path / "said.txt"
    words = {
        name: ("local-federation", path, "--folder", folder, "--out", tmp_path / "tried")
        for name, path in asked.items()
    }
    with going(*words["fedsb+ga"], log=log) as process:
        until(lambda: list(folder.glob("sites/*/state/audit.jsonl")), process)  # sites are at work
        assert len(left(folder)) > 6
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 130
    assert left(folder) == {}
    for name, path in asked.items():
        fedbeyond(*words[name], seconds=2 * PATIENCE)
        assert left(folder) == {}
        fedbeyond("run", path, "--out", tmp_path / "simulated")
        got, want = (experiment.place(tmp_path / out, load(path)) for out in ("tried", "simulated"))
        for file in ("results.jsonl", "best.safetensors", "config.json"):
            assert (got / file).read_bytes() == (want / file).read_bytes(), file
        (line,) = experiment.lines(got)
        assert "west" in line["scores"] and set(line["left"]) == {"east", "north", "south"}
