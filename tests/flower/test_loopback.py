"""Who is let into a real federation on 127.0.0.1, and how: TLS, node keys, preflight.

Every process is ended by its number; every wait has an end.
"""

import shutil
import ssl
import time
import urllib.error
import urllib.request

import pytest
import tomli_w

from fedbeyond.experiment import run_folder
from fedbeyond.experiment.config import load
from fedbeyond.flower import approvals
from fedbeyond.flower.deploy import certificates, keys, operations, processes
from fedbeyond.flower.deploy.admission import is_registered
from fedbeyond.flower.deploy.folder import FEDERATION_FILE, FederationConfig, init, read_federation_config
from fedbeyond.flower.deploy.preflight import preflight
from support.commands import fedbeyond, until
from support.federations import GUEST, SITES, SPY

pytestmark = pytest.mark.loopback


def get(federation, scheme, **options):
    with urllib.request.urlopen(f"{scheme}://{federation.server}/docs", timeout=10, **options) as answer:
        return answer.status


def test_the_server_speaks_tls_alone_and_with_its_own_authority(federation, tmp_path):
    ours = ssl.create_default_context(cafile=str(federation.folder / "server" / certificates.CA))
    assert get(federation, "https", context=ours) == 200
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        get(federation, "http")
    certificates.write_certificates(tmp_path, "127.0.0.1")
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        get(federation, "https", context=ssl.create_default_context(cafile=str(tmp_path / certificates.CA)))


def test_preflight_finds_the_server_and_the_clocks_agree(federation):
    found = {finding.topic: finding for finding in preflight(federation.folder / "sites" / "east")}
    assert all(finding.ok for finding in found.values()), found
    assert found["clock"].text.endswith("the server's") and "answers with the federation's" in found["server"].text


def test_preflight_on_the_servers_side_finds_the_door_and_who_is_there(federation):
    end = time.monotonic() + 120
    while operations.count_connected(federation.folder) < len(federation.sites):  # they may still be starting
        assert time.monotonic() < end
    found = {finding.topic: finding for finding in preflight(federation.folder)}
    assert found["server"].ok and found["control"].ok
    connected = f"{len(federation.sites)} are connected, {len(SITES) + 1} belong to the federation"
    assert found["sites"].ok and found["sites"].text == connected


def wait_for(log, words, process, seconds=60):
    """Until a process has said something, or ended."""
    end = time.monotonic() + seconds
    while not any(word in processes.tail(log, 20000) for word in words) and process.poll() is None:
        assert time.monotonic() < end, processes.tail(log)
        time.sleep(0.2)
    return processes.tail(log, 20000)


def stranger(federation, folder):
    """A bundle as a site has it, but with a key that nobody registered."""
    own = {"stranger": {"data": federation.data, "domain": "east"}}
    init(folder, FederationConfig(read_federation_config(federation.folder).address, ("stranger",)), own)
    bundle = folder / "sites" / "stranger"
    keys.enrol(bundle)
    return bundle, operations.node_command(bundle, processes.free_ports(1)[0])


def test_a_site_that_does_not_know_the_authority_does_not_connect(federation, tmp_path):
    _, command = stranger(federation, tmp_path / "f")
    with processes.started([*command, "--max-retries", "1"], tmp_path / "home", tmp_path / "log") as process:
        said = wait_for(tmp_path / "log", ["CERTIFICATE_VERIFY_FAILED"], process)
    assert "CERTIFICATE_VERIFY_FAILED" in said or "certificate verify failed" in said, said
    assert "SuperNode ID" not in said


def test_a_site_whose_key_nobody_registered_is_kept_out(federation, tmp_path):
    bundle, command = stranger(federation, tmp_path / "f")
    (bundle / certificates.CA).write_bytes((federation.folder / "server" / certificates.CA).read_bytes())
    with processes.started([*command, "--max-retries", "1"], tmp_path / "home", tmp_path / "log") as process:
        said = wait_for(tmp_path / "log", ["SuperNode ID"], process)
        assert process.wait(30) != 0
    assert "SuperNode ID" not in said, said


def test_a_site_without_tls_does_not_start(federation, tmp_path):
    _, command = stranger(federation, tmp_path / "f")
    place = command.index("--root-certificates")
    plain = [*command[:place], "--insecure", *command[place + 2 :]]
    with processes.started(plain, tmp_path / "home", tmp_path / "log") as process:
        assert process.wait(60) != 0
    assert "requires a secure TLS connection" in " ".join(processes.tail(tmp_path / "log", 20000).split())


@pytest.fixture
def spied(federation):
    """A federation that the spy belongs to; it does not join."""
    path, before = federation.folder / FEDERATION_FILE, (federation.folder / FEDERATION_FILE).read_bytes()
    charter = read_federation_config(federation.folder)
    path.write_text(tomli_w.dumps(charter._replace(sites=(*charter.sites, SPY))._asdict()))
    yield federation
    path.write_bytes(before)


@pytest.mark.slow
def test_a_running_server_accepts_a_key_that_replaces_another_and_no_longer_the_other(spied, tmp_path):
    bundle, address = spied.bundle(SPY), read_federation_config(spied.folder).address
    stolen = tmp_path / "stolen"
    shutil.copytree(bundle, stolen)
    (bundle / certificates.SITE_KEY).unlink()
    new = keys.enrol(bundle)
    assert is_registered(address, stolen) is True and is_registered(address, bundle) is False
    assert "accepts it now" in fedbeyond("federation", "register", spied.folder, SPY, new, "--replace")
    assert is_registered(address, stolen) is False and is_registered(address, bundle) is True


@pytest.fixture
def run(federation, tmp_path):
    """The file of a short run."""
    (tmp_path / "run.toml").write_text(
        f"""method = "fedavg"
target = "{GUEST}"
data = "{federation.data}"
network = "convnet(width=4)"
train = {{rounds = 1, batch_size = 8, batchnorm = "average"}}
"""
    )
    return tmp_path / "run.toml"


@pytest.fixture
def policy(federation):
    """The policy of a site, which allows everything again after the test."""
    path = federation.bundle(SITES[0]) / "policy.toml"
    before = path.read_bytes()
    yield path
    path.write_bytes(before)


def submit(federation, run):
    printed = fedbeyond("submit", federation.folder, run, "--out", run.parent / "out")
    return printed.split(";")[0].removeprefix("run ").strip()


@pytest.mark.slow
def test_a_run_that_fails_is_one_line_of_its_log_and_failed(federation, run, policy):
    policy.write_text('methods = ["fedprox"]')
    number = submit(federation, run)
    until(lambda: "finished" in operations.status(federation.folder, number), *federation.members)
    assert operations.status(federation.folder, number) == "finished:failed"
    logged = fedbeyond("logs", federation.folder, number)
    (line,) = [line for line in logged.splitlines() if "error" in line.lower()]
    assert line.startswith(f"error: not all sites enrolled ({SITES[0]}: PolicyError: the site's policy does not allow")
    assert "Traceback" not in logged and "Exit Code" not in logged and logged.count("\n") < 10, logged


@pytest.mark.slow
def test_a_run_waits_for_the_approval_of_a_site_and_then_starts(federation, run, policy):
    policy.write_text("approval = true")
    bundle, config = federation.bundle(SITES[0]), load(run)
    number = submit(federation, run)
    until(lambda: approvals.waiting(bundle / "state"), *federation.members)
    listed = fedbeyond("approve", bundle)
    assert f"{approvals.run_digest(config)} waits since" in listed and "leaves: in reply to 'train': model" in listed
    fedbeyond("approve", bundle, approvals.run_digest(config)[:8])
    until((run_folder.path(run.parent / "out", config) / "done").exists, *federation.members)
    assert f"waiting for {SITES[0]}: its operator has not" in fedbeyond("logs", federation.folder, number)
