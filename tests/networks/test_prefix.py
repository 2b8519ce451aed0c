"""A network is cut where training begins: the first half is constant for an image, and both are the network."""

import pytest
import torch
from torch import nn

from fedbeyond.classifier import Task, read
from fedbeyond.experiment import registry
from fedbeyond.experiment.build import networks
from fedbeyond.networks.frozen import frozen_part, install
from fedbeyond.networks.own import classifier, factory_of
from fedbeyond.networks.part import train_part
from fedbeyond.networks.prefix import Tail, tail_of
from fedbeyond.testing import toy


def built(part, network="convnet(width=2)", method="fedavg", shape=(3, 64, 64), cache=False):
    make = registry.make_one("networks", network) if isinstance(network, str) else network
    chosen = registry.make_one("parts", part)._replace(cache=cache)
    return networks(train_part(registry.build(method), chosen), Task(tuple("abcdefg"), shape, make, 3), 0, "cpu")[
        "model"
    ]


def inputs(shape, images=4):
    x = torch.rand(images, *shape) * 2 - 1
    return x.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else x


@pytest.mark.parametrize(
    ("network", "part", "shape"),
    [
        ("convnet(width=2)", "head", (8,)),
        ("convnet(width=2)", "last", (8, 8, 8)),
        ("resnet18", "head", (512,)),
        ("resnet18", "last", (256, 4, 4)),
        ("mobilenet_v2", "head", (1280,)),  # before its dropout
        ("mobilenet_v2", "last", (96, 4, 4)),
        ("alexnet", "head", (4096,)),
        ("vit_b_32", "last", (5, 768)),  # tokens
        ("mlp(hidden=[4, 5])", "head", (5,)),
        ("mlp(hidden=[4, 5])", "last", (4,)),
    ],
)
def test_both_halves_together_are_the_network(network, part, shape):
    size = (6,) if "mlp" in network else (3, 64, 64)
    net = built(part, network, shape=size)
    tail = tail_of(net, size, set())
    assert isinstance(tail, Tail) and tail.cut.shape == shape
    x = inputs(size)
    with torch.no_grad():
        rows = tail.prefix(x)
        assert rows.shape[1:] == shape
        assert torch.equal(tail.eval()(rows), net.eval()(x)) and torch.equal(tail.features(rows), net.features(x))
    assert (
        read(tail)["params"].keys() == read(net)["params"].keys()
        and frozen_part(tail).keys() == frozen_part(net).keys()
    )


def test_maps_are_computed_by_the_rest_if_they_are_needed():
    net = built("head")
    tail, x = tail_of(net, (3, 64, 64), {"maps", "pooled"}), inputs((3, 64, 64))
    assert tail.cut.shape == (8, 8, 8) and tail.provides == {"features", "maps", "pooled"}
    rows = tail.prefix(x)
    assert torch.equal(tail.maps(rows), net.maps(x)) and torch.equal(tail.pooled(tail.maps(rows)), net.features(x))
    assert tail_of(net, (3, 64, 64), set()).provides == {"features"}
    vision = built("head", "vit_b_32")  # whose features are no average of its maps
    assert tail_of(vision, (3, 64, 64), {"maps"}) is vision


def test_dropout_before_a_head_is_computed_anew_in_every_round():
    tail = tail_of(built("head", "mobilenet_v2"), (3, 64, 64), set()).train()
    rows = tail.prefix(inputs((3, 64, 64)))
    assert torch.equal(rows, rows.clone()) and not torch.equal(tail(rows), tail(rows))
    assert torch.equal(tail.eval()(rows), tail(rows))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.first(x)
        return self.second(x + torch.rand_like(x))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        one, other = self.first(x), self.second(x)
        return self.third(one) + other


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.first(x)
        return self.second(x) if x.mean() > 0 else self.second(-x)


class Shifted(nn.Module):
    """It has a parameter of its own before the cut."""

    def __init__(self):
        super().__init__()
        self.shift, self.first, self.second = nn.Parameter(torch.ones(3, 1, 1)), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.second(self.first(x + self.shift.expand(x.shape[0], -1, -1, -1)))


class Writing(nn.Module):
    """Its trained half writes into what it gets."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.first(x)
        return x.add_(self.second(x))


def test_a_batch_is_not_changed_by_a_network_that_writes_into_its_input():
    net = built("last", classifier(Writing, stages=["first"]))
    tail, x = tail_of(net, (3, 8, 8), set()), inputs((3, 8, 8))
    with torch.no_grad():
        rows = tail.prefix(x)
        before = rows.clone()
        assert torch.equal(tail(rows), net(x)) and torch.equal(rows, before)


def test_a_random_function_is_after_the_cut():
    net = built("last", classifier(Noisy, stages=["first"]))
    tail = tail_of(net, (3, 8, 8), set())
    assert tail.cut.shape == (4, 8, 8)
    rows = tail.prefix(inputs((3, 8, 8)))
    assert not torch.equal(tail.eval()(rows), tail(rows))


@pytest.mark.parametrize(("body", "stage"), [(Branching, "second"), (Deciding, "first")])
def test_a_network_that_cannot_be_cut_gets_images(body, stage):
    """Two values reach the trained part, or the code depends on values."""
    net = built("last", classifier(body, stages=[stage]), cache=True)
    assert not isinstance(net, Tail) and net(inputs((3, 8, 8))).shape == (4, 7)


def test_a_module_that_gives_only_logits_is_cut_before_its_last_layer():
    tail = built("head", factory_of(toy.logits_only), shape=(3, 6, 6), cache=True)
    assert isinstance(tail, Tail) and tail.cut.shape == (4,) and tail.provides == set()
    assert tail(torch.rand(2, 4)).shape == (2, 7)


def test_parts_without_a_frozen_beginning_are_not_cut():
    for part in ("norm", "lora(targets=conv)"):
        assert not isinstance(built(part, cache=registry.make_one("parts", part).cache), Tail)


def test_a_tail_sees_numbers_that_are_installed_later_and_follows_its_network():
    make = classifier(Shifted, stages=["first"])
    tail, other = built("last", make, cache=True), built("last", make)
    assert set(frozen_part(tail)) == {"body.shift", "body.first.weight", "body.first.bias"}
    x = inputs((3, 64, 64))
    for tensor in frozen_part(other).values():
        tensor.mul_(1.5)
    tail.prefix(x)  # the halves exist now
    install(tail, frozen_part(other))
    assert torch.equal(tail.prefix(x), tail_of(other, (3, 64, 64), set()).prefix(x))
    assert tail.double().prefix(x.double()).dtype == torch.float64
