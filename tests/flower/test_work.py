"""Work that is late, or whose run was stopped, ends with a reason; the site then answers the next message."""

import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch

from fedbeyond import tree
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import FederationError
from fedbeyond.experiment import checkpoint, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import answers as site_answers
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment, node, work
from fedbeyond.flower.deploy import certificates, keys
from fedbeyond.flower.messages import REPLY
from fedbeyond.flower.run_status import stop_check
from fedbeyond.flower.site_config import SiteConfig
from fedbeyond.flower.work import Limit, limited
from fedbeyond.server import Failure
from support.grids import Error, FlowerMessage, Nodes

flower.PAUSE = 0.0
SITES, SLOW = ("cartoon", "painting", "photo"), "photo"


@pytest.fixture
def config(small):
    return Config(method="scaffold", train=Train(rounds=3, batch_size=8, batchnorm="average"), **small)


def settings(folder, site):
    own = {"site": site, "data": "styles(share=0.05)", "folder": str(folder / site), "secret": ""}
    return own | {"policy": str(folder / "policy.toml")} if site == SLOW else own


def federation(folder, app=None, kind=Nodes):
    """Nodes of the built-in data; one has a policy, which allows everything."""
    folder.mkdir(parents=True)
    (folder / "policy.toml").touch()
    app = app or flower.client_app()
    return kind({100 - place: (app, settings(folder, site)) for place, site in enumerate(SITES)})


def hello(config, folder):
    """A site's settings, and a message to it."""
    transport = flower.FlowerTransport(federation(folder), 60.0)
    enrolment.prepare(config, transport, SITES)
    return SiteConfig.parse(settings(folder, SLOW)), transport.hello


def without_end(*given, **options):
    while True:
        sum(range(1000))


class Absent(Simulator):
    """A simulation in which a site gives no answer in one round."""

    def __init__(self, inner, number):
        super().__init__(inner.client, list(inner.sites.values()))
        self.number = number

    def ask(self, request, envelope):
        there = tuple(name for name in request.to if (name, envelope.round) != (SLOW, self.number))
        answers = super().ask(request._replace(to=there), envelope)
        return answers | {name: Failure(name, "absent") for name in request.to if name not in there}


@pytest.mark.parametrize("moment", ["before its state is stored", "after its state is stored"])
def test_work_that_is_ended_loses_nothing(config, moment, tmp_path, monkeypatch):
    """The site trains, and does not come to an end; the run is that of a simulation in which it is absent."""
    grid = federation(tmp_path / "sites")
    lines = runner.run(enrolment.prepare(config, flower.FlowerTransport(grid, 60.0), SITES), tmp_path / "run")
    next(lines)
    save, policy = site_answers._save, tmp_path / "sites" / "policy.toml"

    def stuck(path, content, **notes):
        if "after" in moment or path.parent.name != SLOW:
            save(path, content, **notes)
        if path.parent.name == SLOW:
            without_end()

    policy.write_text("max_seconds = 2")
    with monkeypatch.context() as patch:
        patch.setattr(site_answers, "_save", stuck)
        rejected = next(lines)["rejected"]
    (reason,) = {entry["reason"] for entry in rejected if (entry["site"], entry["request"]) == (SLOW, "train")}
    assert reason == "PolicyError: an answer may take 2 s by the site's policy (max_seconds)"
    logged = [json.loads(text) for text in (tmp_path / "sites" / SLOW / "audit.jsonl").read_text().splitlines()]
    assert reason in [entry.get("reason") for entry in logged if entry["direction"] == "out"]
    policy.write_text("")
    assert next(lines)["rejected"] == []
    assert next(lines, None) is None and list((tmp_path / "sites" / SLOW).glob(work.FILES)) == []
    setup = runner.prepare(config)
    list(runner.run(setup._replace(engine=Absent(setup.engine, 1)), tmp_path / "simulated"))
    ours, simulated = (
        tree.flatten(checkpoint.load(tmp_path / place / "checkpoint.safetensors")[0]["state"])
        for place in ("run", "simulated")
    )
    assert ours.keys() == simulated.keys() and all(torch.equal(ours[path], simulated[path]) for path in simulated)


def test_a_message_carries_the_time_until_which_the_server_waits(config, tmp_path):
    seen = []

    def answer(context, message):
        seen.append(message.until)
        return flower.at_site(context, message)

    grid = federation(tmp_path / "sites", flower.client_app(answer))
    grid.keeps_deadlines = True
    began = time.time()
    enrolment.prepare(config, flower.FlowerTransport(grid, 900.0), SITES)
    assert len(seen) == 3 and all(began + 900 <= until <= time.time() + 900 for until in seen)


def test_work_ends_when_the_server_waits_no_longer(config, tmp_path, monkeypatch):
    machine, message = hello(config, tmp_path / "sites")
    monkeypatch.setattr(node, "reply", without_end)
    answered = node.respond(machine, replace(message, until=time.time() + 1))
    assert answered.notes["reason"] == (
        "FederationError: the server waits no longer for a reply; it was not ready in time"
    )


def test_a_message_that_nobody_waits_for_any_more_is_not_worked_on(config, tmp_path, monkeypatch):
    """A site that is behind catches up at once."""
    machine, message = hello(config, tmp_path / "sites")
    monkeypatch.setattr(node, "prepare_node", without_end)
    answered = node.respond(machine, replace(message, until=time.time() - 1))
    assert "the server waits no longer for a reply" in answered.notes["reason"]


def test_work_ends_when_its_run_was_stopped(config, tmp_path, monkeypatch):
    machine, message = hello(config, tmp_path / "sites")
    monkeypatch.setattr(work, "ASK_EVERY", 0.05)
    assert node.respond(machine, message, lambda: False).subject == REPLY
    monkeypatch.setattr(node, "reply", without_end)
    answers = iter([False, False, True])
    reason = node.respond(machine, message, lambda: next(answers)).notes["reason"]
    assert reason == "FederationError: the run was stopped"


STUBBORN = """
import sys, time
from pathlib import Path
from fedbeyond.errors import FederationError
from fedbeyond.flower import work
work.GRACE = 2
with work.limited(Path(sys.argv[1]), work.Limit(0.2, FederationError("late"))):
    while True:
        try:
            time.sleep(10)
        except Exception:
            print("ignored", flush=True)
"""


def test_work_that_ignores_its_end_is_killed(tmp_path):
    ended = subprocess.run([sys.executable, "-c", STUBBORN, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL and "ignored" in ended.stdout
    assert [path.suffix for path in tmp_path.iterdir()] == [".working"] and work.running(tmp_path) == []
    work.forget_ended(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_thread_works_without_limits(tmp_path):
    """Only the main thread of a process can be interrupted; Flower's client processes work in it."""
    done = []

    def run():
        with limited(tmp_path, Limit(0.0, FederationError("late"))):
            done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]


class Flaky(Nodes):
    """As Flower's server: whoever asks for the reply of a node that is not connected gets an error, and never more."""

    away = 0  # polls for which the slow site is not connected

    def get_node_ids(self):
        self.away -= 1
        return [node for node in self.apps if node != 98 or self.away < 0]

    def push_messages(self, messages):
        sent = list(super().push_messages(messages))
        self.away = 3
        return sent

    def pull_messages(self, message_ids):
        lost = [number for number in message_ids if self.away >= 0 and self.sender(number) == 98]
        errors = [FlowerMessage(Error(4, "Node Unavailable"), reply_to=self.request(number)) for number in lost]
        return errors + list(super().pull_messages([number for number in message_ids if number not in lost]))

    def request(self, number):
        return next(message for message in self.heard if message.metadata.message_id == number)

    def sender(self, number):
        return self.request(number).metadata.dst_node_id


def test_a_site_that_misses_a_heartbeat_is_not_given_up(config, tmp_path, monkeypatch):
    setup = enrolment.prepare(config, flower.FlowerTransport(federation(tmp_path / "sites", kind=Flaky), 60.0), SITES)
    lines = runner.run(setup, tmp_path / "run")
    assert next(lines)["rejected"] == []
    monkeypatch.setattr(flower, "RETURNING", 0.0)
    assert {entry["site"] for entry in next(lines)["rejected"]} == {SLOW}


ANSWERS = {
    "running": (200, b"", False),
    "stopped": (403, b'{"code": 1, "detail": "The current run status does not allow this Fleet API operation."}', True),
    "refused by a proxy": (403, b"<html>403 Forbidden</html>", False),
    "overloaded": (500, b"", False),
}


@pytest.fixture
def link(tmp_path):
    """A server with the federation's certificate that gives one answer to all, and the folder of a site."""
    certificates.write_certificates(tmp_path, "127.0.0.1")
    (tmp_path / "site.toml").write_text('site = "a"\ndata = "styles"\nfolder = "state"\n')
    keys.enrol(tmp_path)
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(self.server.answer[0])
            self.send_header("content-length", str(len(self.server.answer[1])))
            self.end_headers()
            self.wfile.write(self.server.answer[1])

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.asked = asked
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / certificates.CERTIFICATE, tmp_path / certificates.SERVER_KEY)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("case", ANSWERS)
def test_a_site_asks_the_server_whether_its_run_was_stopped(case, link, tmp_path):
    *link.answer, stopped = ANSWERS[case]
    own = {"site": "photo", "data": "styles", "folder": tmp_path, "bundle": tmp_path}
    machine = SiteConfig.parse(own | {"superlink": f"127.0.0.1:{link.server_port}"})
    assert stop_check(machine, 7, 3)() is stopped
    assert link.asked == ["/v1/fleet/get-run"]
    alone = replace(machine, bundle=None)  # a node that was started by hand
    nowhere = replace(machine, superlink="127.0.0.1:1")
    assert not stop_check(alone, 7, 3)() and not stop_check(nowhere, 7, 3)()
    assert len(link.asked) == 1
