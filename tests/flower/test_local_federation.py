"""A run tried as a federation on this machine alone gives what `fedbeyond run` gives, and leaves no process behind."""

import signal

import pytest

from fedbeyond.experiment import run_folder
from fedbeyond.experiment.config import load
from support.commands import PATIENCE, fedbeyond, going, left, remaining, until
from support.federations import GUEST, SITES, write_images

pytestmark = [pytest.mark.loopback, pytest.mark.slow]  # it starts a federation of its own, twice


@pytest.fixture
def path(tmp_path):
    """The file of a run of one round on a few images of three domains, one of them unseen: every site takes seconds."""
    path = tmp_path / "run.toml"
    path.write_text(
        f"""method = "feddag(width=2, warmup=0)"  # two phases a round
target = "{GUEST}"
data = "{write_images(tmp_path / "data")}"
network = "convnet(width=4)"
train = {{rounds = 1, batch_size = 8, batchnorm = "average"}}
"""
    )
    return path


def test_a_run_tried_as_a_federation_and_stopped_and_tried_again_is_that_of_the_simulator(path, tmp_path):
    folder, log = tmp_path / "federation", tmp_path / "said.txt"
    words = ("local-federation", path, "--folder", folder, "--out", tmp_path / "tried")
    with going(*words, log=log) as process:
        until(lambda: list(folder.glob("sites/*/state/audit.jsonl")), process)  # sites are at work
        assert len(left(folder)) > 6
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 130
    assert remaining(folder) == {}
    with going(*words, log=log) as process:
        assert process.wait(2 * PATIENCE) == 0, log.read_text()
    assert remaining(folder) == {}
    fedbeyond("run", path, "--out", tmp_path / "simulated")
    got, want = (run_folder.path(tmp_path / out, load(path)) for out in ("tried", "simulated"))
    for file in ("results.jsonl", "best.safetensors", "config.json"):
        assert (got / file).read_bytes() == (want / file).read_bytes(), file
    (line,) = run_folder.lines(got)
    assert GUEST in line["scores"] and set(line["bytes_up"]) == set(SITES)
