"""What a site writes can be read by its own user alone, and a state that was damaged is not used."""

from dataclasses import replace
from random import Random

import pytest

from fedbeyond.experiment import runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment
from fedbeyond.flower.deploy import folder as folders
from fedbeyond.flower.deploy import keys, operations, processes
from fedbeyond.flower.failures import LOG
from fedbeyond.flower.messages import ASK
from support.grids import Nodes
from support.modes import mode, readable_for_others, umask

flower.PAUSE = 0.0
SITES = ("cartoon", "painting", "photo")


@pytest.fixture
def config(small):
    return Config(method="scaffold+dp", train=Train(rounds=2, batch_size=8, batchnorm="average"), **small)


def federation(folder, answer=None):
    app = flower.client_app(answer)
    own = {"data": "styles(share=0.05)", "secret": ""}
    return Nodes({place: (app, own | {"site": site, "folder": str(folder / site)}) for place, site in enumerate(SITES)})


def run(config, grid, home):
    transport = flower.FlowerTransport(grid, 5.0)
    return list(runner.run(enrolment.prepare(config, transport, SITES, home=home), home))


@pytest.mark.parametrize("batchnorm", ["average", "reestimate"])
def test_only_a_sites_own_user_can_read_what_it_stores_whatever_the_umask_is(config, batchnorm, tmp_path):
    seen, sites = [], tmp_path / "sites"

    def answer(context, message):
        reply = flower.at_site(context, message)
        seen.extend(sites.rglob("*.*"))
        assert not any(readable_for_others(folder) for folder in sites.iterdir())
        return reply

    config = replace(config, train=replace(config.train, batchnorm=batchnorm))
    config = replace(config, method="scaffold" if batchnorm == "reestimate" else config.method)
    with umask(0):
        run(config, federation(sites, answer), tmp_path / "run")
    wanted = {".jsonl", ".safetensors", ".evaluated" if batchnorm == "reestimate" else ".head"}
    assert {path.suffix for path in seen} >= wanted


def test_a_state_that_others_could_read_is_restricted(config, tmp_path):
    grid = federation(tmp_path / "sites")
    run(replace(config, train=replace(config.train, rounds=1)), grid, tmp_path / "first")
    (folder, log) = (tmp_path / "sites" / "photo", tmp_path / "sites" / "photo" / "audit.jsonl")
    folder.chmod(0o755), log.chmod(0o644)
    run(config, grid, tmp_path / "second")
    assert (mode(folder), mode(log)) == (0o700, 0o600)


def test_a_sites_settings_logs_and_processes_are_private(tmp_path):
    federation = folders.FederationConfig("127.0.0.1:9", ("east",), bind="127.0.0.1:9")
    with umask(0):
        folders.init(tmp_path / "fed", federation)
        bundle = tmp_path / "fed" / "sites" / "east"
        keys.enrol(bundle)
        (bundle / "state").mkdir(mode=0o755)
        operations.node_command(bundle, 9000)
        command = ["sh", "-c", f"cd '{bundle}' && mkdir made && echo x > made/file && echo logged"]
        with processes.started(command, bundle / "flower", bundle / "site.log", 0o077) as it:
            it.wait(60)
    assert not readable_for_others(bundle / "state") and not readable_for_others(bundle / "made")
    assert {mode(bundle / name) for name in ("flower", "state")} == {0o700}
    assert {mode(bundle / name) for name in ("site.log", "key", "secret", "state/node.toml")} == {0o600}


def test_forty_of_forty_flipped_bits_of_a_private_state_are_detected(config, tmp_path):
    """The site does not use the state; it is absent, says so, and its log says which file and what to do."""
    grid = federation(tmp_path / "sites")
    run(config, grid, tmp_path / "run")
    folder = tmp_path / "sites" / "photo"
    (state,) = folder.glob("*.safetensors")
    before, chance = state.read_bytes(), Random(0)
    (asked,) = [message for message in grid.heard if is_last(message)]
    for _ in range(40):
        bit, content = chance.randrange(8 * len(before)), bytearray(before)
        content[bit // 8] ^= 1 << bit % 8
        state.write_bytes(content)
        answer = flower.from_records(grid.apps[2][0](asked, context(grid)).content)
        assert answer.notes["reason"].startswith("StorageError at the site: see its errors.log, entry ")
        assert state.read_bytes() == content
    log = (folder / LOG).read_text()
    assert log.count(f"StorageError: {state} ") == 40 and log.count("restore it from a backup; without one") == 40
    state.write_bytes(before)
    assert flower.from_records(grid.apps[2][0](asked, context(grid)).content).subject == "reply"


def is_last(message):
    """Whether it is the last request to train that photo was sent."""
    sent = flower.from_records(message.content).notes
    return (message.metadata.message_type, sent.get("site"), sent.get("round")) == (flower.TYPES[ASK], "photo", 1)


def context(grid):
    return flower.Context(7, 2, grid.apps[2][1], flower.RecordDict(), {})
