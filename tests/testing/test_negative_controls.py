"""Errors that the field's own codes have, planted on purpose: the tests that hold for the right method find each out.

FedProx with the norm itself (FedDG_Benchmark, FedSB's repository), SCAFFOLD without 1/lr and RSC that is never switched
on (GA's release), GA with the sign of its gap lost and FedDyn's term on the global network (MarsFL).
"""

import math
from dataclasses import replace

import pytest
import torch

from fedbeyond import tree
from fedbeyond.classifier import read
from fedbeyond.client import training, zero_params
from fedbeyond.errors import FederationError
from fedbeyond.losses import cross_entropy
from fedbeyond.methods import fedgca as dynamic
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedprox import fedprox
from fedbeyond.methods.rsc import rsc
from fedbeyond.methods.scaffold import correction, scaffold
from fedbeyond.optimizers import plain_sgd, reach
from fedbeyond.testing.laws import alive
from fedbeyond.wrappers.ga import ga
from methods import test_by_hand as by_hand
from methods import test_fedgca
from support.asserts import assert_close, model


def fedprox_with_the_norm_itself(mu, optimizer):
    def term(local, batch):
        drift = tree.leaves(tree.sub(local.params, local.start))
        return mu / 2 * torch.linalg.vector_norm(torch.cat([leaf.flatten() for leaf in drift]))

    return replace(fedprox(), client=training(cross_entropy(), term, optimizer=optimizer))


def scaffold_without_the_learning_rate(optimizer=plain_sgd):
    def new_control(local):
        model, old = read(local.net), local.private["control"]
        slope = tree.scale(1 / reach(local.optimizer, local.steps), tree.sub(local.start, model["params"]))
        control = tree.add(tree.sub(old, local.received["control"]), slope)
        return {"model": model, "control": tree.sub(control, old)}, {"control": control}

    client = training(cross_entropy(), correction, optimizer=optimizer, init=zero_params("control"), finish=new_control)
    return replace(scaffold(), client=client)


def ga_with_the_sign_flipped(method, **options):
    """It tells accuracies, or losses negated, as if they were losses."""
    right = ga(method, **options)

    def train(site, received, private):
        reply, kept = right.client.handlers["train"](site, received, private)
        return reply | {name: -reply[name] for name in ("ga_received", "ga_trained")}, kept

    return replace(right, client=right.client._replace(handlers={"train": train}))


def class_consistency_of_the_global_network(alpha):
    """FedDyn's term, of parameters that do not move: no gradient reaches the site's own."""

    def term(local, batch):
        received = {name: leaf.clone().requires_grad_() for name, leaf in local.received["model"]["params"].items()}
        drift = tree.sub(received, local.start)
        return alpha / 2 * tree.dot(drift, drift) - tree.dot(local.private["dual"], received)

    return term


def rsc_never_activated():
    return rsc(samples=0.0)


PLANTED = [
    (by_hand.test_fedprox_pulls_each_step_by_mu_times_the_drift, fedprox, fedprox_with_the_norm_itself),
    (by_hand.test_scaffold_follows_g_minus_ci_plus_c, scaffold, scaffold_without_the_learning_rate),
    (by_hand.test_ga_in_a_run_moves_weight_to_the_site_that_the_mean_serves_worse, ga, ga_with_the_sign_flipped),
    (
        test_fedgca.test_the_gradient_of_class_consistency,
        dynamic.class_consistency,
        class_consistency_of_the_global_network,
    ),
    (alive, rsc, rsc_never_activated),
]


@pytest.mark.parametrize(("check", "right", "wrong"), PLANTED, ids=[wrong.__name__ for *_, wrong in PLANTED])
def test_a_planted_error_is_found_out_by_what_holds_for_the_right_method(check, right, wrong):
    check(right)
    with pytest.raises((AssertionError, FederationError)):  # the gate may reject what a planted error sends
        check(wrong)


def test_feddyn_on_the_global_network_is_found_out_by_three_rounds_by_hand(monkeypatch):
    """The whole method, in which everything but the term is right."""
    monkeypatch.setattr("fedbeyond.engine.gate.PARAMETERS_TIMES", math.inf)  # one weight may well differ tenfold
    check = test_fedgca.test_three_rounds_of_the_dynamic_regulariser_by_hand
    check(None)
    monkeypatch.setattr(dynamic, "class_consistency", class_consistency_of_the_global_network)
    with pytest.raises(AssertionError):
        check(None)


def test_rsc_that_is_never_activated_is_fedavg():
    assert_close(model(rsc_never_activated()), model(fedavg()))
