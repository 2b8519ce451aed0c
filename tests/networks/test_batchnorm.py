"""What becomes of BatchNorm: averaged, kept by each site, or frozen, under any method and by all laws."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fedbeyond import tree
from fedbeyond.classifier import read
from fedbeyond.client import Client, answer, no_state
from fedbeyond.experiment import registry, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.networks import batchnorm
from fedbeyond.server import Envelope, Request
from fedbeyond.testing import toy
from fedbeyond.testing.laws import LAWS, check_method, fault_tolerant, simulate, simulator

METHODS = [
    "fedavg",
    "scaffold+ga",
    "fedgca",
    "fedadg(classify=1, align=1)",
    "ndag(width=2, warmup=0, kind=2)",
]
QUICK = LAWS | {"fault_tolerant": partial(fault_tolerant, faults=("stalls",))}
NORM = {
    "params": {"body.1.weight", "body.1.bias"},
    "buffers": {"body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"},
}


def under(policy, name="fedavg"):
    return lambda: batchnorm.POLICIES[policy](registry.build(name))


@pytest.mark.parametrize("policy", ["local", "frozen"])
@pytest.mark.parametrize("name", METHODS)
def test_a_policy_obeys_every_law_and_differs_from_averaging(name, policy):
    """Faults of each sort were tried on the methods; here, one whose reply is lost."""
    check_method(under(policy, name), [lambda: registry.build(name)], QUICK)


def test_averaging_is_the_method_itself():
    method = fedavg()
    assert batchnorm.POLICIES["average"](method) is method


def test_a_site_goes_on_with_its_own_batchnorm_and_sends_it():
    seen = []

    def train(site, received, private):
        seen.append(received)
        moved = tree.map(lambda leaf: leaf + 1, received["model"])
        return {"model": moved}, {"count": torch.tensor(7)}

    method = batchnorm.local(replace(fedavg(), client=Client(no_state, {"train": train})))
    site = toy.sites(method)[0]
    model = read(site.nets["model"])
    client_state = {"private": method.client.init(site)}
    assert client_state["private"] == {"own": {}}
    first, client_state = answer(
        method.client, site, client_state, Request("train", {"model": model}, (site.name,)), Envelope(0, 0, {})
    )
    assert set(client_state["pending"]["private"]) == {"own", "batchnorm"}
    assert client_state["pending"]["private"]["own"] == {"count": torch.tensor(7)}  # the method's own, apart
    kept = client_state["pending"]["private"]["batchnorm"]["model"]
    assert {kind: set(kept[kind]) for kind in kept} == NORM
    zeros = tree.zeros(model)
    body = {"model": zeros, "start": zeros["params"], "control": zeros["params"]}
    answer(method.client, site, client_state, Request("train", body, (site.name,)), Envelope(1, 1, {site.name: 0}))
    for part in (seen[1]["model"]["params"], seen[1]["start"]):
        assert torch.equal(part["body.1.weight"], first.body["model"]["params"]["body.1.weight"])
        assert not part["body.0.weight"].any()
    assert torch.equal(seen[1]["model"]["buffers"]["body.1.running_var"], torch.full((4,), 2.0))
    assert not any(leaf.any() for leaf in tree.leaves(seen[1]["control"]))  # no model: left alone


def test_a_lost_reply_leaves_the_site_with_the_batchnorm_before_it():
    method = batchnorm.local(fedavg())
    federation = simulator(method)
    state = simulate(method, rounds=1, federation=federation)[0]
    site, request = federation.sites["east"], Request("train", state["server"], ("east",))
    lost = answer(method.client, site, federation.client_states["east"], request, Envelope(1, 9, {}))[1]
    assert lost["private"] == {"own": {}}


def test_what_the_unseen_domain_gets_is_the_mean_of_what_sites_sent():
    plain, kept = (simulate(make(), rounds=1)[0]["server"]["model"] for make in (fedavg, under("local")))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(plain), tree.leaves(kept), strict=True))


def test_frozen_statistics_stay_and_scales_are_learnt():
    method = batchnorm.frozen(fedavg())
    before = toy.shared(method)["model"]
    after = simulate(method)[0]["server"]["model"]
    for name in NORM["buffers"]:
        torch.testing.assert_close(after["buffers"][name], before["buffers"][name])
    assert not torch.equal(after["params"]["body.1.weight"], before["params"]["body.1.weight"])


def test_frozen_statistics_are_used_in_training():
    net = toy.nets(batchnorm.frozen(fedavg()))["model"].train()
    x = torch.rand(5, 3, 6, 6) + 3
    torch.testing.assert_close(net(x)[:2], net(x[:2]))  # what else is in the batch does not matter


@pytest.mark.parametrize("policy", ["average", "local", "frozen"])
def test_a_run_takes_its_policy_from_the_configuration(small, tmp_path, policy):
    config = Config(method="scaffold+ga", train=Train(rounds=2, batch_size=8, batchnorm=policy), **small)
    setup = runner.prepare(config)
    assert len(list(runner.run(setup, tmp_path))) == 2
    assert ("batchnorm" in setup.engine.client_states["photo"]["pending"]["private"]) == (policy == "local")
