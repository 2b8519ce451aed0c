"""ARFL, AFL, FedCSA and FedGMA: methods that do something of their own with what the sites send back."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from fedbeyond import tree
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.afl import afl, onto_simplex
from fedbeyond.methods.arfl import arfl, robust
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedcsa import fedcsa
from fedbeyond.methods.fedgma import fedgma
from fedbeyond.optimizers import sgd
from fedbeyond.server import Reply, Round
from fedbeyond.testing import toy
from fedbeyond.testing.faults import Faulty
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.ga import ga
from support.asserts import assert_close, assert_equal, model
from support.by_hand import SITES, play_rounds, slope, weight

ONE = sgd(lr=1.0)

loss = st.floats(0, 10, allow_nan=False)
size = st.integers(1, 1000)
several = st.lists(st.tuples(loss, size), min_size=1, max_size=6)
strength = st.floats(1e-3, 100)


def loss_at(w, site):
    """Of one image, with logit w x for class 1 and 0 for class 0."""
    x, y, _ = SITES[site]
    return math.log1p(math.exp(w * x)) - y * w * x


def told(losses, weights=None):
    weights = weights or {name: 1.0 for name in losses}
    return [Reply(name, {"loss": torch.tensor(value)}, weights[name]) for name, value in losses.items()]


# ARFL


@given(several, strength)
def test_arfls_weights_are_the_minimum_of_its_objective(sites, strength):
    losses, sizes = zip(*sites, strict=True)
    weights, penalty = robust(list(losses), list(sizes), strength), strength * sum(sizes)
    assert sum(weights) == approx(1) and min(weights) >= 0
    # convex on the simplex: at the minimum the slope is the same wherever weight is, and no less elsewhere
    slopes = [one + penalty * a / n for one, a, n in zip(losses, weights, sizes, strict=True)]
    lowest = min(slopes)
    for a, steep in zip(weights, slopes, strict=True):
        assert a == 0 or steep == approx(lowest, rel=1e-6, abs=1e-9)


@given(several, strength, st.data())
def test_no_other_weights_make_arfls_objective_smaller(sites, strength, data):
    losses, sizes = zip(*sites, strict=True)
    drawn = data.draw(st.lists(st.floats(1e-3, 1), min_size=len(sites), max_size=len(sites)))

    def objective(weights):
        far = sum(a * a / n for a, n in zip(weights, sizes, strict=True))
        return sum(a * one for a, one in zip(weights, losses, strict=True)) + strength * sum(sizes) / 2 * far

    ours = objective(robust(list(losses), list(sizes), strength))
    assert ours <= objective([one / sum(drawn) for one in drawn]) * (1 + 1e-9) + 1e-9


@given(several, strength)
def test_a_higher_loss_never_weighs_more_for_an_image(sites, strength):
    losses, sizes = zip(*sites, strict=True)
    weights = robust(list(losses), list(sizes), strength)
    ranked = sorted(zip(losses, (a / n for a, n in zip(weights, sizes, strict=True)), strict=True))
    for (low, more), (high, less) in pairwise(ranked):
        assert more >= less * (1 - 1e-9) or low == high


def test_arfls_weights_by_hand():
    # losses 1, 2, 9; sizes 1, 1, 2; lambda = 1 * 4:  eta = (1 + 2 + 4) / 2 = 3.5 < 9, so that the last is left out
    assert robust([1, 2, 9], [1, 1, 2], 1.0) == approx([2.5 / 4, 1.5 / 4, 0])
    # with lambda = 40 all count: eta = (1 + 2 + 18 + 40) / 4 = 15.25
    assert robust([9, 1, 2], [2, 1, 1], 10.0) == approx([2 * 6.25 / 40, 14.25 / 40, 13.25 / 40])
    assert robust([3.0, 1.0], [5, 7], 1e-300) == approx([0, 1])  # nothing is lost in rounding
    assert robust([2.5], [4], 0.1) == approx([1])


def test_a_round_of_arfl_by_hand():
    # from w = 0 both losses are log 2: the mean by size.  Then a has the higher loss, and counts less than its share
    first, second = play_rounds(arfl(strength=0.5, optimizer=ONE), 2)
    start = (1 * 1 + 3 * -0.5) / 4
    assert weight(first) == approx(start)
    losses = {site: loss_at(start, site) for site in ("a", "b")}
    eta = (losses["a"] / 4 + losses["b"] * 3 / 4 + 0.5) / 1
    shares = {"a": (eta - losses["a"]) / 4 / 0.5, "b": (eta - losses["b"]) * 3 / 4 / 0.5}
    assert 0 < shares["a"] < 1 / 4 and sum(shares.values()) == approx(1)
    ends = {site: start - slope(start, site) for site in shares}
    assert weight(second) == approx(sum(shares[site] * ends[site] for site in shares), abs=1e-6)
    heard = second["weighting"]["diagnostics"]["losses"]
    assert {site: one.item() for site, one in heard.items()} == approx(losses, abs=1e-6)


def test_arfl_with_a_large_lambda_is_fedavg():
    assert_close(model(arfl(strength=1e9)), model(fedavg()))


def test_arfl_of_one_site_is_fedavg_to_the_bit():
    assert_equal(model(arfl(), sizes={"east": 20}), model(fedavg(), sizes={"east": 20}))


def test_arfls_lambda_is_positive():
    with pytest.raises(ConfigError, match=r"strength=0 is not valid"):
        registry.build("arfl(strength=0)")


# AFL


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_the_projection_is_the_nearest_point_of_the_simplex(numbers):
    point = torch.tensor(numbers, dtype=torch.float64)
    nearest = onto_simplex(point)
    assert float(nearest.sum()) == approx(1) and float(nearest.min()) >= 0
    # no corner lies on the other side: (point - nearest) . (corner - nearest) <= 0
    away = point - nearest
    assert float((away - (away * nearest).sum()).max()) <= 1e-9


def test_afls_first_two_rounds_by_hand():
    step = 0.2
    first, second = play_rounds(afl(step, optimizer=ONE), 2)
    assert weight(first) == approx((1 - 0.5) / 2)  # equal shares, equal losses
    start, shares = 0.25, {"a": 0.5, "b": 0.5}
    ends = {site: start - slope(start, site) for site in shares}
    assert weight(second) == approx(sum(shares[site] * ends[site] for site in shares), abs=1e-6)
    # two sites: half of the difference of the losses goes from one to the other
    moved = step * (loss_at(start, "a") - loss_at(start, "b")) / 2
    kept = {site: one.item() for site, one in second["weighting"]["shares"].items()}
    assert kept == approx({"a": 0.5 + moved, "b": 0.5 - moved}, abs=1e-6)


def test_afls_weight_goes_to_the_site_that_is_served_worst_and_can_come_back():
    method, now = afl(step=1.0), Round(0, 9, ("a", "b"), ("a", "b"))
    memory = method.weighting.init(("a", "b"))
    weights, memory = method.weighting.update(told({"a": 5.0, "b": 1.0}), memory, now)
    assert weights == [0.5, 0.5], "the weights of a round are those from before its losses were known"
    weights, memory = method.weighting.update(told({"a": 0.0, "b": 0.5}), memory, now)
    assert weights == [1.0, 0.0]
    weights, _ = method.weighting.update(told({"a": 0.0, "b": 0.5}), memory, now)
    assert weights == approx([0.75, 0.25])


def test_afl_leaves_those_it_did_not_hear_and_goes_on_when_nobody_heard_has_a_share():
    method = afl(step=0.3)
    shares = {name: torch.tensor(share, dtype=torch.float64) for name, share in (("a", 0.4), ("b", 0.2), ("c", 0.4))}
    now = Round(1, 9, ("a", "b"), ("a", "b", "c"))
    weights, memory = method.weighting.update(told({"a": 1.0, "b": 2.0}), {"shares": shares}, now)
    assert weights == approx([2 / 3, 1 / 3])
    assert {name: one.item() for name, one in memory["shares"].items()} == approx({"a": 0.25, "b": 0.35, "c": 0.4})
    shares = {name: torch.tensor(float(name == "c"), dtype=torch.float64) for name in "abc"}
    weights, _ = method.weighting.update(told({"a": 1.0, "b": 2.0}), {"shares": shares}, now)
    assert weights == [0.5, 0.5]


def test_afl_with_step_zero_is_uniform_fedavg_to_the_bit():
    assert_equal(model(afl(step=0.0)), model(fedavg("uniform")))


def test_afl_of_one_site_is_fedavg_to_the_bit():
    assert_equal(model(afl(), sizes={"east": 20}), model(fedavg(), sizes={"east": 20}))


# FedCSA


def replies_of(method, sizes=toy.SIZES):
    """What the toy sites send back in the first round of FedAvg, and how many images of each class they train on."""
    sent = {}

    class Watching(Simulator):
        def ask(self, request, envelope):
            answers = super().ask(request, envelope)
            sent.update({name: answer.body for name, answer in answers.items()} if request.kind == "train" else {})
            return answers

    state, _ = simulate(method, rounds=1, federation=Watching(method.client, toy.sites(method, sizes)), sizes=sizes)
    counts = {name: splits["train"][1].bincount(minlength=3) for name, splits in toy.domains(sizes).items()}
    return sent, counts, state["server"]["model"]


@pytest.mark.parametrize("method", [fedcsa(), ga(fedcsa())], ids=["fedcsa", "fedcsa+ga"])
def test_fedcsa_averages_a_class_by_its_images(method):
    sent, counts, got = replies_of(method)
    size = {name: 1 if "ga_trained" in sent["east"] else images for name, images in toy.SIZES.items()}
    for name in ("head.weight", "head.bias"):
        for row in range(3):
            held = {site: int(counts[site][row]) for site in sent}
            want = sum(held[site] * sent[site]["model"]["params"][name][row] for site in sent) / sum(held.values())
            torch.testing.assert_close(got["params"][name][row], want)
    for kind, name in (("params", "body.0.weight"), ("buffers", "body.1.running_mean")):
        want = sum(size[site] * sent[site]["model"][kind][name] for site in sent) / sum(size.values())
        torch.testing.assert_close(got[kind][name], want)


def test_fedcsa_takes_a_class_that_nobody_has_as_all_else(monkeypatch):
    whole = toy.domains

    def without_blue(sizes=toy.SIZES):  # and only the east has green
        data = whole(sizes)
        return {
            name: {part: (x, (y % 2) * (name == "east")) for part, (x, y) in splits.items()}
            for name, splits in data.items()
        }

    monkeypatch.setattr(toy, "domains", without_blue)
    sent, counts, got = replies_of(fedcsa())
    assert sum(int(count[2]) for count in counts.values()) == 0 < int(counts["east"][1])
    heads = {site: body["model"]["params"]["head.weight"] for site, body in sent.items()}
    torch.testing.assert_close(got["params"]["head.weight"][1], heads["east"][1])
    mean = sum(toy.SIZES[site] * heads[site][2] for site in heads) / sum(toy.SIZES.values())
    torch.testing.assert_close(got["params"]["head.weight"][2], mean)


def test_fedcsa_asks_for_labels_once_and_trains_with_those_who_told():
    method = fedcsa()
    federation = Faulty(Simulator(method.client, toy.sites(method)), "north", 0, "stalls", "labels")
    state, round_log = simulate(method, federation=federation)
    asked = [sorted(left.client for left in happened["ledger"] if left.request == "labels") for happened in round_log]
    assert asked == [["east", "west"], ["north"], []]
    assert sorted(round_log[0]["weights"]) == ["east", "west"] and len(round_log[1]["weights"]) == 3
    counts = state["server"]["labels"]["north"]["histogram"]["counts"]
    assert int(counts.sum()) == toy.SIZES["north"]


def test_fedcsa_of_one_site_is_fedavg():
    assert_close(model(fedcsa(), sizes={"east": 20}), model(fedavg(), sizes={"east": 20}))


# FedGMA


def test_a_round_of_fedgma_by_hand():
    # a moves by 1, b by -0.5: nobody agrees, A = 0, nothing moves; below the threshold A itself is the mask
    (state,) = play_rounds(fedgma(optimizer=ONE), 1)
    assert weight(state) == 0
    (state,) = play_rounds(fedgma(tau=0.0, optimizer=ONE), 1)
    assert weight(state) == approx((1 * 1 + 3 * -0.5) / 4)


@pytest.mark.parametrize("method", [fedgma(tau=0.5, rate=0.7), ga(fedgma(tau=0.5, rate=0.7))], ids=["by size", "ga"])
def test_fedgma_scales_down_what_sites_disagree_on(method):
    start = toy.shared(method)["model"]["params"]
    sent, _, got = replies_of(method)
    size = {name: 1 if "ga_trained" in sent["east"] else images for name, images in toy.SIZES.items()}
    partly = 0
    for name, old in start.items():
        moves = {site: body["model"]["params"][name] - old for site, body in sent.items()}
        mean = sum(size[site] * move for site, move in moves.items()) / sum(size.values())
        votes = sum((move > 0).int() - (move < 0).int() for move in moves.values())
        mask = torch.where(votes.abs() == 3, 1.0, votes.abs() / 3)  # of three, all or one more than the others
        partly += int(((mask > 0) & (mask < 1)).sum())
        torch.testing.assert_close(got["params"][name], old + 0.7 * mask * mean)
    assert partly > 0
    mean = sum(size[site] * sent[site]["model"]["buffers"]["body.1.running_mean"] for site in sent) / sum(size.values())
    torch.testing.assert_close(got["buffers"]["body.1.running_mean"], mean)


def test_fedgma_without_a_threshold_is_fedavg():
    assert_close(model(fedgma(tau=0.0)), model(fedavg()))


def test_fedgma_of_one_site_is_fedavg():
    assert_close(model(fedgma(tau=1.0), sizes={"east": 20}), model(fedavg(), sizes={"east": 20}))


def test_with_three_sites_any_threshold_above_a_third_is_the_same():
    sizes = {"east": 20, "north": 28, "west": 36}  # at each, every parameter moves, but for what rounding leaves
    assert_close(model(fedgma(tau=0.34), sizes=sizes), model(fedgma(tau=1.0), sizes=sizes))


def test_fedgmas_threshold_is_a_share():
    with pytest.raises(ConfigError, match=r"tau=1.5 is not valid"):
        registry.build("fedgma(tau=1.5)")


def test_what_they_tell_is_in_the_state():
    for method in (arfl(), afl()):
        state, _ = simulate(method)
        assert sorted(state["weighting"]["diagnostics"]["losses"]) == sorted(toy.SIZES)
        assert all(leaf.ndim == 0 for leaf in tree.leaves(state["weighting"]["diagnostics"]))
