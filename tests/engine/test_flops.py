"""What sites compute is counted as torch counts it, and counting changes nothing."""

from collections import Counter
from functools import partial

import pytest
import torch
from pytest import approx
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedbeyond import tree
from fedbeyond.engine.flops import FlopCounter
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.engine.workers import Workers
from fedbeyond.experiment import registry
from fedbeyond.optimizers import sgd
from fedbeyond.server import Envelope, Request, Round
from fedbeyond.testing import toy
from support.method_settings import SMALL, combined

METHODS = [*(SMALL.get(name, name) for name in registry.REGISTRY["methods"]), "scaffold+ga", "fedavg+rc", "fedavg+am"]
DRAWN = {"coral": 0.01, "rsc": 0.01}  # equal batches cost these more or less, as numbers are drawn; by what share
SIZES = {"east": 20, "south": 20, "west": 13}  # batches of 8, 8 and 4; 8, 8 and 4; 8 and 5 images


class CountedByTorch(Simulator):
    """A simulator that counts all batches, by torch's own counter."""

    def __init__(self, client, sites):
        super().__init__(client, sites)
        self.counts = Counter()

    def count_flops(self):
        self.counts.clear()
        return self.counts

    def _answer(self, name, request, envelope):
        with FlopCounterMode(display=False) as counter:
            reply = super()._answer(name, request, envelope)
        self.counts[name] += counter.get_total_flops()
        return reply


def run_rounds(name, make_engine=Simulator, count=True):
    """Run two rounds of a method on toy sites; return state, logs, and the operations of the last one."""
    method = registry.build(name, optimizer=sgd(lr=0.05, momentum=0.9))
    engine, gate = make_engine(method.client, toy.sites(method, SIZES)), toy.gate(method, SIZES)
    flops, clients = {}, engine.clients
    state = start(method, clients, toy.shared(method))
    round_logs = []
    for number in range(2):
        if count and number == 1:
            flops = engine.count_flops()
        state, round_log = play(method, state, Round(number, 2, clients, clients, 0), engine, gate)
        round_logs.append(round_log)
    engine.close()
    return {"state": state, "clients": engine.state()}, round_logs, flops


@pytest.mark.parametrize("name", combined(METHODS))
def test_counting_one_batch_of_a_size_finds_what_torch_counts_on_all_and_changes_nothing(name):
    plain, before, _ = run_rounds(name, count=False)
    counted, after, flops = run_rounds(name)
    one, other = tree.flatten(plain), tree.flatten(counted)
    assert one.keys() == other.keys() and before == after
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert flops == approx(run_rounds(name, CountedByTorch)[2], rel=DRAWN.get(name, 0)) and min(flops.values()) > 0


def test_workers_count_what_the_simulator_counts():
    workers = partial(Workers, count=2)
    assert run_rounds("scaffold+ga", workers)[2] == run_rounds("scaffold+ga")[2]


def test_only_one_batch_of_each_size_is_slowed_by_counting(monkeypatch):
    """Three sites with batches of 8, 8, 4 or 8, 5: three sizes; the rest of the batches run as always."""
    counted = []
    switch = FlopCounter.switch

    def noted(counter, active):
        counted.append(active)
        switch(counter, active)

    monkeypatch.setattr(FlopCounter, "switch", noted)
    method = registry.build("fedavg")
    engine = Simulator(method.client, toy.sites(method, SIZES))
    engine.count_flops()
    play(
        method, start(method, engine.clients, toy.shared(method)), Round(0, 2, engine.clients, engine.clients, 0),
        engine, toy.gate(method, SIZES),
    )  # fmt: skip
    assert counted.count(False) - len(SIZES) == 5 and len(engine.flops.by_batch) == 3  # of eight batches


def test_a_linear_layer_forward_and_backward_by_hand():
    net, x = nn.Linear(5, 3), torch.randn(4, 5)
    with FlopCounter() as counter:
        net(x).sum().backward()
    assert counter.total == 2 * 4 * 5 * 3 * 2  # x w forward; of the gradients, that of w alone is requested


def test_a_site_that_fails_in_a_batch_leaves_counting_as_it_was():
    def fails(site, received, private):
        for number, _ in enumerate(site.batches()):
            if number == 2:  # not counted any more
                raise RuntimeError("no power")

    client = registry.build("fedavg").client._replace(handlers={"train": fails})
    engine = Simulator(client, toy.sites(registry.build("fedavg"), SIZES))
    flops = engine.count_flops()
    for number in range(2):
        answers = engine.ask(Request("train", {}, ("east",)), Envelope(number, number, {}))
        assert answers["east"].reason == "RuntimeError: no power"
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None and flops["east"] == 0
    assert "batches" not in vars(engine.sites["east"])
