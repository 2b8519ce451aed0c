"""Before a federation's server a proxy lets sites through, and nobody else: nginx with the file that `init` writes."""

import http.client
import ssl

import pytest
import tomli_w

from fedbeyond.errors import FederationError
from fedbeyond.experiment.config import Config
from fedbeyond.flower.deploy import certificates, folder, operations, processes
from support.commands import until
from support.federations import GUEST, NGINX, proxying

pytestmark = [
    pytest.mark.loopback,
    pytest.mark.slow,
    pytest.mark.skipif(not NGINX, reason="nginx is not installed"),
]


def answer(address, path, authority, method="POST"):
    """The status of an answer to an empty message."""
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(address, timeout=20, context=context)
    try:
        connection.request(method, path, b"", {"Content-Type": "application/protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


CONTROL, DOCS = "/v1/control/list-runs", "/docs"
DISGUISED = ("/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/..%2fcontrol/list-runs")
OTHERS = ("/v1/runtime/acquire-task", "/openapi.json", "/v1/fleet/../../docs", "/v1", "/")


def test_the_proxy_lets_nothing_through_but_what_sites_send(federation):
    authority = federation.folder / "server" / certificates.CA
    assert answer(federation.server, CONTROL, authority) == answer(federation.server, DOCS, authority, "GET") == 200
    for path in (CONTROL, DOCS, *DISGUISED, *OTHERS):
        assert {answer(federation.proxy, path, authority, method) for method in ("GET", "POST")} == {404}, path
    pull = "/v1/fleet/pull-messages"  # who has no key is known to nobody, on either side of the proxy
    assert answer(federation.proxy, pull, authority) == answer(federation.server, pull, authority) == 401


def test_through_the_proxy_runs_can_neither_be_listed_nor_started(federation, tmp_path):
    """By who has all that the server's operator has but a way to the server itself."""
    authority = (federation.folder / "server" / certificates.CA).read_bytes()
    certificates.write_new(tmp_path / "server" / certificates.CA, authority)
    charter = folder.read_federation_config(federation.folder)._replace(bind=federation.proxy)
    (tmp_path / folder.FEDERATION_FILE).write_text(tomli_w.dumps(charter._asdict()))
    with pytest.raises(FederationError, match="404"):
        operations.flwr(tmp_path, "list", operations.LINK)
    with pytest.raises(FederationError, match="404"):
        operations.submit(tmp_path, Config(target=GUEST), tmp_path)
    assert '"success": true' in operations.flwr(federation.folder, "list", operations.LINK, "--format", "json")


def test_the_proxy_does_not_speak_to_a_server_with_another_certificate(federation, tmp_path):
    (port,) = processes.free_ports(1)
    server = tmp_path / "server"
    certificates.write_certificates(server, "127.0.0.1", "localhost")
    text = (federation.folder / "server" / folder.PROXY).read_text()
    (server / folder.PROXY).write_text(text.replace(federation.proxy, f"127.0.0.1:{port}"))
    with proxying(server) as process:
        until(lambda: processes.reachable("127.0.0.1", port), process)
        assert answer(f"127.0.0.1:{port}", "/v1/fleet/pull-messages", server / certificates.CA) == 502
    assert "upstream SSL certificate verify error" in (server / "nginx-error.log").read_text()
