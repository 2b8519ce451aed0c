"""Drills with a real federation on 127.0.0.1, TLS, keys and a proxy, driven by the commands that operators give.

A site is killed, the server is killed, or nobody is; what comes out is what a simulation gives, bit for bit. Every
message costs seconds of computing.
"""

import json
from collections import Counter

import pytest
import torch

from fedbeyond import tree
from fedbeyond.engine.simulator import Simulator
from fedbeyond.evaluation.evaluators import Evaluation
from fedbeyond.experiment import checkpoint, run_folder, runner
from fedbeyond.experiment.config import load
from fedbeyond.flower.deploy import watchdog
from fedbeyond.server import Failure
from support.commands import PATIENCE, fedbeyond, kill, remaining, until
from support.federations import GUEST, NGINX, SITES, SPY, federated
from support.lying.lies import LIES

pytestmark = pytest.mark.loopback
LAST = 3  # round
NOT_THERE = ("Flower reports", "no reply within", "is not connected")  # reasons of a site that gave no reply
LETTERS = {"train": len(SITES), "sha_score": 1}  # of a round in which all take part


class Away(Simulator):
    """A simulation in which some sites give no answer to some requests."""

    def __init__(self, inner, away):
        super().__init__(inner.client, list(inner.sites.values()))
        self.away = away

    def ask(self, request, envelope):
        there = tuple(name for name in request.to if (name, envelope.round, request.kind) not in self.away)
        answers = super().ask(request._replace(to=there), envelope)
        return answers | {name: Failure(name, "away") for name in request.to if name not in there}


class Drill:
    """A run of a federation that is disturbed, and the same run in a simulation."""

    def __init__(self, federation, folder, method, rounds, batchnorm="average", epochs=25):
        folder.mkdir(exist_ok=True)
        self.federation, self.folder, self.path = federation, folder, folder / "run.toml"
        self.path.write_text(
            f"""method = "{method}"
target = "{GUEST}"
data = "{federation.data}"
network = "convnet(width=4)"

[train]
rounds = {rounds}
evaluate_every = {rounds}
epochs = {epochs}  # a round takes long enough to be disturbed
batch_size = 8
quorum = 1
batchnorm = "{batchnorm}"
"""
        )
        self.config = load(self.path)
        self.home = run_folder.path(folder / "out", self.config)

    def submit(self):
        """The number by which Flower knows the run."""
        said = fedbeyond("submit", self.federation.folder, self.path, "--out", self.folder / "out")
        return said.split(";")[0].removeprefix("run ").strip()

    def busy(self, kind, number, *names):
        """Whether one of the sites is computing an answer."""
        return any(self.federation.busy(name, self.config, kind, number) for name in names)

    def until(self, true, seconds=PATIENCE):
        until(true, *self.federation.members, seconds=seconds)

    def kill_the_server(self):
        """Kill it and all that it started, and start it again."""
        kill(self.federation.link)
        assert not (self.home / "done").exists() and not remaining(self.federation.folder / "server" / "flower")
        self.federation.link = self.federation.serve()

    def resume(self, first):
        """Submit the run again, wait for its end, and return its new number."""
        if "running" in fedbeyond("status", self.federation.folder, first):  # as far as Flower knows, for a while
            fedbeyond("stop", self.federation.folder, first)
        second = self.submit()
        self.until((self.home / "done").exists)
        return second

    def lines(self):
        return run_folder.lines(self.home)

    def heard(self):
        """How often the sites were asked, by round and kind of request."""
        lines = [line for name in SITES for line in self.federation.messages(name, self.config)]
        return Counter((line["round"], line["kind"]) for line in lines if line["direction"] == "in" and "kind" in line)

    def ensure_that_of_the_simulator(self, away=frozenset(), unheard=()):
        """Compare all bits of two runs, and not why somebody was away; scores of `unheard` sites are not used."""
        setup, want = runner.prepare(self.config), self.folder / "simulated"

        def evaluator(models, number):
            scores = setup.evaluator(models, number).scores
            heard = {name: own for name, own in scores.items() if name not in unheard}
            return Evaluation(heard, [Failure(name, "not heard") for name in sorted(unheard)])

        list(runner.run(setup._replace(engine=Away(setup.engine, away), evaluator=evaluator), want))
        told, expected = self.lines(), run_folder.lines(want)
        for line in told + expected:
            line["rejected"] = [(aside["site"], aside["request"]) for aside in line["rejected"]]
            line["bytes_up"] = {name: sent for name, sent in line["bytes_up"].items() if name not in unheard}
        assert json.dumps(told) == json.dumps(expected) and GUEST in told[-1]["scores"]
        assert (self.home / "best.safetensors").read_bytes() == (want / "best.safetensors").read_bytes()
        states = [checkpoint.load(home / "checkpoint.safetensors")[0]["state"] for home in (self.home, want)]
        got, wanted = map(tree.flatten, states)
        assert got.keys() == wanted.keys() and all(torch.equal(got[path], wanted[path]) for path in wanted)

    def ensure_resumed(self, first, second, rounds):
        """Check that the log is that of the last round alone, and that all messages went through the proxy."""
        assert "finished:" in fedbeyond("status", self.federation.folder, first)
        said = fedbeyond("logs", self.federation.folder, second)
        assert said.count("round ") == 1 and f"round {rounds} of {rounds}: {SITES[0]}" in said
        if NGINX:  # sites know no other address
            passed = (self.federation.folder / "server" / "nginx-access.log").read_text()
            assert passed.count('POST /v1/fleet/push-object HTTP/1.1" 200') > self.heard().total()
        return said


@pytest.fixture
def spy(federation):
    """The spy has joined; it leaves after the test, or another test, which withdraws its key, would end it."""
    federation.sites[SPY] = federation.join(SPY)
    yield
    federation.leave(SPY)


@pytest.mark.slow
def test_a_run_whose_server_is_killed_in_the_middle_of_a_round_is_that_of_the_simulator(federation, tmp_path):
    drill = Drill(federation, tmp_path, "scaffold", rounds=2)  # sites keep what they learnt, and forget the torn round
    first = drill.submit()
    drill.until(lambda: drill.busy("train", 1, *SITES))
    drill.kill_the_server()
    assert len(drill.lines()) == 1
    second = drill.resume(first)
    assert [line["rejected"] for line in drill.lines()] == [[], []]
    drill.ensure_that_of_the_simulator()
    asked = drill.heard()
    assert asked[0, "train"] == len(SITES) < asked[1, "train"]  # and no other round was played again
    drill.ensure_resumed(first, second, rounds=2)


@pytest.mark.slow
def test_an_undisturbed_run_is_that_of_the_simulator(federation, tmp_path):
    # in the second round gaps are known and move the weights; after it, statistics are measured layer by layer
    drill = Drill(federation, tmp_path, "fedsb(budget=2)+ga", rounds=2, batchnorm="reestimate")
    drill.submit()
    drill.until((drill.home / "done").exists)
    first, second = drill.lines()
    assert first["rejected"] == second["rejected"] == [] and first["weights"] != second["weights"]
    drill.ensure_that_of_the_simulator()


@pytest.mark.slow
@pytest.mark.usefixtures("spy")
def test_a_run_goes_on_though_a_site_and_then_the_server_are_killed_in_the_middle_of_a_round(federation, tmp_path):
    # private states; two requests a round, the second to one site
    drill = Drill(federation, tmp_path, "scaffold+sha(evaluators=1)", LAST + 1)
    first = drill.submit()

    # the site: kept out until Flower has noticed that it is dead; the others go on
    drill.until(lambda: drill.busy("train", 1, "north"))
    kill(federation.sites["north"])
    assert drill.busy("train", 1, "north"), "it had answered"
    federation.sites["north"] = federation.join("north")

    # the server, when the first request of the last round is answered
    drill.until(lambda: drill.busy("sha_score", LAST, *SITES), seconds=2 * PATIENCE)
    drill.kill_the_server()
    assert len(drill.lines()) == LAST
    second = drill.resume(first)

    rejected = [(line["round"], aside) for line in drill.lines() for aside in line["rejected"]]
    away = {
        (aside["site"], number, aside["request"]) for number, aside in rejected if aside["reason"].startswith(NOT_THERE)
    }  # what the gate rejects, it rejects in the simulation, too
    assert ("north", 1, "train") in away  # who else was away after the server's death is up to Flower
    assert {site for site, number, _ in away if number < LAST} == {"north"}
    drill.ensure_that_of_the_simulator(away)
    asked = drill.heard()
    assert {kind: asked[0, kind] for kind in LETTERS} == LETTERS
    assert all(LETTERS[kind] < asked[LAST, kind] for kind in LETTERS)  # played again
    assert all(asked[number, "sha_score"] == 1 for number in range(LAST))  # and no other
    assert "not admitted yet" in (federation.bundle("north") / "join.txt").read_text()
    said = drill.ensure_resumed(first, second, LAST + 1)
    assert f"takes no part: the federation has no site '{SPY}'" in said and federation.messages(SPY, drill.config) == []


@pytest.mark.slow
def test_three_liars_at_once_change_nothing_at_the_honest_sites(tmp_path):
    liars = {name: name for name in LIES}
    with federated(tmp_path / "federation", (*SITES, *liars), liars) as federation:
        drill = Drill(federation, tmp_path, "fedavg+ga", rounds=2)
        drill.submit()
        drill.until((drill.home / "done").exists, seconds=2 * PATIENCE)  # six sites share the cores

    lines = drill.lines()
    reasons = {(aside["site"], aside["request"]): aside["reason"] for line in lines for aside in line["rejected"]}
    assert {(site, "train") for site in liars} | {(site, "evaluate") for site in liars} == reasons.keys()
    assert "not finite" in reasons["poison", "train"] and "has at most" in reasons["flood", "train"]
    assert "claims 1000000000000 training images" in reasons["claim", "train"]
    assert all("malformed scores" in reasons[site, "evaluate"] for site in liars)
    assert not any("Jane Doe" in path.read_text(errors="replace") for path in drill.home.rglob("*.json*"))
    assert all(set(line["weights"]) == set(SITES) for line in lines)
    drill.ensure_that_of_the_simulator({(site, number, "train") for site in liars for number in range(2)}, liars)


@pytest.mark.slow
def test_sites_end_their_work_within_seconds_of_a_stop_and_run_the_next_one(federation, tmp_path):
    endless = Drill(federation, tmp_path / "endless", "scaffold", rounds=1, epochs=10**6)
    number = endless.submit()
    for name in SITES:
        endless.until(lambda name=name: endless.busy("train", 0, name))
    fedbeyond("stop", federation.folder, number)
    endless.until(lambda: not any(watchdog.clients(federation.bundle(name) / "flower") for name in SITES), seconds=60)
    for name in SITES:
        last = federation.messages(name, endless.config)[-1]
        assert (last["direction"], last["reason"]) == ("out", "FederationError: the run was stopped")
    drill = Drill(federation, tmp_path / "next", "scaffold", rounds=1)
    drill.submit()
    drill.until((drill.home / "done").exists)
    assert [line["rejected"] for line in drill.lines()] == [[]]
    drill.ensure_that_of_the_simulator()
