"""A real federation on 127.0.0.1, with TLS and node keys: a Flower SuperLink and three SuperNodes, started once.

Every process is ended by its number; every wait has an end.
"""

import json
import ssl
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from fedbeyond import experiment, keys, operators, trial
from fedbeyond.config import Config, Train
from fedbeyond.operators import Charter
from fedbeyond.preflight import preflight

SITES = ("cartoon", "painting", "photo")
pytestmark = pytest.mark.loopback


class Running(NamedTuple):
    """A federation that is up, and ports for more processes."""

    folder: object
    ports: list


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder, (server, *ports) = tmp_path_factory.mktemp("loopback") / "federation", trial.free_ports(6)
    own = {name: {"data": "styles(share=0.05)", "domain": name} for name in SITES}
    own["spy"] = {"data": "styles(share=0.05)", "domain": "sketch"}
    address = f"127.0.0.1:{server}"
    operators.init(folder, Charter(address, (*SITES, "spy"), (), address, deadline=100), own)
    (folder / operators.CHARTER).unlink()  # the spy has a key, and is none of the federation's sites
    keys.public(
        folder / operators.CHARTER, operators.toml(Charter(address, SITES, (), address, 100)._asdict()).encode()
    )
    with trial.serving(folder), ExitStack() as stack:
        for name, port in zip((*SITES, "spy"), ports[:4], strict=True):
            stack.enter_context(trial.joined(folder / "sites" / name, port))
        yield Running(folder, ports[4:])


METHODS = ("fedsb(budget=4)+ga", "feddag(width=2, warmup=1)")
SETTING = {"target": "sketch", "data": "styles(share=0.05)", "network": "convnet(width=4)"}
CONFIGS = {method: Config(method=method, train=Train(rounds=2, batch_size=8), **SETTING) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_over_flower_equals_the_simulator_bit_for_bit(method, running, tmp_path):
    config, out = CONFIGS[method], tmp_path / "flower"
    number = operators.submit(running.folder, config, out)
    trial.follow(running.folder, config, out, number, print, patience=300)
    list(experiment.run(experiment.prepare(config), tmp_path / "simulated"))
    got = experiment.place(out, config)
    assert (got / "best.safetensors").read_bytes() == (tmp_path / "simulated" / "best.safetensors").read_bytes()
    want = experiment.lines(tmp_path / "simulated")
    for line in want:
        del line["scores"]["sketch"]  # nobody is there to judge it
    assert json.dumps(experiment.lines(got)) == json.dumps(want)
    said = operators.last_words(running.folder, number)
    assert "takes no part: the federation has no site 'spy'" in said


def get(running, scheme, **options):
    address = operators.charter_of(running.folder).address
    with urllib.request.urlopen(f"{scheme}://{address}/docs", timeout=10, **options) as answer:
        return answer.status


def test_the_server_speaks_tls_alone_and_with_its_own_authority(running, tmp_path):
    ours = ssl.create_default_context(cafile=str(running.folder / "server" / keys.CA))
    assert get(running, "https", context=ours) == 200
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        get(running, "http")
    keys.certify(tmp_path, "127.0.0.1")
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        get(running, "https", context=ssl.create_default_context(cafile=str(tmp_path / keys.CA)))


def test_preflight_finds_the_server_and_the_clocks_agree(running):
    found = {finding.what: finding for finding in preflight(running.folder / "sites" / "photo")}
    assert all(finding.well for finding in found.values()), found
    assert found["clock"].told.endswith("the server's") and "answers under the federation's" in found["server"].told


def wait_for(log, words, process, seconds=60):
    """Until a process has said something, or ended."""
    end = time.monotonic() + seconds
    while not any(word in trial.tail(log, 20000) for word in words) and process.poll() is None:
        assert time.monotonic() < end, trial.tail(log)
        time.sleep(0.2)
    return trial.tail(log, 20000)


def stranger(running, folder, port):
    """A bundle as a site has it, but with a key that nobody registered."""
    own = {"stranger": {"data": "styles(share=0.05)", "domain": "photo"}}
    operators.init(folder, Charter(operators.charter_of(running.folder).address, ("stranger",)), own)
    bundle = folder / "sites" / "stranger"
    return bundle, operators.node_command(bundle, port)


def test_a_site_that_does_not_know_the_authority_does_not_connect(running, tmp_path):
    _, command = stranger(running, tmp_path / "f", running.ports[0])
    with trial.started([*command, "--max-retries", "1"], tmp_path / "home", tmp_path / "log") as process:
        said = wait_for(tmp_path / "log", ["CERTIFICATE_VERIFY_FAILED"], process)
    assert "CERTIFICATE_VERIFY_FAILED" in said or "certificate verify failed" in said, said
    assert "SuperNode ID" not in said


def test_a_site_whose_key_nobody_registered_is_kept_out(running, tmp_path):
    bundle, command = stranger(running, tmp_path / "f", running.ports[0])
    (bundle / keys.CA).write_bytes((running.folder / "server" / keys.CA).read_bytes())
    with trial.started([*command, "--max-retries", "1"], tmp_path / "home", tmp_path / "log") as process:
        said = wait_for(tmp_path / "log", ["SuperNode ID"], process)
        assert process.wait(30) != 0
    assert "SuperNode ID" not in said, said


def test_a_site_without_tls_does_not_start(running, tmp_path):
    _, command = stranger(running, tmp_path / "f", running.ports[0])
    place = command.index("--root-certificates")
    plain = [*command[:place], "--insecure", *command[place + 2 :]]
    with trial.started(plain, tmp_path / "home", tmp_path / "log") as process:
        assert process.wait(60) != 0
    assert "requires a secure TLS connection" in " ".join(trial.tail(tmp_path / "log", 20000).split())
