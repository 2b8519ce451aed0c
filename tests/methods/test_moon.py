"""MOON: its loss on paper, two rounds in plain torch, and what it is without its term."""

import math
from copy import deepcopy

import pytest
import torch
from pytest import approx
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import Task
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.moon import model_contrastive, moon
from fedbeyond.networks._mlp import mlp
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate, simulator
from support.asserts import assert_equal, model


def test_the_loss_on_paper():
    # the first image: cos 1 to the received, 0 to the last; the second: 0.6 and -1
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    near, far = torch.tensor([[5.0, 0.0], [0.8, 0.6]]), torch.tensor([[0.0, 3.0], [0.0, -1.0]])
    t = 0.5
    losses = [-math.log(math.exp(a / t) / (math.exp(a / t) + math.exp(b / t))) for a, b in ((1, 0), (0.6, -1))]
    assert model_contrastive(z, near, far, t).item() == approx(sum(losses) / 2, rel=1e-5)


def test_where_received_and_last_agree_it_is_log_two_and_has_no_slope():
    z, same = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    loss = model_contrastive(z, same, same, 0.5)
    loss.backward()
    assert loss.item() == approx(math.log(2))
    torch.testing.assert_close(z.grad, torch.zeros(3, 4))


def test_two_rounds_in_plain_torch():
    mu, t, lr = 2.0, 0.3, 0.1
    method = moon(mu, t, width=5, optimizer=sgd(lr))
    sites, nets = {site.name: site for site in toy.sites(method)}, toy.nets(method)
    shared = (deepcopy(nets["model"]), deepcopy(nets["projection"]))
    last = {}
    for number in range(2):
        trained, received = {}, tuple(deepcopy(net).eval() for net in shared)
        for name in sorted(sites):
            net, head = (deepcopy(part).train() for part in shared)
            for batch in sites[name].reseed(number, "train").batches():
                h = net.features(batch.x)
                loss = F.cross_entropy(net.head(h), batch.y)
                if name in last:
                    z, (guide, guide_head), (old, old_head) = head(h), received, last[name]
                    near, far = guide_head(guide.features(batch.x)), old_head(old.features(batch.x))
                    alike = torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], 1) / t
                    loss = loss + mu * F.cross_entropy(alike, torch.zeros(len(z), dtype=torch.long))
                params = [*net.parameters(), *(head.parameters() if name in last else ())]
                with torch.no_grad():
                    for param, slope in zip(params, torch.autograd.grad(loss, params), strict=True):
                        param -= lr * slope
            trained[name] = (net, head)
        last = {name: tuple(deepcopy(part).eval() for part in pair) for name, pair in trained.items()}
        for place, part in enumerate(shared):
            states = [trained[name][place].state_dict() for name in sorted(sites)]
            sizes = torch.tensor([float(sites[name].size) for name in sorted(sites)])
            mean = {}
            for key in states[0]:
                stacked = torch.stack([state[key] for state in states])
                whole = torch.tensordot(sizes / sizes.sum(), stacked, 1) if stacked.is_floating_point() else None
                mean[key] = stacked.amax(0) if whole is None else whole
            part.load_state_dict(mean)
    state = simulate(method, 2)[0]["server"]
    for name, part in zip(("model", "projection"), shared, strict=True):
        for key, value in (state[name]["params"] | state[name]["buffers"]).items():
            torch.testing.assert_close(value, part.state_dict()[key], rtol=1e-3, atol=1e-5)


def test_without_its_term_and_in_the_first_round_it_is_fedavg_to_the_bit():
    assert_equal(model(moon(mu=0.0)), model(fedavg()))
    assert_equal(model(moon(), rounds=1), model(fedavg(), rounds=1))


def test_a_site_keeps_what_it_sent_and_who_joins_later_has_no_last_model():
    method = moon()
    federation = simulator(method)
    simulate(method, rounds=1, federation=federation, asked=1)
    kept = {
        name: client_state["pending"]["private"]
        for name, client_state in federation.client_states.items()
        if "pending" in client_state
    }
    assert len(kept) == 1 and all(set(private) == {"model", "projection"} for private in kept.values())
    assert all(client_state["private"] == {} for client_state in federation.client_states.values())


def test_the_projection_learns_from_the_second_round_on():
    first, second = (simulate(moon(), rounds)[0]["server"]["projection"]["params"] for rounds in (1, 2))
    begun = toy.shared(moon())["projection"]["params"]
    gap = tree.sub(second, begun)
    for name in begun:
        torch.testing.assert_close(first[name], begun[name])
    assert float(tree.dot(gap, gap)) > 0


def test_tables_have_features_too():
    nets = moon(width=7).networks(Task(("no", "yes"), (5,), mlp(hidden=[6])))
    assert nets["projection"](nets["model"].features(torch.rand(2, 5))).shape == (2, 7)


@pytest.mark.parametrize("spelled", ["moon(mu=-1)", "moon(temperature=0)", "moon(width=0)"])
def test_options_out_of_bounds_are_refused(spelled):
    with pytest.raises(ConfigError, match="is not valid"):
        registry.build(spelled)
