"""FedDyn: rounds by hand, its agreement with FedGCA without views, and where it ends."""

import math

import pytest
from pytest import approx

from fedbeyond import tree
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.feddyn import feddyn
from fedbeyond.methods.fedgca import fedgca
from fedbeyond.optimizers import sam, sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.ga import ga
from support.asserts import assert_close, assert_equal, model
from support.by_hand import play_rounds, slope, weight

BARE = {"views": 0, "p": False, "pg": False, "m": False, "mg": False}


@pytest.fixture
def trusting(monkeypatch):
    """A model of one weight may well differ tenfold from site to site."""
    monkeypatch.setattr("fedbeyond.engine.gate.PARAMETERS_TIMES", math.inf)


@pytest.mark.parametrize("output", ["mean", "corrected"])
def test_three_rounds_by_hand(trusting, output):
    """In the words of the authors' code: h_i adds up drifts, and w = mean(w_i) + mean(h_i)."""
    alpha, lr, w, h = 0.4, 0.1, 0.0, {"a": 0.0, "b": 0.0}
    for state in play_rounds(feddyn(alpha, output, optimizer=sgd(lr)), 3, epochs=2):
        ends = {}
        for site in h:
            v = w
            for _ in range(2):
                v -= lr * (slope(v, site) + alpha * h[site] + alpha * (v - w))
            ends[site] = v
            h[site] += v - w
        mean = sum(ends.values()) / 2
        w = mean + sum(h.values()) / 2
        assert weight(state) == approx(mean if output == "mean" else w, rel=1e-5)
        assert state["server"]["start"]["w"].item() == approx(w, rel=1e-5)
        assert state["server"]["slope"]["w"].item() == approx(-alpha * sum(h.values()) / 2, rel=1e-5)
    kept = state["clients"]["b"]["pending"]["private"]["slope"]["w"].item()
    assert kept == approx(-alpha * h["b"], rel=1e-5)


@pytest.mark.parametrize("output", ["mean", "corrected"])
@pytest.mark.parametrize("optimizer", [sgd(0.05, 0.9, 5e-4), sam(0.1)], ids=["sgd", "sam"])
def test_it_is_fedgca_without_views_and_agreement_to_the_bit(output, optimizer):
    ours = feddyn(0.1, output, optimizer=optimizer)
    theirs = fedgca(alpha=0.1, output=output, optimizer=optimizer, **BARE)
    assert_equal(model(ours), model(theirs))
    assert_equal(model(ours, rounds=5, asked=2), model(theirs, rounds=5, asked=2))
    assert_equal(model(ga(ours)), model(ga(theirs)))


def test_the_first_local_steps_are_fedavgs_but_for_the_pull():
    assert_close(model(feddyn(alpha=1e-7), rounds=1), model(fedavg("uniform"), rounds=1))


def test_sites_end_at_the_minimum_of_their_mean_loss_where_fedavg_does_not(trusting):
    best = 0.0
    for _ in range(200):
        best -= 0.5 * (slope(best, "a") + slope(best, "b"))
    dyn = play_rounds(feddyn(0.2, optimizer=sgd(0.2)), 60, epochs=20)[-1]
    avg = play_rounds(fedavg("uniform", optimizer=sgd(0.2)), 60, epochs=20)[-1]
    assert weight(dyn) == approx(best, abs=1e-4)
    assert abs(weight(avg) - best) > 0.05


@pytest.mark.parametrize("method", [feddyn(), ga(feddyn())], ids=["feddyn", "feddyn+ga"])
@pytest.mark.parametrize("asked", [None, 2])
def test_the_servers_slope_is_the_mean_of_the_sites(method, asked):
    federation = Simulator(method.client, toy.sites(method))
    state, _ = simulate(method, 6, federation=federation, asked=asked)
    kept = [
        client_state.get("pending", client_state)["private"]["slope"]
        for client_state in federation.client_states.values()
    ]
    assert_close(tree.flatten(tree.mean(kept, [1.0] * 3)), tree.flatten(state["server"]["slope"]))


def test_a_single_site_has_nobody_to_agree_with():
    # h = h_i: the corrected start is where the site would go on by itself, and all stays finite
    state = simulate(feddyn(), sizes={"east": 9})[0]["server"]
    assert float(tree.dot(state["slope"], state["slope"])) > 0


def test_alpha_is_divided_by_and_may_not_be_zero():
    with pytest.raises(ConfigError, match="alpha=0 is not valid"):
        registry.build("feddyn(alpha=0)")
