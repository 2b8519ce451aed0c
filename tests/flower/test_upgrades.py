"""Two versions of messages: nothing is computed while they meet, and a run is resumed after all are upgraded."""

from contextlib import contextmanager

import pytest

from fedbeyond import WIRE
from fedbeyond.errors import FederationError
from fedbeyond.experiment import runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment, node
from support.grids import Nodes

flower.PAUSE = 0.0
SITES = ("cartoon", "painting", "photo")


@pytest.fixture
def config(small):
    return Config(method="scaffold", train=Train(rounds=2, batch_size=8, batchnorm="average"), **small)


@pytest.fixture
def upgraded(monkeypatch):
    """A context in which sides of a federation have the next version of messages."""

    @contextmanager
    def next_version(*sides):
        with monkeypatch.context() as patch:
            for side in sides:
                patch.setattr(side, "WIRE", WIRE + 1)
            yield

    return next_version


def federation(folder):
    app, own = flower.client_app(), {"data": "styles(share=0.05)", "secret": ""}
    return Nodes({place: (app, own | {"site": site, "folder": str(folder / site)}) for place, site in enumerate(SITES)})


def started(config, grid, home):
    return runner.run(enrolment.prepare(config, flower.FlowerTransport(grid, 1.0), SITES, home=home), home)


@pytest.mark.parametrize("newer", ["server", "sites"])
def test_a_run_does_not_begin_while_versions_differ_and_both_sides_say_which(config, newer, upgraded, tmp_path):
    side, server, site = (enrolment, WIRE + 1, WIRE) if newer == "server" else (node, WIRE, WIRE + 1)
    with (
        upgraded(side),
        pytest.raises(
            FederationError,
            match=rf"photo: FederationError: the server has wire version {server} .*, this site {site} ",
        ),
    ):
        started(config, federation(tmp_path / "sites"), tmp_path / "run")
    assert not list(tmp_path.rglob("*.safetensors"))
    assert f"this site {site} " in (tmp_path / "sites" / "photo" / "errors.log").read_text()


def test_a_run_that_was_stopped_is_resumed_with_the_same_bits_after_all_are_upgraded(config, upgraded, tmp_path):
    grid = federation(tmp_path / "sites")
    lines = started(config, grid, tmp_path / "run")
    next(lines)
    lines.close()
    with upgraded(enrolment), pytest.raises(FederationError, match="only 0 of 3 sites"):
        list(started(config, grid, tmp_path / "run"))
    with upgraded(enrolment, node):
        assert len(list(started(config, grid, tmp_path / "run"))) == 1
    list(started(config, federation(tmp_path / "others"), tmp_path / "whole"))
    for name in ("checkpoint.safetensors", "best.safetensors", "results.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
