"""Servers that go on from the mean drift by momentum or by adaptive steps: FedAvgM, FedAdam, FedYogi, FedAdagrad."""

import math

import pytest
import torch
from pytest import approx

from fedbeyond import _factory, tree
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedavgm import fedavgm
from fedbeyond.methods.fedopt import fedadagrad, fedadam, fedyogi
from fedbeyond.optimizers import sgd
from fedbeyond.testing.laws import simulate
from support.asserts import assert_close, assert_equal, model
from support.by_hand import play_rounds, slope, weight

LR = 0.1


@pytest.fixture(autouse=True)
def trusting(monkeypatch):
    """A model of one weight may well differ tenfold from site to site."""
    monkeypatch.setattr("fedbeyond.engine.gate.PARAMETERS_TIMES", math.inf)


def drift(w):
    """How far the mean moves from w when each site takes one step; a has one image, b three."""
    ends = {site: w - LR * slope(w, site) for site in ("a", "b")}
    return (ends["a"] + 3 * ends["b"]) / 4 - w


def test_three_rounds_with_momentum_by_hand():
    w = speed = 0.0
    for state in play_rounds(fedavgm(momentum=0.6, rate=0.8, optimizer=sgd(LR)), 3):
        speed = 0.6 * speed + drift(w)
        w += 0.8 * speed
        assert weight(state) == approx(w, rel=1e-5)
        assert state["server"]["speed"]["w"].item() == approx(speed, rel=1e-5)


def adam(v, d):
    return 0.8 * v + 0.2 * d**2


def yogi(v, d):
    return v + 0.2 * d**2 if d**2 > v else v - 0.2 * d**2


def adagrad(v, d):
    return v + d**2


RULES = {
    "fedadam": (fedadam(0.3, 0.6, 0.8, 0.005, optimizer=sgd(LR)), adam),
    "fedyogi": (fedyogi(0.3, 0.6, 0.8, 0.005, optimizer=sgd(LR)), yogi),
    "fedadagrad": (fedadagrad(0.3, 0.6, 0.005, optimizer=sgd(LR)), adagrad),
}


@pytest.mark.parametrize("name", RULES)
def test_adaptive_rounds_by_hand(name):
    method, follow = RULES[name]
    w, m, v, signs = 0.0, 0.0, 0.005**2, set()
    for state in play_rounds(method, 12):
        d = drift(w)
        signs.add(d**2 > v)
        m, v = 0.6 * m + 0.4 * d, follow(v, d)
        w += 0.3 * m / (math.sqrt(v) + 0.005)
        assert weight(state) == approx(w, rel=1e-4)
        assert state["server"]["squares"]["w"].item() == approx(v, rel=1e-4)
    assert signs == {True, False} or name == "fedadagrad"  # both branches of yogi were taken


def test_the_defaults_of_the_three_are_the_papers_moments():
    for name in RULES:
        given = {key: option.default for key, option in _factory.options(registry.find("methods", name)).items()}
        assert given["tau"] == 1e-3
        assert given["beta1"] == (0 if name == "fedadagrad" else 0.9)
        assert given.get("beta2", 0.99) == 0.99


def test_without_momentum_it_is_fedavg():
    assert_close(model(fedavgm(momentum=0.0)), model(fedavg()))


@pytest.mark.parametrize(
    "method",
    [fedadam(1e6, 0.0, 0.0, 1e6), fedyogi(2e6, 0.0, 0.99, 1e6), fedadagrad(2e6, 0.0, 1e6)],
    ids=["fedadam", "fedyogi", "fedadagrad"],
)
def test_where_tau_outweighs_all_drifts_steps_are_fedavgs(method):
    assert_close(model(method), model(fedavg()))  # yogi and adagrad keep v = tau^2, and divide by 2 tau


@pytest.mark.parametrize("make", [fedavgm, fedadam, fedyogi, fedadagrad])
def test_batchnorms_statistics_are_the_plain_mean(make):
    ours, plain = (simulate(method, rounds=1)[0]["server"]["model"] for method in (make(rate=0.5), fedavg()))
    assert_equal(ours["buffers"], plain["buffers"])
    gap = tree.sub(ours["params"], plain["params"])
    assert float(tree.dot(gap, gap)) > 0


def test_adams_first_step_is_as_long_wherever_the_drift_is_large():
    start = simulate(fedavg(), rounds=0)[0]["server"]["model"]["params"]
    state = simulate(fedadam(rate=0.01, tau=1e-9), rounds=1)[0]["server"]
    for name, moved in tree.flatten(tree.sub(state["model"]["params"], start)).items():
        far = moved[state["speed"][name].abs() > 1e-5].abs()
        torch.testing.assert_close(far, torch.full_like(far, 0.01), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("make", [fedavgm, fedadam, fedyogi, fedadagrad])
def test_one_site_is_enough_and_what_stands_still_stays(make):
    state = simulate(make(), sizes={"east": 9})[0]["server"]
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(state))
    still = simulate(make(optimizer=sgd(0.0)))[0]["server"]["model"]["params"]
    assert_close(still, simulate(fedavg(), rounds=0)[0]["server"]["model"]["params"])


@pytest.mark.parametrize(
    "spelled", ["fedavgm(momentum=1)", "fedavgm(rate=0)", "fedadam(tau=0)", "fedyogi(beta2=1)", "fedadagrad(beta1=-1)"]
)
def test_options_out_of_bounds_are_refused(spelled):
    with pytest.raises(ConfigError, match="is not valid"):
        registry.build(spelled)
