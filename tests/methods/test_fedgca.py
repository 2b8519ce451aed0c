"""FedGCA: its losses, its duals and what becomes of it when its parts are switched off."""

import math
from dataclasses import replace

import pytest
import torch
from pytest import approx
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import read
from fedbeyond.client import Local
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedgca import (
    PRESETS,
    agreement,
    attention,
    centre,
    class_consistency,
    consistent,
    divergence,
    fedgca,
    maps_and_logits,
)
from fedbeyond.optimizers import sgd
from fedbeyond.server import Round
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.ga import ga
from fedbeyond.wrappers.sha import sha
from support.asserts import assert_close, assert_equal, model
from support.by_hand import play_rounds, slope, weight

OFF = {"p": False, "pg": False, "m": False, "mg": False}  # FedDyn, if there are no views either


@pytest.fixture
def trusting(monkeypatch):
    """A model of one weight may well differ tenfold from site to site."""
    monkeypatch.setattr("fedbeyond.engine.gate.PARAMETERS_TIMES", math.inf)


def distributions(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(-1)


def test_three_rounds_of_the_dynamic_regulariser_by_hand(trusting):
    alpha, lr = 0.5, 0.1
    states = play_rounds(fedgca(views=0, alpha=alpha, **OFF, optimizer=sgd(lr)), rounds=3, epochs=2)
    w, dual, duals = 0.0, 0.0, {"a": 0.0, "b": 0.0}
    for state in states:
        ends = {}
        for site in duals:
            v = w
            for _ in range(2):
                v -= lr * (slope(v, site) + alpha * (v - w) - duals[site])
            ends[site] = v
            duals[site] -= alpha * (v - w)
        dual -= alpha / 2 * sum(v - w for v in ends.values())
        w = sum(ends.values()) / 2 - dual / alpha
        assert weight(state) == approx(sum(ends.values()) / 2, rel=1e-5)
        assert state["server"]["start"]["w"].item() == approx(w, rel=1e-5)
        assert state["server"]["dual"]["w"].item() == approx(dual, rel=1e-5)
    kept = states[-1]["clients"]["b"]["pending"]["private"]["dual"]["w"].item()
    assert kept == approx(duals["b"], rel=1e-5)


def test_sites_with_other_optima_end_at_the_minimum_of_their_mean_where_fedavg_does_not(trusting):
    def total(w):
        return slope(w, "a") + slope(w, "b")

    best = torch.tensor(0.0, dtype=torch.float64)
    for _ in range(200):
        best -= 0.5 * total(float(best))
    dyn = play_rounds(fedgca(views=0, alpha=0.2, **OFF, optimizer=sgd(0.2)), rounds=60, epochs=20)[-1]
    avg = play_rounds(fedavg("uniform", optimizer=sgd(0.2)), rounds=60, epochs=20)[-1]
    assert weight(dyn) == approx(float(best), abs=1e-4)
    assert abs(weight(avg) - float(best)) > 0.05


LIVELY = fedgca(optimizer=sgd(0.3, momentum=0.9))  # scores go up and down, so that sha's history counts


@pytest.mark.parametrize(
    "method", [fedgca(), ga(fedgca()), sha(LIVELY, beta=3.0)], ids=["fedgca", "fedgca+ga", "fedgca+sha"]
)
@pytest.mark.parametrize("asked", [None, 2])
def test_the_servers_dual_is_the_mean_of_the_sites(method, asked):
    federation = Simulator(method.client, toy.sites(method))
    state, _ = simulate(method, 8, federation=federation, asked=asked)
    kept = [
        client_state.get("pending", client_state)["private"]["dual"]
        for client_state in federation.client_states.values()
    ]
    assert_close(tree.flatten(tree.mean(kept, [1.0] * 3)), tree.flatten(state["server"]["dual"]))


def test_the_gradient_of_class_consistency(class_consistency=class_consistency):
    method = fedgca()
    (site, *_) = toy.sites(method)
    received = {"model": read(site.nets["model"])}
    dual = tree.map(torch.randn_like, received["model"]["params"])
    local = Local(site, received, {"dual": dual}, sgd())
    with torch.no_grad():
        for param in local.params.values():
            param.add_(0.3)
    class_consistency(0.7)(local, None).backward()
    for name, param in local.params.items():
        drift = param.detach() - received["model"]["params"][name]
        torch.testing.assert_close(param.grad, 0.7 * drift - dual[name])


def test_without_its_parts_it_is_uniform_fedavg_to_the_bit():
    assert_equal(model(fedgca(alpha=0.0, beta=0.0, views=0)), model(fedavg("uniform")))


def test_the_model_that_comes_out_is_the_mean_or_as_printed_the_corrected_one():
    mean, corrected = (simulate(fedgca(output=output), 2)[0]["server"] for output in ("mean", "corrected"))
    assert_equal(tree.flatten(corrected["start"]), tree.flatten(corrected["model"]["params"]))
    lifted = tree.sub(mean["model"]["params"], tree.scale(1 / 0.1, mean["dual"]))
    assert_close(tree.flatten(lifted), tree.flatten(mean["start"]))


def test_views_alone_are_cross_entropy_over_all_views():
    method = registry.build("fedgca(alpha=0, p=false, pg=false, m=false, mg=false)")
    plain = registry.build("fedavg(weighting=uniform)")
    assert_equal(model(method), model(replace(plain, augment=method.augment)))


def test_agreement_as_printed_by_hand():
    ours = torch.tensor([[[0.7, 0.3]], [[0.5, 0.5]]])  # two views of one image
    theirs = torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]])
    middle = torch.tensor([0.7, 0.3])
    want = sum(F.binary_cross_entropy(middle, view[0], reduction="sum") for view in ours)
    torch.testing.assert_close(agreement([ours, theirs], "bce", False), want)
    kl = sum((view[0] * (view[0] / middle).log()).sum() for view in ours)
    torch.testing.assert_close(agreement([ours, theirs], "kl", False), kl)
    kl += sum((view[0] * (view[0] / middle).log()).sum() for view in theirs)
    torch.testing.assert_close(agreement([ours, theirs], "js", False), kl / 2)


# three views (J = 2) of two images in two classes, or places: on the second all agree for sure
OURS = torch.tensor([[[0.8, 0.2], [1.0, 0.0]], [[0.6, 0.4], [1.0, 0.0]], [[0.4, 0.6], [1.0, 0.0]]])
THEIRS = torch.tensor([[0.6, 0.4], [1.0, 0.0]]).expand(3, 2, 2)  # so that the mean is (0.6, 0.4)


def test_the_losses_are_summed_over_views_and_averaged_over_images_as_printed():
    # Eq. 2: each of two classes gives -(1.8 log 0.6 + 1.2 log 0.4), 1.8 and 1.2 being sums over the three views
    assert float(agreement([OURS, THEIRS], "bce", False)) == approx(4.0380700 / 2, rel=1e-5)
    # Eq. 3: 0.8 log(0.8/0.6) + 0.2 log(0.2/0.4), nothing, and 0.4 log(0.4/0.6) + 0.6 log(0.6/0.4)
    want = (0.0915163 + 0.0 + 0.0810930) / 2
    assert float(divergence(OURS, centre([OURS, THEIRS], False))) == approx(want, rel=1e-5)
    assert float(agreement([OURS, THEIRS], "kl", False)) == approx(want, rel=1e-5)
    assert float(agreement([OURS, THEIRS], "js", False)) == approx(want / 2, rel=1e-5)  # theirs are at the mean


@pytest.mark.parametrize(("pg", "mg"), [(True, True), (False, True), (True, False), (False, False)])
def test_the_whole_loss_by_hand_view_by_view(pg, mg, beta=0.7):
    method = fedgca(beta=beta)  # J = 2
    (site, *_) = toy.sites(method)
    guide = toy.shared(method)["model"]
    other = {"params": tree.map(lambda leaf: leaf + 0.2, guide["params"]), "buffers": guide["buffers"]}
    local = Local(site, {"model": other, "start": guide["params"]}, {}, sgd())
    batch = next(iter(site.batches()))
    assert len(batch.views) == 2
    views = [batch.x, *batch.views]
    loss = consistent(beta, True, pg, True, mg, "bce", False)(local, batch)
    together = torch.cat(views)  # BatchNorm: all views in one batch
    looks = [net.maps_and_logits(together) for net in (local.net, local.guide)]
    guesses = [scores.softmax(1).unflatten(0, (3, -1)) for _, scores in looks]
    heads = [net.head.weight[batch.y.repeat(3)] for net in (local.net, local.guide)]
    maps = [(head[:, :, None, None] * seen).sum(1) for head, (seen, _) in zip(heads, looks, strict=True)]
    places = [some.flatten(1).softmax(1).unflatten(0, (3, -1)) for some in maps]
    count, want = len(batch.y), 0.0
    for image, label in enumerate(batch.y.tolist()):
        p_mean = sum(some[view, image] for some in guesses[: 1 + pg] for view in range(3)) / (3 + 3 * pg)
        m_mean = sum(some[view, image] for some in places[: 1 + mg] for view in range(3)) / (3 + 3 * mg)
        for view in range(3):
            p, m = guesses[0][view, image], places[0][view, image]
            want -= p[label].log() / 3  # Eq. 1: an expectation over views
            want -= beta * (p * p_mean.log() + (1 - p) * (1 - p_mean).log()).sum()  # Eq. 2: a sum
            want += beta * (m * (m / m_mean).log()).sum()  # Eq. 3: a sum
    torch.testing.assert_close(loss, want / count, rtol=1e-4, atol=1e-5)


def test_presets_have_the_papers_numbers_and_the_model_of_its_algorithm():
    assert PRESETS == {
        "paper": {"alpha": 0.1, "beta": 0.1, "output": "corrected"},  # figure 3, Digits
        "pacs": {"alpha": 10.0, "beta": 8.0, "output": "corrected"},  # figure 3, PACS
    }


def test_divergences_are_zero_where_all_agree_and_the_printed_form_is_where_all_are_sure():
    same = distributions(1, 5, 4).expand(3, -1, -1)
    for form in ("kl", "js"):
        assert float(agreement([same, same], form, False)) == approx(0, abs=1e-6)
    assert float(agreement([same, same], "bce", False)) > 0.1  # it sharpens as well
    scores = (30.0 * F.one_hot(torch.arange(5) % 4, 4).float()).requires_grad_()
    sure = scores.softmax(-1).expand(3, -1, -1)
    agreement([sure], "bce", False).backward()
    assert float(scores.grad.abs().max()) < 1e-5


def test_the_mean_passes_gradients_unless_detached():
    for detach in (False, True):
        ours = distributions(2, 3, 4).requires_grad_()
        assert centre([ours], detach).requires_grad is not detach


def test_attention_is_the_class_activation_map():
    net, x, y = toy.tiny(toy.TASK), torch.randn(4, 3, 6, 6), torch.tensor([0, 2, 1, 1])
    maps, scores = net.maps_and_logits(x)
    torch.testing.assert_close(scores, net.head(maps.mean((2, 3))))
    places = attention(net, maps, scores, y)
    by_hand = sum(net.head.weight[y[1], channel] * maps[1, channel] for channel in range(maps.shape[1]))
    torch.testing.assert_close(places[1], by_hand.flatten().softmax(0))
    raised = maps + 5.0 / net.head.weight[y].sum(1)[:, None, None, None]  # five more on the map of the true class
    torch.testing.assert_close(attention(net, raised, scores, y), places)


def test_attention_by_slopes_is_that_by_weights_where_the_head_weighs_maps():
    net, x, y = toy.tiny(toy.TASK).eval(), torch.randn(4, 3, 6, 6), torch.tensor([0, 2, 1, 1])
    want = attention(net, *net.maps_and_logits(x), y)
    net.attentive = False
    for trained in (True, False):
        places = attention(net, *maps_and_logits(net, x, trained), y)
        torch.testing.assert_close(places, want)
    places.square().sum().backward()  # twice differentiable


def test_a_network_whose_head_weighs_no_maps_is_trained_all_the_same():
    class Deep(toy.Classifier):
        attentive = False

        def __init__(self, body):
            super().__init__(body, 5, 3)
            self.between = torch.nn.Linear(4 * 36, 5)

        def pooled(self, maps):
            return self.between(maps.flatten(1)).tanh()

    method = fedgca(beta=1.0)
    task = toy.TASK._replace(network=lambda task: Deep(toy.tiny(task).body))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "TASK", task)
        ours, off = (model(fedgca(beta=1.0, **some)) for some in ({}, {"m": False, "mg": False}))
    assert set(method.networks(task)) == {"model", "guide"}
    assert any(not torch.equal(ours[name], off[name]) for name in ours)


def test_sites_start_from_the_corrected_model_and_ask_the_mean():
    (site, *_) = toy.sites(fedgca())
    state = simulate(fedgca(), 2)[0]["server"]
    request = next(fedgca().server.round(state, Round(2, 3, ("east",), ("east",))))
    local = Local(site, request.body, {}, sgd())
    assert_equal(read(local.net)["params"], state["start"])
    assert_equal(tree.flatten(read(local.guide)), tree.flatten(state["model"]))
    assert any(not torch.equal(state["start"][name], state["model"]["params"][name]) for name in state["start"])


def test_a_divergence_of_maps_does_not_change_when_a_constant_is_added_to_one():
    maps = torch.randn(2, 3, 25)
    middle = maps.softmax(2).mean(0)
    before = divergence(maps.softmax(2), middle)
    torch.testing.assert_close(divergence((maps + 4.0).softmax(2), middle), before)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="pg adds the received model to p"):
        fedgca(p=False)
    with pytest.raises(ConfigError, match="mg to m"):
        fedgca(m=False)
