"""CSAC: who counts how much in which layer, how features are compared, and what a site keeps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import Task, read, write
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import build, registry
from fedbeyond.methods.csac import KERNELS, Attention, csac, fuse, layer_norms, mmd, stages_and_logits
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.networks._convnet import convnet
from fedbeyond.optimizers import sgd
from fedbeyond.server import Reply, Round
from fedbeyond.testing import toy
from fedbeyond.testing.faults import FAULTS, Faulty
from fedbeyond.testing.laws import simulate
from support.asserts import assert_close, assert_equal, model


def replies(*weights):
    """Sites whose model has a first layer of two numbers and a second of one, with a running mean and a counter."""
    made = []
    for place, (a, b, c) in enumerate(weights):
        params = {"one.weight": torch.tensor([a]), "one.bias": torch.tensor([b]), "two.weight": torch.tensor([c])}
        buffers = {"one.mean": torch.tensor([10.0 * place]), "one.count": torch.tensor(place), "rest": torch.ones(1)}
        made.append(Reply("abc"[place], {"model": {"params": params, "buffers": buffers}}, 1.0))
    return made


def test_the_further_a_layer_is_from_the_mean_the_more_it_counts():
    # layer one: points (0, 0), (3, 0), (0, 3), mean (1, 1): distances sqrt 2, sqrt 5, sqrt 5
    # layer two: 0, 0, 3, mean 1: distances 1, 1, 2
    fused, told = fuse(replies((0.0, 0.0, 0.0), (3.0, 0.0, 0.0), (0.0, 3.0, 3.0)), "distance")
    near, far = (math.sqrt(n) / (math.sqrt(2) + 2 * math.sqrt(5)) for n in (2, 5))
    assert fused["params"]["one.weight"].item() == pytest.approx(3 * far)
    assert fused["params"]["one.bias"].item() == pytest.approx(3 * far)
    assert fused["params"]["two.weight"].item() == pytest.approx(3 * 2 / 4)
    assert fused["buffers"]["one.mean"].item() == pytest.approx((0 + 10 + 20) * far)  # as its layer
    assert fused["buffers"]["one.count"].item() == 2 and fused["buffers"]["rest"].item() == pytest.approx(1)
    assert {name: share.item() for name, share in told.items()} == pytest.approx(
        {"a": (near + 0.25) / 2, "b": (far + 0.25) / 2, "c": (far + 0.5) / 2}
    )


def test_uniform_fusion_is_the_mean():
    fused, told = fuse(replies((0.0, 0.0, 0.0), (3.0, 0.0, 0.0), (0.0, 3.0, 3.0)), "uniform")
    assert [leaf.item() for leaf in fused["params"].values()] == pytest.approx([1, 1, 1])
    assert [share.item() for share in told.values()] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("some", [[(1.0, 2.0, 3.0)], [(1.0, 2.0, 3.0)] * 3, [(0.0, 4.0, 2.0), (2.0, 0.0, 4.0)]])
def test_one_site_equal_sites_and_two_sites_count_alike(some):
    fused, told = fuse(replies(*some), "distance")
    assert [leaf.item() for leaf in fused["params"].values()] == pytest.approx([1, 2, 3])
    assert [share.item() for share in told.values()] == pytest.approx([1 / len(some)] * len(some))


def test_the_length_of_a_layer_is_over_all_its_numbers():
    params = {
        "body.0.weight": torch.tensor([[1.0, 2.0]]),
        "body.0.bias": torch.tensor([2.0]),
        "head.bias": -torch.ones(4),
    }
    assert layer_norms(params) == pytest.approx({"body.0": 3, "head": 2})


def by_hand(x, y):
    """The discrepancy from its definition, kernel by kernel, pair by pair."""
    x, y = np.asarray(x.tolist()), np.asarray(y.tolist())
    both = np.concatenate([x, y])
    scale = np.mean([((a - b) ** 2).sum() for a in both for b in both])
    total = 0.0
    for wide in (1 / 27, 1 / 9, 1 / 3, 1, 3):

        def mean(some, others, wide=wide):
            return np.mean([np.exp(-((a - b) ** 2).sum() / (2 * wide * scale)) for a in some for b in others])

        total += mean(x, x) + mean(y, y) - 2 * mean(x, y)
    return total


def test_the_discrepancy_is_its_definition():
    assert pytest.approx([1 / 27, 1 / 9, 1 / 3, 1, 3]) == KERNELS
    x, y = torch.randn(5, 4), torch.randn(5, 4) + 1
    assert mmd(x, y).item() == pytest.approx(by_hand(x, y), rel=1e-4)
    assert mmd(10 * x, 10 * y).item() == pytest.approx(mmd(x, y).item(), rel=1e-4)  # whatever the scale
    assert mmd(x, y + 5) > mmd(x, y) > mmd(x, x.flip(0)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("x", [torch.zeros(1, 3), torch.zeros(4, 3), torch.ones(1, 3)])
def test_a_discrepancy_of_one_image_or_of_equal_ones_is_finite(x):
    x = x.requires_grad_()
    value = mmd(x, torch.zeros_like(x))
    value.backward()
    assert bool(value.isfinite()) and bool(x.grad.isfinite().all())


def test_an_attention_weighs_levels_by_the_mean_energies_of_places_and_of_channels():
    """Energies between all pairs of places, or of channels, as matrices; the weights come from their means."""
    torch.manual_seed(0)
    shapes = [torch.Size((2, 8, 8)), torch.Size((3, 4, 4)), torch.Size((5, 2, 2))]
    attention = Attention(shapes, 6)
    maps, own = ([torch.randn(7, *shape) for shape in shapes] for _ in range(2))
    fit = [
        F.conv2d(F.avg_pool2d(m, m.shape[2] // 2), c.weight, c.bias) for m, c in zip(maps, attention.ours, strict=True)
    ]
    other = [
        F.conv2d(F.avg_pool2d(m, m.shape[2] // 2), c.weight, c.bias) for m, c in zip(own, attention.theirs, strict=True)
    ]
    place, channel = torch.zeros(3, 3), torch.zeros(3, 3)
    for i, one in enumerate(fit):
        for j, two in enumerate(other):
            q = attention.query[i](one.flatten(2).transpose(1, 2))  # image x place x channel
            k = attention.key[j](two.flatten(2).transpose(1, 2))
            place[i, j] = torch.bmm(q, k.transpose(1, 2)).mean()
            channel[i, j] = torch.bmm(one.flatten(2), two.flatten(2).transpose(1, 2)).mean()
    weights = (place.softmax(1) + channel.softmax(1)) / 2
    torch.testing.assert_close(attention.weights(fit, other), weights, rtol=1e-4, atol=1e-5)
    apart = sum(weights[i, j] * by_hand(fit[i].flatten(1), other[j].flatten(1)) for i in range(3) for j in range(3))
    assert attention(maps, own).item() == pytest.approx(apart.item(), rel=1e-3)


def test_all_of_an_attention_learns():
    torch.manual_seed(0)
    shapes = [torch.Size((2, 4, 4)), torch.Size((3, 2, 2))]
    attention = Attention(shapes, 4)
    maps, own = ([torch.randn(6, *shape) for shape in shapes] for _ in range(2))
    attention(maps, own).backward()
    assert all(
        float(part.weight.grad.abs().max()) > 0
        for part in (*attention.query, *attention.key, *attention.ours, *attention.theirs)
    )


def played(method, rounds=2):
    federation = Simulator(method.client, toy.sites(method))
    state, round_log = simulate(method, rounds, federation=federation)
    return (
        state,
        {name: client_state["pending"]["private"] for name, client_state in federation.client_states.items()},
        round_log,
    )


def one_stage(task):
    net = toy.tiny(task)
    net.stages = net.stages[-1:]
    return net


def test_a_batch_by_hand(monkeypatch):
    monkeypatch.setattr(toy, "TASK", toy.TASK._replace(network=one_stage))
    """One step on one batch: cross-entropy, the discrepancy of the one level and that of the scores."""
    method = csac(weight=0.7, width=3, optimizer=sgd(0.1))
    site = toy.sites(method, {"east": 8})[0]
    private = method.client.init(site.reseed(0, "init"))
    nets = method.networks(toy.TASK)
    received, own = {"model": read(nets["model"])}, read(nets["own"])
    reply, kept = method.client.handlers["train"](site.reseed(0, "train"), received, private | {"own": own})
    site.reseed(0, "train")
    ((x, y, *_),) = site.batches()

    def seen(net):
        maps = net.body(x)
        return maps, net.head(maps.mean((2, 3)))

    (maps, scores), (theirs, meant) = seen(nets["model"]), seen(nets["own"].eval())
    given = {name: leaf.clone().requires_grad_() for name, leaf in private["attention"]["params"].items()}
    one = F.conv2d(maps, given["ours.0.weight"], given["ours.0.bias"]).flatten(1)
    other = F.conv2d(theirs.detach(), given["theirs.0.weight"], given["theirs.0.bias"]).flatten(1)

    def apart(a, b):
        both = torch.cat((a, b))
        squares = (both[:, None] - both[None]).square().sum(2)
        total = 0.0
        for wide in (1 / 27, 1 / 9, 1 / 3, 1.0, 3.0):
            kernel = torch.exp(-squares / (2 * wide * squares.mean().detach()))
            total = total + kernel[:8, :8].mean() + kernel[8:, 8:].mean() - 2 * kernel[:8, 8:].mean()
        return total

    loss = F.cross_entropy(scores, y) + 0.7 * (apart(one, other) + apart(scores, meant.detach()))
    params = dict(nets["model"].named_parameters())
    learnt = {name: given[name] for name in given if name.startswith(("ours", "theirs"))}
    slopes = torch.autograd.grad(loss, [*params.values(), *learnt.values()], allow_unused=True, materialize_grads=True)
    stepped = {k: v - 0.1 * s for (k, v), s in zip((params | learnt).items(), slopes, strict=True)}
    assert_close(reply["model"]["params"], {name: stepped[name] for name in params})
    assert_close({name: kept["attention"]["params"][name] for name in learnt}, {name: stepped[name] for name in learnt})
    assert_close(reply["model"]["buffers"], dict(nets["model"].named_buffers()))
    assert_equal(tree.flatten(kept["own"]), tree.flatten(own))


def test_a_sites_own_model_is_made_once_and_nothing_private_leaves():
    _, early, _ = played(csac(pretrain=1, width=4), rounds=1)
    state, late, round_log = played(csac(pretrain=1, width=4), rounds=3)
    for name in early:
        assert_equal(tree.flatten(early[name]["own"]), tree.flatten(late[name]["own"]))
    attention = [tree.flatten(late[name]["attention"]["params"]) for name in ("east", "west")]
    assert all(not torch.equal(attention[0][name], attention[1][name]) for name in attention[0])
    assert {left.name for happened in round_log for left in happened["ledger"]} == {"model"}
    asked = [{left.request for left in happened["ledger"]} for happened in round_log]
    assert asked == [{"teach", "train"}, {"train"}, {"train"}]
    assert sum(share.item() for share in state["server"]["diagnostics"]["weights"].values()) == pytest.approx(1)


def conversation(method, state, clients, number=0):
    return method.server.round(state, Round(number, 9, tuple(clients), ("a", "b", "c")))


def test_the_first_fusion_is_of_the_models_that_sites_trained_by_themselves():
    method = csac()
    start = {"model": replies((9.0, 9.0, 9.0))[0].body["model"]}
    talk = conversation(method, method.server.init(start), "abc")
    request = next(talk)
    assert request.kind == "teach" and request.to == ("a", "b", "c") and request.body["model"] is start["model"]
    taught = replies((0.0, 0.0, 0.0), (3.0, 0.0, 0.0), (0.0, 3.0, 3.0))[:2]  # c fails
    request = talk.send(taught)
    assert request.kind == "train" and request.to == ("a", "b")
    assert_equal(request.body["model"]["params"], fuse(taught, "distance")[0]["params"])


def test_who_joins_later_makes_its_own_model_and_trains_the_fused_one_as_it_is():
    method = csac()
    model = replies((9.0, 9.0, 9.0))[0].body["model"]
    state = {"model": model, "taught": {"a": torch.ones(())}, "diagnostics": {"weights": {}}}
    talk = conversation(method, state, "ab", number=3)
    request = next(talk)
    assert request.kind == "teach" and request.to == ("b",)
    request = talk.send(replies((0.0, 0.0, 0.0), (3.0, 0.0, 0.0))[1:])
    assert request.kind == "train" and request.to == ("a", "b") and request.body["model"] is model
    with pytest.raises(StopIteration) as end:
        talk.send(replies((0.0, 0.0, 0.0), (3.0, 0.0, 0.0)))
    assert set(end.value.value["taught"]) == {"a", "b"}


def test_without_its_parts_it_is_uniform_fedavg():
    assert_close(model(csac(weight=0.0, fusion="uniform", pretrain=0)), model(fedavg("uniform")))


def test_without_calibration_it_needs_neither_attention_nor_stages():
    bare = csac(weight=0.0)
    assert set(bare.networks(toy.TASK)) == {"model"} and set(bare.client.init(None)) == set()


def test_a_network_without_stages_and_tables_are_refused_before_training():
    def blind(task):
        net = toy.tiny(task)
        net.stages = ()
        return net

    with pytest.raises(ConfigError, match="csac needs the maps of a network's early layers"):
        csac().networks(toy.TASK._replace(network=blind))
    table = Task(("no", "yes"), (5,), registry.make_one("networks", "mlp"))
    with pytest.raises(ConfigError, match="csac needs images"):
        build.networks(csac(), table, 0, "cpu")


@pytest.mark.parametrize("network", ["convnet(width=2)", "alexnet", "mobilenet_v2"])
def test_an_attention_fits_the_stages_of_a_network(network):
    task = Task(("a", "b"), (3, 64, 64), registry.make_one("networks", network))
    with torch.device("meta"):  # as `fedbeyond check` does
        nets = csac().networks(task)
    assert len(nets["attention"].ours) == len(nets["model"].stages) == 3 and nets["model"].training


def test_three_levels_and_a_tiny_batch_go_through():
    task = Task(("a", "b"), (3, 12, 12), convnet(width=2))
    net, attention = convnet(width=2)(task), csac(width=2).networks(task)["attention"]
    maps, scores = stages_and_logits(net.eval(), torch.rand(1, 3, 12, 12))
    assert [tuple(level.shape[1:]) for level in maps] == [(2, 6, 6), (4, 3, 3), (8, 2, 2)]
    assert scores.shape == (1, 2) and bool(attention(maps, maps).isfinite())
    assert not any(part._forward_hooks for part in net.modules())


def test_a_sites_attention_is_drawn_from_its_own_stream_whatever_was_there_before():
    method = csac(width=2)
    site = toy.sites(method)[0]
    torch.manual_seed(5)
    first = method.client.init(site)
    write(site.nets["attention"], tree.scale(3.0, first["attention"]))
    torch.manual_seed(5)
    assert_equal(tree.flatten(method.client.init(site)), tree.flatten(first))


def test_views_count_as_images():
    method = csac(pretrain=0, width=2)
    site = toy.sites(replace(method, augment=lambda b, rng: b._replace(views=(b.x.flip(3),))), {"east": 8})[0]
    private = method.client.init(site.reseed(0, "init")) | {"own": toy.shared(method)["model"]}
    reply, _ = method.client.handlers["train"](site.reseed(0, "train"), toy.shared(method), private)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(reply))


@pytest.mark.parametrize("name", ["csac(pretrain=1, width=2)", "fccl(images=8, batch=8, pretrain=1)"])
def test_a_site_that_goes_wrong_when_it_makes_its_own_model_is_as_good_as_absent_and_asked_again(name):
    def outcome(fault):
        method = registry.build(name)
        federation = Simulator(method.client, toy.sites(method))
        state, round_log = simulate(method, 2, federation=Faulty(federation, "north", 0, fault, "teach"))
        trained = [{left.client for left in happened["ledger"] if left.request == "train"} for happened in round_log]
        assert trained == [{"east", "west"}, {"east", "north", "west"}]
        return tree.flatten({"state": state, "clients": federation.client_states})

    want = outcome("absent")
    for fault in FAULTS:
        assert_equal(outcome(fault), want)
