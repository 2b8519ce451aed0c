"""What sites compute is counted as torch counts it, and counting changes nothing."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedbeyond import tree
from fedbeyond.engine.flops import CountingEngine, FlopCounter
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.experiment import registry
from fedbeyond.optimizers import sgd
from fedbeyond.server import Envelope, Failure, Request, Round
from fedbeyond.testing import toy

METHODS = (
    "fedavg", "fedprox", "scaffold+ga", "fedgca", "fedadg(classify=1, align=1)", "fedsam", "moon", "perfedavg",
    "feddag(width=4, warmup=0)", "fedsr", "fediir", "harmofl", "csac(pretrain=1, width=4)", "fedbn", "jigen",
    "ddaig(width=4, warmup=0)", "fccl(images=16, batch=8, pretrain=1)", "erm", "fedavg+rc",
)  # fmt: skip


def played(name, carried):
    """Two rounds of a method on the toy sites, over the simulator as `carried` wraps it: all that there is after it."""
    method = registry.build(name, optimizer=sgd(lr=0.05, momentum=0.9))
    simulator, gate = Simulator(method.client, toy.sites(method)), toy.gate(method)
    transport, clients = carried(simulator), simulator.clients
    state = start(method, clients, toy.shared(method))
    round_log = []
    for number in range(2):
        state, happened = play(method, state, Round(number, 2, clients, clients, 0), transport, gate)
        round_log.append(happened)
    return {"state": state, "clients": simulator.client_states}, round_log, transport


@pytest.mark.parametrize("name", METHODS)
def test_results_are_the_same_to_the_bit_with_and_without_the_counter(name):
    plain, before, _ = played(name, lambda simulator: simulator)
    counted, after, transport = played(name, CountingEngine)
    one, other = tree.flatten(plain), tree.flatten(counted)
    assert one.keys() == other.keys() and before == after
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert all(transport.flops[site] > 0 for site in transport.clients)


@pytest.mark.parametrize("name", ["fedavg", "fedgca", "fedsr"])
def test_what_is_counted_is_what_torch_counts(name):
    with FlopCounterMode(display=False) as torch_counts:
        played(name, lambda simulator: simulator)
    assert sum(played(name, CountingEngine)[2].flops.values()) == torch_counts.get_total_flops()


def test_a_linear_layer_forward_and_backward_by_hand():
    net, x = nn.Linear(5, 3), torch.randn(4, 5)
    with FlopCounter() as tally:
        net(x).sum().backward()
    assert tally.total == 2 * 4 * 5 * 3 * 2  # x w forward; of the gradients, that of w alone is asked for


def test_numbers_sent_are_those_of_the_replies():
    (_, round_log, transport) = played("fedavg", CountingEngine)
    model = toy.shared(registry.build("fedavg"))["model"]
    each = sum(leaf.numel() for leaf in tree.leaves(model))
    assert transport.sent == dict.fromkeys(transport.clients, 2 * each) and len(round_log) == 2


def test_a_site_that_fails_is_passed_on_and_sends_nothing():
    class Broken:
        clients = ("a",)

        def ask_counting(self, request, envelope):
            return ((name, Failure(name, "no power"), 0) for name in request.to)

    transport = CountingEngine(Broken())
    assert transport.ask(Request("train", {}, ("a",)), Envelope(0, 0, {})) == {"a": Failure("a", "no power")}
    assert transport.sent["a"] == transport.flops["a"] == 0
