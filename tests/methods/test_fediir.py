"""FedIIR: the gradient of the head that sites send, what the server makes of it, and the pull towards it."""

import pytest
import torch
from pytest import approx
from torch.nn import functional as F

from fedbeyond.batch import Batch
from fedbeyond.classifier import read
from fedbeyond.client import Local
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fediir import fediir, invariant, measure
from fedbeyond.optimizers import plain_sgd
from fedbeyond.server import Reply, Round
from fedbeyond.testing import toy
from fedbeyond.testing.faults import Faulty
from fedbeyond.testing.laws import simulate
from support.asserts import assert_equal, model


def closed_form(net, x, y):
    """The gradient of a linear head: what it says too much of each class, times what it sees; the mean over images."""
    h = net.features(x)
    over = (h @ net.head.weight.T + net.head.bias).softmax(1) - F.one_hot(y, 3)
    return over.T @ h / len(y), over.mean(0)


def test_a_site_tells_the_gradient_of_the_head_at_the_received_model():
    method = fediir()
    site = toy.sites(method, {"east": 20})[0]
    received = {"model": read(site.nets["model"])}
    reply, private = measure(site.reseed(0, "slope"), received, {})
    # 20 images in batches of 8, 8 and 4, in the order that the site's stream gives
    batches = list(site.reseed(0, "slope").batches(1))
    assert [len(batch.y) for batch in batches] == [8, 8, 4] and private == {}
    site.nets["model"].train()
    found = [closed_form(site.nets["model"], batch.x, batch.y) for batch in batches]
    for place, name in enumerate(("weight", "bias")):
        want = sum(len(batch.y) * one[place] for batch, one in zip(batches, found, strict=True)) / 20
        torch.testing.assert_close(reply["slope"][name], want.detach())


def test_measuring_leaves_running_statistics_alone():
    site = toy.sites(fediir())[0]
    before = read(site.nets["model"])
    measure(site.reseed(0, "slope"), {"model": before}, {})
    after = read(site.nets["model"])
    assert all(torch.equal(before["buffers"][name], after["buffers"][name]) for name in before["buffers"])


def test_a_batch_and_its_gradient_by_hand():
    site = toy.sites(fediir())[0]
    target = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    local = Local(site, {"model": read(site.nets["model"]), "slope": target}, {}, plain_sgd)
    x, y = torch.rand(6, 3, 6, 6), torch.tensor([0, 1, 2, 2, 1, 0])
    params = list(local.net.parameters())
    got = invariant(0.8)(local, Batch(x, y))
    weight, bias = closed_form(local.net, x, y)
    gap = (weight - target["weight"]).square().sum() + (bias - target["bias"]).square().sum()
    want = F.cross_entropy(local.net(x), y) + 0.8 * gap  # no gradient of a gradient: differentiated as it stands
    torch.testing.assert_close(got, want)
    for ours, theirs in zip(torch.autograd.grad(got, params), torch.autograd.grad(want, params), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("from_zero", [False, True])
def test_the_server_follows_the_mean_over_images(from_zero):
    method, now = fediir(keep=0.9, from_zero=from_zero), Round(0, 9, ("a", "b"), ("a", "b"))
    state = {"model": {"params": {"w": torch.zeros(1)}, "buffers": {}}}
    followed = 0.0 if from_zero else None
    for one, other in ((1.0, 5.0), (2.0, 2.0), (0.0, 4.0)):
        conversation = method.server.round(state, now)
        request = next(conversation)
        assert request.kind == "slope" and list(request.body) == ["model"]
        slopes = {"a": (one, 3.0), "b": (other, 1.0)}  # a has three times the images
        replies = [Reply(n, {"slope": {"weight": torch.tensor([g])}}, size) for n, (g, size) in slopes.items()]
        request = conversation.send(replies)
        new = (3 * one + other) / 4
        followed = new if followed is None else 0.9 * followed + 0.1 * new
        assert request.kind == "train" and request.body["slope"]["weight"].item() == approx(followed)
        with pytest.raises(StopIteration) as end:
            conversation.send([Reply(n, {"model": state["model"]}, 1.0) for n in "ab"])
        state = end.value.value
        assert state["slope"]["weight"].item() == approx(followed)


def test_without_its_term_fediir_is_uniform_fedavg_to_the_bit():
    assert_equal(model(fediir(gamma=0.0)), model(fedavg("uniform")))
    assert list(fediir(gamma=0.0).sends) == ["train"]


def test_the_pull_brings_gradients_of_the_head_together():
    def spread(method):
        federation = Simulator(method.client, toy.sites(method))
        state, _ = simulate(method, rounds=6, federation=federation)
        told = [measure(site.reseed(9, "slope"), state["server"], {})[0]["slope"] for site in federation.sites.values()]
        weights = torch.stack([one["weight"] for one in told])
        return float((weights - weights.mean(0)).square().sum())

    assert spread(fediir(gamma=5.0, keep=0.0)) < 0.8 * spread(fedavg("uniform"))


def test_a_site_that_does_not_tell_its_gradient_still_trains():
    method = fediir()
    federation = Faulty(Simulator(method.client, toy.sites(method)), "north", 1, "stalls", "slope")
    _, round_log = simulate(method, federation=federation)
    assert [one["request"] for one in round_log[1]["rejected"]] == ["slope"] and len(round_log[1]["weights"]) == 3


def test_a_site_without_a_class_and_a_site_alone_go_on(monkeypatch):
    whole = toy.domains
    monkeypatch.setattr(
        toy,
        "domains",
        lambda sizes=toy.SIZES: {n: {p: (x, y % 2) for p, (x, y) in s.items()} for n, s in whole(sizes).items()},
    )
    state, _ = simulate(fediir(), sizes={"east": 9})
    assert all(bool(torch.isfinite(leaf).all()) for leaf in state["server"]["slope"].values())


def test_all_of_the_old_gradient_cannot_be_kept():
    with pytest.raises(ConfigError, match="keep=1"):
        registry.build("fediir(keep=1)")
