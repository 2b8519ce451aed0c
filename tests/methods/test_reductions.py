"""Methods that become another one when their own part is switched off."""

import pytest

from fedbeyond import tree
from fedbeyond.engine.simulator import Simulator
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fednova import fednova
from fedbeyond.methods.fedprox import fedprox
from fedbeyond.methods.fedsb import fedsb
from fedbeyond.methods.scaffold import scaffold
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.ga import ga
from support.asserts import assert_close, assert_equal, model

EVEN = {"east": 24, "north": 24, "west": 24}


def test_ga_with_step_zero_is_uniform_fedavg_to_the_bit():
    assert_equal(model(ga(fedavg(), step=0.0)), model(fedavg("uniform")))


def test_fedprox_with_mu_zero_is_fedavg():
    assert_close(model(fedprox(mu=0.0)), model(fedavg()))


def test_fedsb_without_smoothing_or_budget_is_uniform_fedavg_to_the_bit():
    assert_equal(model(fedsb(smoothing=0.0, budget=None)), model(fedavg("uniform")))


def test_fedsb_with_a_budget_of_all_images_is_uniform_fedavg_to_the_bit():
    assert_equal(model(fedsb(smoothing=0.0, budget=3), sizes=EVEN), model(fedavg("uniform"), sizes=EVEN))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(momentum):
    optimizer = sgd(0.05, momentum)
    assert_close(model(fednova(optimizer=optimizer), sizes=EVEN), model(fedavg(optimizer=optimizer), sizes=EVEN))


def test_scaffolds_first_round_is_uniform_fedavg():
    assert_close(model(scaffold(), rounds=1), model(fedavg("uniform"), rounds=1))


@pytest.mark.parametrize("method", [scaffold(), ga(scaffold())], ids=["scaffold", "scaffold+ga"])
@pytest.mark.parametrize("asked", [None, 2])
def test_scaffolds_server_control_is_the_mean_of_the_clients(method, asked):
    federation = Simulator(method.client, toy.sites(method))
    state, _ = simulate(method, 6, federation=federation, asked=asked)
    kept = [
        client_state.get("pending", client_state)["private"]["control"]
        for client_state in federation.client_states.values()
    ]
    assert_close(tree.flatten(tree.mean(kept, [1.0] * 3)), tree.flatten(state["server"]["control"]))
