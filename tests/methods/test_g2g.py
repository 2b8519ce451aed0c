"""G2G: two models that teach each other, one of which stays at home; and scores of which only the largest count."""

import pytest
import torch
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import read, write
from fedbeyond.engine.simulator import Simulator
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.g2g import g2g, smoothed
from fedbeyond.methods.local import local
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.asserts import assert_close, assert_equal, model


def played(method, rounds=2):
    """The state after some rounds, what each site keeps, and what left."""
    federation = Simulator(method.client, toy.sites(method))
    state, round_log = simulate(method, rounds, federation=federation)
    kept = {name: client_state["pending"]["private"] for name, client_state in federation.client_states.items()}
    return state, kept, {left.name for happened in round_log for left in happened["ledger"]}


def test_all_but_the_largest_scores_become_their_mean():
    scores = torch.tensor([[5.0, 1.0, 3.0, 2.0], [0.0, 4.0, -4.0, 1.0]])
    assert smoothed(scores, 2).tolist() == [[5.0, 1.5, 3.0, 1.5], [-2.0, 4.0, -2.0, 1.0]]
    assert smoothed(scores, 1).tolist() == [[5.0, 2.0, 2.0, 2.0], [-1.0, 4.0, -1.0, -1.0]]


@pytest.mark.parametrize("top", [None, 3, 4, 9])
def test_where_at_most_one_score_is_left_nothing_is_smoothed(top):
    scores = torch.randn(5, 4)
    assert torch.equal(smoothed(scores, top), scores)


def test_equal_scores_are_told_apart_the_same_way_everywhere():
    assert smoothed(torch.tensor([[1.0, 1.0, 1.0, 0.0]]), 2).tolist() == [[1.0, 1.0, 0.5, 0.5]]


def test_a_class_among_the_rest_is_learnt_with_all_of_the_rest():
    # scores 2, 1, 0 with the first kept: 2, .5, .5; the class is the last one
    scores = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    F.cross_entropy(smoothed(scores, 1), torch.tensor([2])).backward()
    first, rest = torch.tensor([2.0, 0.5, 0.5]).softmax(0)[:2].tolist()
    assert scores.grad.tolist()[0] == pytest.approx([first, rest - 0.5, rest - 0.5])


def test_a_batch_by_hand():
    """Each model steps along the gradient of its own loss, with the other's predictions as they are."""
    method = g2g(alpha=0.3, beta=0.8, top=1, optimizer=sgd(0.1))
    site = toy.sites(method, {"east": 8})[0]
    nets = method.networks(toy.TASK)
    received, other = {"model": read(nets["model"])}, read(nets["private"])
    reply, kept = method.client.handlers["train"](site.reseed(0, "train"), received, {"private": other})
    site.reseed(0, "train")
    ((x, y, *_),) = site.batches()
    meme, own = nets["model"](x), nets["private"](x)

    def error(scores):  # by hand: the largest score stays, the other two are their mean
        total = 0.0
        for row, label in zip(scores, y.tolist(), strict=True):
            best = int(row.argmax())
            rest = (row.sum() - row[best]) / 2
            flat = torch.stack([row[k] if k == best else rest for k in range(3)])
            total = total - flat.log_softmax(0)[label]
        return total / len(y)

    def divergence(scores, target):
        p = target.softmax(1).detach()
        return (p * (p.log() - scores.log_softmax(1))).sum(1).mean()

    losses = {
        "model": 0.8 * error(meme) + 0.2 * divergence(meme, own),
        "private": 0.3 * error(own) + 0.7 * divergence(own, meme),
    }
    for name, got in (("model", reply["model"]), ("private", kept["private"])):
        params = dict(nets[name].named_parameters())
        slopes = torch.autograd.grad(losses[name], list(params.values()), retain_graph=True)
        want = {key: param - 0.1 * slope for (key, param), slope in zip(params.items(), slopes, strict=True)}
        assert_close(got["params"], want)
        assert_close(got["buffers"], dict(nets[name].named_buffers()))


def test_only_the_meme_leaves_and_every_site_has_a_private_model_of_its_own():
    _, kept, left = played(g2g())
    assert left == {"model"} and all(set(own) == {"private"} for own in kept.values())
    east, west = (tree.flatten(kept[name]["private"]["params"]) for name in ("east", "west"))
    assert all(not torch.equal(east[name], west[name]) for name in east)


def test_in_its_first_round_a_site_has_two_equal_models():
    method = g2g()
    site = toy.sites(method)[0]
    received = toy.shared(method)
    reply, kept = method.client.handlers["train"](site.reseed(3, "train"), received, {})
    assert_equal(tree.flatten(reply["model"]), tree.flatten(kept["private"]))


def test_a_meme_that_goes_by_labels_alone_is_uniform_fedavg_to_the_bit():
    assert_equal(model(g2g(beta=1.0, top=None)), model(fedavg("uniform")))


def test_a_private_model_that_goes_by_labels_alone_is_that_of_a_site_by_itself():
    _, kept, _ = played(g2g(alpha=1.0, top=None))
    state, _, _ = played(local())
    for name, alone in state["server"]["models"].items():
        assert_close(tree.flatten(kept[name]["private"]), tree.flatten(alone))


def test_one_site_or_a_class_that_it_lacks_is_no_trouble():
    method = g2g()
    state, _ = simulate(method, sizes={"east": 9})
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(state))
    site = toy.sites(method, {"east": 12})[0]
    x, y = site.data["train"]
    site.data = {**site.data, "train": (x[y > 0], y[y > 0])}
    reply, _ = method.client.handlers["train"](site.reseed(0, "train"), toy.shared(method), {})
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(reply))


def test_both_learn():
    method = g2g(optimizer=sgd(0.1))
    state, kept, _ = played(method, rounds=8)
    net, (x, y) = toy.nets(method)["model"], toy.domains()["west"]["val"]
    for one in (state["server"]["model"], kept["west"]["private"]):
        right = write(net, one).eval()(x).argmax(1) == y
        assert float(right.float().mean()) > 0.6
