"""One round or two of every method, computed on paper."""

import math
from dataclasses import replace

import pytest
import torch
from pytest import approx

from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fednova import fednova
from fedbeyond.methods.fedprox import fedprox
from fedbeyond.methods.fedsb import fedsb
from fedbeyond.methods.scaffold import scaffold
from fedbeyond.optimizers import adam, reach, sgd
from fedbeyond.server import Reply, Round
from fedbeyond.wrappers.ga import PRESETS, ga, with_validation_scores
from support.by_hand import play_rounds, slope, weight

ONE = sgd(lr=1.0)


def test_fedavg_by_size_is_the_mean_over_images():
    # from w = 0:  a steps to 0 + 0.5 * 2 = 1,  b to 0 - 0.5 * 1 = -0.5;  a has 1 image, b has 3
    (state,) = play_rounds(fedavg(optimizer=ONE), 1)
    assert weight(state) == approx((1 * 1 + 3 * -0.5) / 4)


def test_fedavg_uniform_is_the_mean_over_sites():
    (state,) = play_rounds(fedavg("uniform", optimizer=ONE), 1)
    assert weight(state) == approx((1 - 0.5) / 2)


def test_an_augmentation_is_seen_in_every_step_and_a_view_counts_as_an_image():
    # the image doubled, and tripled as a second view: the loss is the mean over both
    def styles(batch, rng):
        return batch._replace(x=2 * batch.x, views=(3 * batch.x,))

    (state,) = play_rounds(replace(fedavg("uniform", optimizer=ONE), augment=styles), 1)
    # from w = 0 the slope of site a at x = 4 and x = 6 is -0.5 * x, that of b at 2 and 3 is +0.5 * x
    assert weight(state) == approx((0.5 * (4 + 6) / 2 - 0.5 * (2 + 3) / 2) / 2)


def test_fedprox_pulls_each_step_by_mu_times_the_drift(fedprox=fedprox):
    # two epochs are two steps at each site; the first starts where the model was received, so it feels no pull
    mu, ends = 0.3, {}
    for site, first in (("a", 1.0), ("b", -0.5)):
        ends[site] = first - (slope(first, site) + mu * first)
    (state,) = play_rounds(fedprox(mu, optimizer=ONE), 1, epochs=2)
    assert weight(state) == approx((ends["a"] + 3 * ends["b"]) / 4, abs=1e-6)


def test_fedsb_smooths_labels_and_takes_the_same_steps_everywhere():
    # budget 2: two steps at each site, though a has one image and b three; the label 1 becomes 0.95, 0 becomes 0.05
    ends = []
    for site in ("a", "b"):
        w = 0.0
        for _ in range(2):
            w -= slope(w, site, smoothing=0.1)
        ends.append(w)
    (state,) = play_rounds(fedsb(0.1, budget=2, optimizer=ONE), 1, batch_size=2)
    assert weight(state) == approx(sum(ends) / 2, abs=1e-6)


def test_scaffold_follows_g_minus_ci_plus_c(scaffold=scaffold):
    first, second = play_rounds(scaffold(optimizer=sgd(lr=0.5)), 2)
    # round 1: no controls yet; a: 0 + 0.5 * 1 = 0.5, b: 0 - 0.5 * 0.5 = -0.25;  c_i = (w - w_i) / lr
    assert weight(first) == approx(0.125)
    assert first["server"]["control"]["w"].item() == approx((-1.0 + 0.5) / 2)
    # round 2: w_i = w - lr * (g_i - c_i + c)
    ends = [0.125 - 0.5 * (slope(0.125, site) - c + -0.25) for site, c in (("a", -1.0), ("b", 0.5))]
    assert weight(second) == approx(sum(ends) / 2)
    # c_i+ = c_i - c + (w - w_i) / lr = g_i: after one step the control is the slope where the step was taken
    controls = [second["clients"][site]["pending"]["private"]["control"]["w"].item() for site in ("a", "b")]
    assert controls == approx([slope(0.125, "a"), slope(0.125, "b")], abs=1e-6)
    assert second["server"]["control"]["w"].item() == approx(sum(controls) / 2, abs=1e-6)


def test_scaffold_with_momentum_divides_by_how_far_the_steps_reach():
    # two steps with momentum 0.5 reach 1 + (1 + 0.5) = 2.5: the control is a mean of gradients, not 2.5 / 2 of one
    (state,) = play_rounds(scaffold(optimizer=sgd(lr=1e-3, momentum=0.5)), 1, epochs=2)
    assert state["server"]["control"]["w"].item() == approx((-1.0 + 0.5) / 2, rel=1e-2)


def test_fednova_takes_the_mean_of_drifts_per_step():
    # batches of one: a takes 1 step, b takes 3; drifts are divided by the steps, then times the mean number of them
    ends = {}
    for site, steps in (("a", 1), ("b", 3)):
        w = 0.0
        for _ in range(steps):
            w -= slope(w, site)
        ends[site] = w / steps
    mean_steps = (1 * 1 + 3 * 3) / 4
    (state,) = play_rounds(fednova(optimizer=ONE), 1, batch_size=1)
    assert weight(state) == approx(mean_steps * (ends["a"] + 3 * ends["b"]) / 4, abs=1e-6)


def test_fednova_with_a_proximal_term_uses_the_papers_recurrence():
    # a <- (1 - lr * mu) * a + 1, and tau_eff is the mean of the raw steps
    lr, mu, ends = 0.5, 0.4, {}
    for site, steps in (("a", 1), ("b", 3)):
        w = reached = 0.0
        for _ in range(steps):
            w -= lr * (slope(w, site) + mu * w)
            reached = (1 - lr * mu) * reached + 1
        ends[site] = w / reached
    (state,) = play_rounds(fednova(mu, optimizer=sgd(lr=lr)), 1, batch_size=1)
    assert weight(state) == approx(2.5 * (ends["a"] + 3 * ends["b"]) / 4, abs=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_reach_is_the_closed_form_of_sgd_with_momentum(momentum):
    optimizer = sgd(momentum=momentum)([torch.zeros(1, requires_grad=True)])
    closed = sum((1 - momentum**k) / (1 - momentum) for k in range(1, 8))
    assert reach(optimizer, 7) == approx(closed)


def test_reach_of_adam_is_its_steps():
    assert reach(adam()([torch.zeros(1, requires_grad=True)]), 7) == 7


# GA: from equal shares, gaps (1, 1, 0.9) under the three presets, in the first round that has gaps (no decay yet)
GOLDEN = {
    "default": (0.3583, 0.3583, 0.2833),
    "paper": (0.3833, 0.3833, 0.2333),
    "official": (0.3352, 0.3352, 0.3296),
}


def shares(gaps, **options):
    """The weights GA gives to sites with these gaps, from equal shares."""
    method = ga(fedavg(), decay=False, **options)
    names = tuple("abcdef"[: len(gaps)])
    memory, now = method.weighting.init(names), Round(1, 9, names, names)

    def told(received):
        bodies = [{"ga_received": torch.tensor(float(g)), "ga_trained": torch.tensor(0.0)} for g in received]
        return [Reply(name, body, 1.0) for name, body in zip(names, bodies, strict=True)]

    first, memory = method.weighting.update(told([5.0] * len(gaps)), memory, now)
    assert first == approx([1 / len(gaps)] * len(gaps)), "nobody has trained before: nobody has a gap"
    return method.weighting.update(told(gaps), memory, now)[0]


@pytest.mark.parametrize("preset", GOLDEN)
def test_ga_moves_shares_as_its_three_readings_say(preset):
    options = {"default": {}, **PRESETS}[preset]
    assert shares((1, 1, 0.9), **options) == approx(GOLDEN[preset], abs=5e-5)


def test_ga_goes_on_when_nobody_asked_has_a_share():
    method = ga(fedavg())
    memory = {"shares": {n: torch.tensor(s, dtype=torch.float64) for n, s in zip("abc", (0, 0, 1), strict=True)}}
    memory["trained"] = {n: torch.tensor(0.0) for n in "abc"}
    told = {"ga_received": torch.tensor(0.0), "ga_trained": torch.tensor(0.0)}
    replies = [Reply(n, told, 1.0) for n in "ab"]
    weights, memory = method.weighting.update(replies, memory, Round(1, 9, ("a", "b"), ("a", "b", "c")))
    assert weights == [0.5, 0.5]
    assert sum(share.item() for share in memory["shares"].values()) == 1


def test_ga_with_equal_gaps_changes_nothing():
    assert shares((0.7, 0.7, 0.7)) == approx([1 / 3] * 3)


def test_ga_on_accuracy_is_ga_on_loss_of_the_negated_values():
    loss, accuracy = ga(fedavg()).client, ga(fedavg(), metric="accuracy").client

    class Told:
        nets = None

        def measure(self, model, split="val"):
            return {"loss": torch.tensor(0.25), "accuracy": torch.tensor(-0.25)}

        def loss(self, model, split="val"):
            return self.measure(model)["loss"]

    def trained(site, received, private):
        return {"model": {}}, private

    quiet = loss._replace(handlers={"train": trained})
    for metric in ("loss", "accuracy"):
        reply, _ = with_validation_scores(quiet, metric).handlers["train"](Told(), {"model": {}}, {})
        assert reply["ga_received"] == reply["ga_trained"] == 0.25
    assert accuracy.handlers.keys() == loss.handlers.keys()


def test_ga_steps_shrink_linearly_to_nothing():
    # one gap above the mean, one as far below: the whole step, times (1 - r/R)
    method = ga(fedavg(), step=0.1)
    memory = {"shares": {n: torch.tensor(0.5, dtype=torch.float64) for n in "ab"}}
    memory["trained"] = {n: torch.tensor(0.0) for n in "ab"}
    replies = [
        Reply(n, {"ga_received": torch.tensor(g), "ga_trained": torch.tensor(0.0)}, 1.0)
        for n, g in (("a", 1.0), ("b", 0.0))
    ]
    for number, step in ((0, 0.1), (5, 0.05), (9, 0.01)):
        weights, _ = method.weighting.update(replies, memory, Round(number, 10, ("a", "b"), ("a", "b")))
        assert weights == approx([0.5 + step, 0.5 - step])


def test_ga_in_a_run_moves_weight_to_the_site_that_the_mean_serves_worse(ga=ga):
    # a pulls the weight up, b down; from w = 0 with lr 1 they end at 1 and -0.5, the mean is 0.25
    first, second = play_rounds(ga(fedavg(optimizer=ONE), step=0.1, decay=False), 2)
    gap = {
        site: math.log1p(math.exp(z * 0.25)) - math.log1p(math.exp(z * own))
        for site, z, own in (("a", -2, 1.0), ("b", 1, -0.5))
    }
    assert weight(first) == approx(0.25)
    winner = "a" if gap["a"] > gap["b"] else "b"
    shares = {name: share.item() for name, share in second["weighting"]["shares"].items()}
    assert shares == approx({winner: 0.6, "b" if winner == "a" else "a": 0.4})
