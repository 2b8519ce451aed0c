"""A run tried as a federation on this machine alone gives what `fedbeyond run` gives, and leaves no process behind."""

import json
import signal
from dataclasses import replace

import pytest
from safetensors.torch import save_file

from fedbeyond.experiment import run_folder
from fedbeyond.experiment.build import assemble
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
data = "{write_images(tmp_path / "data").replace(")", ", groups=who)")}"
network = "convnet(width=4)"
train = {{rounds = 1, batch_size = 8, batchnorm = "average", disjoint = "groups"}}
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


def test_a_frozen_network_reaches_sites_once_and_the_run_is_that_of_the_simulator(path, tmp_path):
    """Its weights are a file of the server; heads are trained on outputs that each site computes once."""
    weights = tmp_path / "weights.safetensors"
    plain = replace(load(path), network="mobilenet_v2", seed=9)
    state = assemble(plain, ("0", "1"), (3, 8, 8), 2).nets["model"].body.state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, weights)
    text = (
        path.read_text()
        .replace("feddag(width=2, warmup=0)", "scaffold")
        .replace("rounds = 1", 'rounds = 2, part = "head"')
    )
    path.write_text(text.replace("convnet(width=4)", f"mobilenet_v2(weights='{weights}')"))
    folder = tmp_path / "federation"
    fedbeyond("local-federation", path, "--folder", folder, "--out", tmp_path / "tried")
    assert remaining(folder) == {}
    fedbeyond("run", path, "--out", tmp_path / "simulated")
    got, want = (run_folder.path(tmp_path / out, load(path)) for out in ("tried", "simulated"))
    for file in ("results.jsonl", "best.safetensors", "config.json"):
        assert (got / file).read_bytes() == (want / file).read_bytes(), file
    for name in (*SITES, GUEST):
        audit = (folder / "sites" / name / "state" / "audit.jsonl").read_text().splitlines()
        received = [line["bytes"] for line in map(json.loads, audit) if line["direction"] == "in"]
        assert sum(size > 8_000_000 for size in received) == 1  # the body of the network
        assert sum(size > 100_000 for size in received) == 1
