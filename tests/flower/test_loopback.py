"""Who is let into a real federation on 127.0.0.1, and how: TLS, node keys, preflight.

Every process is ended by its number; every wait has an end.
"""

import ssl
import time
import urllib.error
import urllib.request

import pytest

from fedbeyond.flower.deploy import certificates, operations, processes
from fedbeyond.flower.deploy.operations import FederationConfig
from fedbeyond.flower.deploy.preflight import preflight
from support.federations import SITES

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
    operations.init(
        folder, FederationConfig(operations.read_federation_config(federation.folder).address, ("stranger",)), own
    )
    bundle = folder / "sites" / "stranger"
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
