"""Replies that are taken in one by one give what they would have given all together, to the bit; and take no room."""

import json
import os
import subprocess
import sys

import pytest
import torch

from fedbeyond import tree
from fedbeyond.engine import aggregation
from fedbeyond.engine.simulator import Simulator
from fedbeyond.engine.workers import Workers
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.server import Failure, by_size, uniform
from fedbeyond.testing import toy
from fedbeyond.testing.laws import reference, simulate
from support.method_settings import SMALL
from support.paths import ROOT

SAVING = {"MALLOC_TRIM_THRESHOLD_": "2000000000", "MALLOC_MMAP_THRESHOLD_": "4194304"}  # as in docs/running.md


def folds(name):
    method = registry.build(name)
    return method.linear_aggregation and method.weighting in (by_size, uniform) and not method.pooled


SUMS = [name for name in (SMALL.get(name, name) for name in registry.REGISTRY["methods"]) if folds(name)]


class Watched:
    """A federation that is asked for answers one by one, or not at all."""

    def __init__(self, federation):
        self.federation, self.clients, self.asked = federation, federation.clients, []

    def ask(self, request, envelope):
        assert request.kind != "train", "all at once"
        return self.federation.ask(request, envelope)

    def stream(self, request, envelope):
        self.asked.append(request.to)
        return self.federation.stream(request, envelope)


def same(got, want):
    flat, other = tree.flatten(got), tree.flatten(want)
    return flat.keys() == other.keys() and all(torch.equal(flat[key], other[key]) for key in flat)


@pytest.mark.parametrize("name", SUMS)
def test_every_server_of_sums_gets_the_same_from_replies_that_nobody_keeps(name, monkeypatch):
    want = reference(lambda: registry.build(name)).state
    monkeypatch.setattr(aggregation, "MIN_CLIENTS", 1)
    method = registry.build(name)
    watched = Watched(Simulator(method.client, toy.sites(method)))
    state, _ = simulate(method, federation=watched)
    assert watched.asked and same(state, want)


def test_there_are_such_servers():
    assert len(SUMS) > 15 and "scaffold" in SUMS and not folds("fednova")


def test_workers_hand_over_answers_in_the_order_of_the_request(monkeypatch):
    want = reference(fedavg).state
    monkeypatch.setattr(aggregation, "MIN_CLIENTS", 1)
    method = fedavg()
    workers = Workers(method.client, toy.sites(method), 2)
    state, _ = simulate(method, federation=Watched(workers))
    workers.close()
    assert same(state, want)


class Swollen(Watched):
    """One of the sites sends numbers that are finite, and beyond belief."""

    def stream(self, request, envelope):
        self.asked.append(request.to)
        for name, answer in self.federation.stream(request, envelope):
            model = answer.body["model"]
            if name == "east":
                model = model | {"params": tree.scale(1e6, model["params"])}
            yield name, answer._replace(body={"model": model})

    def ask(self, request, envelope):
        return dict(self.stream(request, envelope))


@pytest.mark.parametrize("least", [1, 99])
def test_who_is_not_to_be_believed_is_left_out_though_it_was_taken_in(least, monkeypatch):
    monkeypatch.setattr(aggregation, "MIN_CLIENTS", least)
    sizes = {name: 12 for name in ("east", "north", "south", "west")}
    method = fedavg()
    swollen = Swollen(Simulator(method.client, toy.sites(method, sizes)))
    state, round_log = simulate(method, rounds=1, federation=swollen, sizes=sizes)
    assert [entry["site"] for entry in round_log[0]["rejected"]] == ["east"]
    others = tuple(name for name in sizes if name != "east")
    absent = Absent(Simulator(method.client, toy.sites(method, sizes)))
    want, _ = simulate(method, rounds=1, federation=absent, sizes=sizes)
    assert same(state["server"], want["server"])
    assert swollen.asked == [tuple(sizes)] + ([others] if least == 1 else [])


class Absent:
    """The same without that site, all at once."""

    def __init__(self, federation):
        self.federation, self.clients = federation, federation.clients

    def ask(self, request, envelope):
        return {
            name: Failure(name, "away") if name == "east" else answer
            for name, answer in self.federation.ask(request, envelope).items()
        }


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "at_most"), [({}, 6), (SAVING, 5)])
def test_a_round_of_many_sites_keeps_a_handful_of_models_not_one_of_each(setting, at_most):
    script = [sys.executable, ROOT / "benchmarks" / "speed" / "memory.py", "17", "1"]
    measured = json.loads(subprocess.run(script, check=True, capture_output=True, env=os.environ | setting).stdout)
    assert measured["clients"] == 17 and 3 < measured["models_above_the_data"] <= at_most
