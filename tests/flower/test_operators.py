"""What operators are told: why a site ended, why a run failed, what is not ready; and what is cleaned up for them."""

import json
import logging
import os
import re
import ssl
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fedbeyond.errors import ConfigError, DataError, FederationError
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import site_ledger
from fedbeyond.flower.deploy import certificates, chores, keys, preflight, processes
from fedbeyond.flower.deploy import folder as folders
from fedbeyond.flower.deploy.folder import FederationConfig
from fedbeyond.flower.messages import EVALUATE
from fedbeyond.flower.policy import LOG
from fedbeyond.flower.shared_config import splits_digest
from fedbeyond.flower.site_config import APPROVALS, SiteConfig
from fedbeyond.flower.site_data import own_domain, split_rows
from fedbeyond.flower.site_ledger import Entry

CHARTER = FederationConfig("127.0.0.1:1", ("photo",), bind="127.0.0.1:1")


@pytest.fixture
def bundle(tmp_path):
    folders.init(tmp_path / "f", CHARTER, {"photo": {"data": "styles(share=0.05)"}})
    keys.enrol_all(tmp_path / "f")
    return tmp_path / "f" / "sites" / "photo"


def node_that(monkeypatch, code):
    """Replace Flower's node by a program."""
    monkeypatch.setattr(processes.operations, "node_command", lambda *words: [sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('INFO : SuperNode terminated gracefully.')", "exit code 0: INFO : SuperNode terminated gracefully."),
        ("", "exit code 0: it logged nothing"),
        ("raise SystemExit(3)", "exit code 3: it logged nothing"),
        ("print('ERROR :     disk full'); print('bye')", "exit code 0: disk full"),
        ("1 / 0", "exit code 1: ZeroDivisionError: division by zero"),
        (
            "print('ERROR : Failed to initialize: [SSL: CERTIFICATE_VERIFY_FAILED] certificate'); raise SystemExit(1)",
            "the server's certificate is not signed by ca.crt of this site's folder; ask the",
        ),
        (
            "print(\"ERROR : Client error '401 Unauthorized' for url https://link/v1/fleet/pull-messages\")",
            "the server rejected this site: its key was replaced or withdrawn, or its clock is more than 5 s ahead",
        ),
    ],
)
def test_join_says_why_it_ended_and_has_an_exit_code_for_it(bundle, call, monkeypatch, code, reason):
    """Flower's node ends with 0 when the server rejects it."""
    node_that(monkeypatch, code)
    (bundle / "site.log").write_text("ERROR : of another day\n")
    ended, _, errors = call("join", bundle)
    assert ended == 2 and errors.count("\n") == 1
    assert f"error: the site ended: {reason}" in errors and f"(log: {bundle / 'site.log'})" in errors


def test_a_site_whose_key_is_not_registered_is_told_so(bundle, monkeypatch):
    node_that(monkeypatch, "print('Failed to activate SuperNode.')")
    monkeypatch.setattr(processes, "RETRY_PAUSE", 1.0)
    monkeypatch.setattr(processes, "ADMISSION_TIMEOUT", 1.0)
    killed = "another join runs with this key, or one was killed less than a minute ago"
    for known, waiting, reason in (
        (False, "the server does not know its key; ask the operator to register it", "its key is not registered; ask"),
        (True, killed, "rejects this site: the site is already connected;"),
        (None, killed, "its key is not registered, or the site is already connected"),
    ):
        monkeypatch.setattr(processes, "is_registered", lambda *words, known=known: known)
        lines, moments = [], iter((0.0, 0.5, 1.5))
        monkeypatch.setattr(processes.time, "monotonic", lambda moments=moments: next(moments))
        monkeypatch.setattr(processes.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(
            processes.watchdog, "supervise", lambda process, *words: process.wait()
        )  # it has a clock too
        with pytest.raises(FederationError, match=reason):
            processes.run_site(bundle, 7777, lines.append)
        assert lines[1:] == [f"not admitted yet: {waiting}; retrying in 1 s"]


def test_a_run_that_loses_its_quorum_prints_one_line(monkeypatch, capsys):
    """As Flower runs it: it logs the exception of an app with its traceback, and its exit code with a help page."""
    reason = "round 3: 1 of 3 sites replied, the quorum is 2\n(north: late)"

    def lose(*words, **options):
        raise FederationError(reason)

    monkeypatch.setattr(flower.enrolment, "prepare", lose)
    given = {"config": json.dumps(Config(target="sketch").identity() | {"public": None}), "sites": "a", "out": "x"}
    logger, records = logging.getLogger("flwr"), []
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    before = list(logger.filters)
    try:
        with pytest.raises(FederationError) as raised:  # so that Flower lists the run as failed
            flower.server_app()(None, flower.Context(1, 1, {}, flower.RecordDict(), given))
        logger.error("%s raised an exception", "ServerApp", exc_info=raised.value)
        logger.error("Exit Code: 201\nAn unhandled exception occurred in the ServerApp.\n\nFor more information ...")
        logger.error("of another")
        assert [record.getMessage() for record in records] == ["of another"]
    finally:
        logger.removeHandler(handler)
        for added in [f for f in logger.filters if f not in before]:
            logger.removeFilter(added)
    assert capsys.readouterr().out == "error: round 3: 1 of 3 sites replied, the quorum is 2 (north: late)\n"


def test_tracebacks_of_a_run_are_logged_if_they_are_wanted(monkeypatch, capsys):
    monkeypatch.setenv("FEDBEYOND_TRACEBACK", "1")
    before = list(logging.getLogger("flwr").filters)
    flower.print_in_one_line(FederationError("lost"))
    assert logging.getLogger("flwr").filters == before and capsys.readouterr().out == "error: lost\n"


def look(bundle, *run):
    return {finding.topic: finding for finding in preflight.preflight(bundle, *run)}


def test_preflight_checks_who_can_read_the_secret_and_the_state(bundle):
    assert look(bundle)["secret"].ok and look(bundle)["key"].ok and "state" not in look(bundle)
    (bundle / "secret").chmod(0o640)
    (bundle / "state").mkdir(mode=0o755)
    found = look(bundle)
    assert not found["secret"].ok and f"chmod 600 {bundle / 'secret'}" in found["secret"].text
    assert not found["state"].ok and f"chmod 700 {bundle / 'state'}" in found["state"].text
    (bundle / "state").chmod(0o700)
    (bundle / "secret").unlink()
    found = look(bundle)
    assert found["state"].ok and not found["secret"].ok and "secret is missing; restore it" in found["secret"].text


def test_preflight_creates_nothing_at_a_site(bundle, small):
    """An operator may run it as root before the site runs as another user."""
    before = sorted(bundle.rglob("*"))
    assert look(bundle, Config(method="fedavg", **small))["run"].ok
    assert sorted(bundle.rglob("*")) == before


def test_preflight_lists_what_leaves_of_a_part_on_cached_outputs(bundle, small):
    config = Config(method="fedavg", train=Train(part="last"), **small)
    told = [finding.text for finding in preflight.preflight(bundle, config) if finding.topic == "leaves"]
    assert sum("in reply to 'statistics': " in line and "in 1 exchanges" in line for line in told) == 1


@pytest.mark.parametrize("role", ["train", "guest"])
def test_preflight_finds_that_a_run_has_other_splits_than_the_site_fixed(bundle, small, role):
    path, config = bundle / "site.toml", Config(method="fedavg", **small)
    path.write_text(path.read_text().replace('role = "train"', f'role = "{role}"'))
    (bundle / "policy.toml").write_text("fixed_splits = true\n")
    entry = Entry("run", "config", 3, EVALUATE, "", 0, "digest", models="m", splits=splits_digest(config))
    with site_ledger.opened(bundle / "state") as ledger:
        ledger.add(entry)
    assert look(bundle, config)["run"].ok
    found = look(bundle, replace(config, seed=1))["run"]
    assert not found.ok and "(fixed_splits)" in found.text


def test_preflight_says_how_a_certificate_is_renewed(bundle, monkeypatch):
    monkeypatch.setattr(preflight, "MIN_DAYS", 10**6)
    found = preflight.check_certificate(bundle.parents[1] / "server" / certificates.CERTIFICATE)
    assert not found.ok and "register the keys that the sites create there" in found.text


def test_a_site_without_its_domain_is_told_what_will_be_accepted(bundle, small):
    path = bundle / "site.toml"
    path.write_text(path.read_text().replace('site = "photo"', 'site = "north"'))
    own = SiteConfig.parse(folders.site_settings(bundle))
    with pytest.raises(DataError, match=r"has no domain 'north'; it has .*; rename one of them to 'north': a site tra"):
        own_domain(own)
    with pytest.raises(ConfigError, match="'north' is not a client of 'photo'"):  # what was advised before
        other = replace(own, domain="photo")
        split_rows(other, Config(**small), own_domain(other))
    with pytest.raises(DataError, match=r"; name one of them in the site's config, as in domain='...'"):
        own_domain(replace(own, role="guest"))


class Server:
    """A server with the federation's certificate that answers every request in one way."""

    def __init__(self, folder, status, body=b""):
        class Handler(BaseHTTPRequestHandler):
            def respond(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = respond

            def log_message(self, *words):
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / certificates.CERTIFICATE, folder / certificates.SERVER_KEY)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.address = f"127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self.address

    def __exit__(self, *error):
        self.http.shutdown()
        self.http.server_close()


@pytest.mark.parametrize(
    ("status", "body", "ok", "text"),
    [
        (400, b"Invalid heartbeat interval.", True, "the server knows the key of photo"),
        (412, b"Failed to activate SuperNode.", False, "the server does not know .*key; send .*key.pub to the"),
        (502, b"", False, "the server did not say whether it knows the key"),
    ],
)
def test_preflight_finds_a_key_that_nobody_registered(bundle, status, body, ok, text):
    with Server(bundle.parents[1] / "server", status, body) as address:
        path = bundle / "site.toml"
        path.write_text(path.read_text().replace("127.0.0.1:1", address))
        found = look(bundle)
    assert found["server"].ok and found["registered"].ok == ok
    assert re.match(text, found["registered"].text)


@pytest.mark.parametrize(("status", "ok"), [(404, True), (200, False)])
def test_preflight_finds_a_proxy_that_is_closed_open_or_not_there(tmp_path, status, ok):
    folders.init(tmp_path / "f", CHARTER._replace(address="127.0.0.1:2"))
    with Server(tmp_path / "f" / "server", status) as address:
        path = tmp_path / "f" / "federation.toml"
        path.write_text(path.read_text().replace("127.0.0.1:2", address))
        found = look(tmp_path / "f")["control"]
        assert found.ok == ok and ("can start runs" in found.text) != ok
    found = look(tmp_path / "f")["control"]  # the proxy is down: nobody knows what it will forward
    assert not found.ok and f"nothing answers at {address}" in found.text


def write_old(path, days):
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(b"content")
    os.utime(path, (time.time() - days * 86400,) * 2)


KEPT = (LOG, "0a1b.replies", "ledger.jsonl", "privacy.json", "node.toml", f"{APPROVALS}/0a1b.approved.json")


def test_states_that_were_not_written_for_long_are_removed_and_nothing_else(bundle):
    own = SiteConfig.parse(folders.site_settings(bundle) | {"keep_days": 30})
    old = [own.folder / "0a1b.safetensors", own.folder / "0a1b.evaluated"]
    for path in (*old, *(own.folder / name for name in KEPT)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_old(path, 31)
    write_old(own.folder / "2c3d.safetensors", 29)  # of a run that may go on
    assert chores.remove_old_states(own) == 2
    left = {path.relative_to(own.folder).as_posix() for path in own.folder.rglob("*") if path.is_file()}
    assert left == {*KEPT, "2c3d.safetensors"}
    assert chores.remove_old_states(SiteConfig.parse(folders.site_settings(bundle) | {"keep_days": 0.001})) == 1


def test_states_are_kept_if_the_site_sets_no_time(bundle):
    own = {key: value for key, value in folders.site_settings(bundle).items() if key != "keep_days"}
    site_config = SiteConfig.parse(own)
    write_old(site_config.folder / "0a1b.safetensors", 10000)
    assert site_config.keep_days is None and chores.remove_old_states(site_config) == 0


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), "soon"])
def test_a_time_that_cannot_be_is_refused(bundle, days):
    with pytest.raises(ConfigError, match="keep_days"):
        SiteConfig.parse(folders.site_settings(bundle) | {"keep_days": days})


def test_join_removes_old_states_when_it_starts_and_while_it_runs(bundle, monkeypatch):
    monkeypatch.setattr(chores, "REMOVAL_PAUSE", 0.01)
    state, lines, two = bundle / "state", [], threading.Event()
    write_old(state / "0a1b.safetensors", 91)

    def report(line):
        lines.append(line)
        if len(lines) == 1:
            write_old(state / "2c3d.safetensors", 91)
        else:
            two.set()

    with chores.chores(bundle, report):
        assert two.wait(20)
    assert lines == ["removed 1 states that were not written for 90 days"] * 2 and not list(state.iterdir())


def test_join_announces_every_run_that_waits_for_approval_once(bundle, monkeypatch):
    monkeypatch.setattr(chores, "NOTICE_PAUSE", 0.001)
    folder, lines, first, second = bundle / "state" / APPROVALS, [], threading.Event(), threading.Event()
    folder.mkdir(parents=True)

    def report(line):
        lines.append(line)
        (second if first.is_set() else first).set()

    with chores.chores(bundle, report):
        (folder / "0a1b.waiting.json").touch()
        assert first.wait(20)
        (folder / "2c3d.waiting.json").touch()
        assert second.wait(20)
    text = f"a run waits for approval; what it would do and send: fedbeyond approve {bundle}"
    assert lines == [text] * 2


def test_states_that_cannot_be_removed_are_reported_and_end_nothing():
    def fail():
        raise PermissionError(13, "Permission denied", "state/0a1b.safetensors")

    lines, reported = [], threading.Event()
    with chores.repeated(fail, 1000, lambda line: (lines.append(line), reported.set())):
        assert reported.wait(20)
    assert lines == ["state/0a1b.safetensors: Permission denied; give the user that runs fedbeyond access to it"]
