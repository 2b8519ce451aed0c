"""Drills with a real federation on 127.0.0.1, TLS, keys and a proxy, driven by the commands that operators give.

A site is killed, the server is killed, or nobody is; what comes out is what a simulation gives, bit for bit. One run
serves for both drills: every message costs seconds of computing.
"""

import json
import time
from collections import Counter

import pytest
import torch

from fedbeyond import tree
from fedbeyond.engine.simulator import Simulator
from fedbeyond.experiment import checkpoint, run_folder, runner
from fedbeyond.experiment.config import load
from fedbeyond.server import Failure
from support.commands import PATIENCE, fedbeyond, kill, remaining, until
from support.federations import NGINX, SPY, UNSEEN

pytestmark = pytest.mark.loopback
LAST = 3  # round
FEW = ("cartoon", "photo")  # sites of the drill: each takes seconds of computing for every message
LETTERS = {"train": len(FEW), "sha_score": 1}  # of a round in which all take part


def asked(path, method, rounds, unseen=UNSEEN, batchnorm="average"):
    """A run's file, and what it says."""
    path.write_text(
        f"""method = "{method}"
target = {json.dumps(unseen)}
data = "styles(share=0.05)"
network = "convnet(width=4)"

[train]
rounds = {rounds}
evaluate_every = {rounds}
batch_size = 8
quorum = 1
batchnorm = "{batchnorm}"
"""
    )
    return load(path)


class Away(Simulator):
    """A simulation in which some sites give no answer in some rounds."""

    def __init__(self, inner, away):
        super().__init__(inner.client, list(inner.sites.values()))
        self.away = away

    def ask(self, request, envelope):
        there = tuple(name for name in request.to if (name, envelope.round) not in self.away)
        answers = super().ask(request._replace(to=there), envelope)
        return answers | {name: Failure(name, "away") for name in request.to if name not in there}


def simulated(config, folder, away=frozenset()):
    setup = runner.prepare(config)
    list(runner.run(setup._replace(engine=Away(setup.engine, away)), folder))
    return folder


def same_run(got, want):
    """Two runs ended with the same bits; why somebody was away, and how good the model is where nobody was, aside."""
    told, expected = run_folder.lines(got), run_folder.lines(want)
    for line in told + expected:
        line["rejected"] = [(aside["site"], aside["request"]) for aside in line["rejected"]]
        for name in line["target"].split("+"):
            for scores in ("scores", "scores_average"):
                line.get(scores, {}).pop(name, None)
    assert json.dumps(told) == json.dumps(expected)
    assert (got / "best.safetensors").read_bytes() == (want / "best.safetensors").read_bytes()
    states = [tree.flatten(checkpoint.load(home / "checkpoint.safetensors")[0]["state"]) for home in (got, want)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][path], states[1][path]) for path in states[1])


def submit(federation, path, out):
    return fedbeyond("submit", federation.folder, path, "--out", out).split(";")[0].removeprefix("run ").strip()


def test_an_undisturbed_run_is_that_of_the_simulator(federation, tmp_path):
    path, out = tmp_path / "run.toml", tmp_path / "out"
    # in the second round gaps are known and move the weights; after it, statistics are measured layer by layer
    config = asked(path, "fedsb(budget=2)+ga", rounds=2, batchnorm="reestimate")
    submit(federation, path, out)
    home = run_folder.path(out, config)
    until((home / "done").exists, *federation.members)
    first, second = run_folder.lines(home)
    assert first["rejected"] == second["rejected"] == [] and first["weights"] != second["weights"]
    same_run(home, simulated(config, tmp_path / "simulated"))


def test_a_run_goes_on_though_a_site_and_then_the_server_are_killed_in_the_middle_of_a_round(federation, tmp_path):
    path, out = tmp_path / "run.toml", tmp_path / "out"
    # private states; two requests a round, the second to one site
    config = asked(path, "scaffold+sha(evaluators=1)", LAST + 1, unseen=("painting", "sketch"))
    federation.agree(FEW)
    home, first = run_folder.path(out, config), submit(federation, path, out)

    def busy(kind, number, *names):
        return any(federation.busy(name, config, kind, number) for name in names)

    # the site: dead for a while, then kept out until Flower has noticed; the others go on
    until(lambda: busy("train", 1, "photo"), *federation.members)
    kill(federation.sites["photo"])
    assert busy("train", 1, "photo"), "it had answered"
    time.sleep(15)
    federation.sites["photo"] = federation.join("photo")

    # the server, when the first request of the last round is answered
    until(lambda: busy("sha_score", LAST, *FEW), *federation.members, seconds=2 * PATIENCE)
    kill(federation.link)
    assert len(run_folder.lines(home)) == LAST and not remaining(federation.folder / "server" / "flower")
    federation.link = federation.serve()
    if "running" in fedbeyond("status", federation.folder, first):  # as far as Flower knows, for a while
        fedbeyond("stop", federation.folder, first)
    second = submit(federation, path, out)
    until((home / "done").exists, *federation.members)

    away = {(aside["site"], line["round"]) for line in run_folder.lines(home) for aside in line["rejected"]}
    missed = [number for number in range(1, LAST) if ("photo", number) in away]
    assert missed[0] == 1 and away == {("photo", number) for number in missed}  # and took part in the last round
    same_run(home, simulated(config, tmp_path / "simulated", away))
    messages = [line for name in FEW for line in federation.messages(name, config) if line["direction"] == "in"]
    heard = Counter((line["round"], line["kind"]) for line in messages if "kind" in line)
    assert {kind: heard[0, kind] for kind in LETTERS} == LETTERS
    assert {kind: heard[LAST, kind] for kind in LETTERS} == {kind: 2 * n for kind, n in LETTERS.items()}  # played again
    assert all(heard[number, "sha_score"] == 1 for number in range(LAST))  # and no other
    assert "not admitted yet" in (federation.bundle("photo") / "join.txt").read_text()
    assert "finished:" in fedbeyond("status", federation.folder, first)
    said = fedbeyond("logs", federation.folder, second)
    assert said.count("round ") == 1 and f"round {LAST + 1} of {LAST + 1}: cartoon" in said
    assert f"takes no part: the federation has no site '{SPY}'" in said and federation.messages(SPY, config) == []
    if NGINX:  # sites know no other address
        passed = (federation.folder / "server" / "nginx-access.log").read_text()
        assert passed.count('POST /v1/fleet/push-object HTTP/1.1" 200') > len(messages)
