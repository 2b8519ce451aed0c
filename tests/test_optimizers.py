"""Optimizers that look twice, that remember, and learning rates that change with the rounds."""

import pytest
import torch
from torch import nn

from fedbeyond.classifier import read
from fedbeyond.client import descend, make_optimizer
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.optimizers import adam, constant, cosine, recall, remember, sam, sgd, step
from fedbeyond.testing import toy
from support.asserts import assert_equal, model


def bowl(w):
    return (w * w * torch.tensor([1.0, 4.0])).sum() / 2


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sgd(0.1, 0.9, 0.01), lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)),
        (adam(0.1, 0.01), lambda params: torch.optim.Adam(params, lr=0.1, weight_decay=0.01)),
    ],
)
def test_optimizers_are_torchs_own_to_the_bit(ours, theirs):
    ends = []
    for make in (ours, theirs):
        w = nn.Parameter(torch.tensor([3.0, 1.0]))
        made = make([w])
        for _ in range(3):
            descend(made, lambda w=w: bowl(w))
        made.load_state_dict(made.state_dict())
        descend(made, lambda w=w: bowl(w))
        ends.append(w.detach())
    assert torch.equal(*ends) and isinstance(made, torch.optim.Optimizer)


def test_sam_follows_the_gradient_from_uphill():
    w = nn.Parameter(torch.tensor([3.0, 1.0]))
    made = sam(rho=0.5, lr=0.1)([w])
    slope = torch.tensor([3.0, 4.0])  # of the bowl, of length 5
    climbed = torch.tensor([3.0, 1.0]) + 0.5 * slope / 5
    descend(made, lambda: bowl(w))
    torch.testing.assert_close(w.detach(), torch.tensor([3.0, 1.0]) - 0.1 * climbed * torch.tensor([1.0, 4.0]))


def test_sam_at_rest_stays_at_rest():
    w = nn.Parameter(torch.zeros(2))
    descend(sam(rho=0.5, lr=0.1)([w]), lambda: bowl(w))
    assert w.detach().tolist() == [0, 0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sam_without_rho_is_sgd_to_the_bit(momentum):
    options = {"momentum": momentum, "weight_decay": 0.01}
    assert_equal(model(fedavg(optimizer=sam(rho=0.0, **options))), model(fedavg(optimizer=sgd(**options))))


def test_the_second_look_leaves_running_statistics_alone():
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    x, looks = torch.randn(4, 3, 5, 5), []

    def loss():
        looks.append(net[1].num_batches_tracked.item())
        return net(x).square().mean()

    descend(sam(rho=0.1)(net.parameters()), loss, net)
    assert looks == [0, 1] and net[1].num_batches_tracked == 1 and net[1].track_running_stats


def test_descend_moves_only_what_its_optimizer_holds():
    one, other = nn.Linear(3, 3), nn.Linear(3, 1)
    before = read(other)
    descend(sgd(0.1)(one.parameters()), lambda: other(one(torch.ones(2, 3))).mean(), one)
    assert_equal(before["params"], read(other)["params"])
    assert other.weight.grad is None and one.weight.grad is not None


@pytest.mark.parametrize("optimizer", [sgd(0.1, momentum=0.9), adam(0.1), sgd(0.1)])
def test_what_an_optimizer_remembers_can_be_kept_in_a_tree(optimizer):
    w, v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    whole = optimizer([w])
    for _ in range(4):
        descend(whole, lambda: bowl(w))
    kept = {}
    for _ in range(2):  # two steps, forgotten and recalled, and two more
        part = optimizer([v])
        recall(part, kept)
        for _ in range(2):
            descend(part, lambda: bowl(v))
        kept = remember(part)
    assert torch.equal(w, v)


def test_schedules():
    assert constant()(0.9) == 1
    assert [step()(played) for played in (0.0, 0.79, 0.8, 0.99)] == [1, 1, 0.1, 0.1]
    assert cosine()(0) == 1 and cosine()(0.5) == pytest.approx(0.5) and cosine(0.1)(1) == pytest.approx(0.1)


def test_a_site_trains_at_the_pace_of_the_round():
    (site, *_) = toy.sites(fedavg())
    site.rounds, site.schedule = 10, step()
    rates = []
    for number in (0, 7, 8):
        site.reseed(number, "train")
        rates.append(make_optimizer(sgd(0.5), [nn.Parameter(torch.ones(1))], site, 0.1).param_groups[0]["lr"])
    assert rates == pytest.approx([0.05, 0.05, 0.005])
