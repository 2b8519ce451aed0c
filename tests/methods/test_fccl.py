"""FCCL: correlations with what all sites say of public images, and teachers that keep a site from forgetting."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import read, write
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import registry
from fedbeyond.methods.fccl import cross_correlation, fccl
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.optimizers import sgd
from fedbeyond.server import Reply, Round
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.asserts import assert_equal, model

SMALL = {"images": 16, "batch": 8, "pretrain": 1}


def test_the_loss_is_about_correlations_of_1_and_minus_1():
    torch.manual_seed(0)
    scores, said = torch.randn(20, 4), torch.randn(20, 4)
    between = np.corrcoef(scores.T.numpy(), said.T.numpy())[:4, 4:]
    want = sum(
        (between[i, j] - 1) ** 2 if i == j else 0.01 * (between[i, j] + 1) ** 2 for i in range(4) for j in range(4)
    )
    assert cross_correlation(scores, said, 0.01).item() == pytest.approx(want, rel=1e-4)


def test_two_classes_that_exclude_each_other_and_agree_with_the_mean_lose_nothing():
    z = torch.randn(9, 1)
    scores, said = torch.cat((z, -z), 1), torch.cat((3 * z + 1, 2 - z), 1)
    assert cross_correlation(scores, said, 1.0).item() == pytest.approx(0, abs=1e-6)


def test_scores_that_are_all_the_same_give_a_finite_loss_and_slope():
    scores = torch.ones(5, 3, requires_grad=True)
    loss = cross_correlation(scores, torch.zeros(5, 3), 0.0051)
    loss.backward()
    assert loss.item() == pytest.approx(3 + 6 * 0.0051) and bool(scores.grad.isfinite().all())


def played(method, rounds=2, **options):
    federation = Simulator(method.client, toy.sites(method))
    state, round_log = simulate(method, rounds, federation=federation, **options)
    return (
        state,
        {name: client_state["pending"]["private"] for name, client_state in federation.client_states.items()},
        round_log,
    )


def test_a_round_at_a_site_by_hand():
    """What it says of public images; a step on each batch of them; then one on its own images, beside two teachers."""
    method = fccl(images=16, batch=8, public_rate=0.5, off_diagonal=0.1, intra=0.5, inter=0.25, optimizer=sgd(0.1))
    site = toy.sites(method, {"east": 8})[0]
    nets = method.networks(toy.TASK)
    received = {"model": read(nets["model"])}
    private = {name: read(nets[name]) for name in ("teacher", "last")}
    index = torch.randperm(24)[:16]
    shown = site.data["public"][0][index]
    for name in ("teacher", "last"):
        nets[name].eval()

    told, kept = method.client.handlers["tell"](site.reseed(0, "tell"), {"index": index}, private)
    with torch.no_grad():
        torch.testing.assert_close(told["logits"]["public"], nets["last"](shown))
    assert kept is private

    said = torch.randn(16, 3)
    body = received | {"index": index, "logits": {"public": said}}
    reply, kept = method.client.handlers["train"](site.reseed(0, "train"), body, private)
    net, statistics = nets["model"], read(nets["model"])["buffers"]

    def descend(loss, rate):
        params = list(net.parameters())
        slopes = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for param, slope in zip(params, slopes, strict=True):
                param.sub_(rate * slope)

    for some in (slice(0, 8), slice(8, 16)):
        scores = net(shown[some])
        loss = 0.0
        for i in range(3):
            for j in range(3):
                a, b = scores[:, i] - scores[:, i].mean(), said[some, j] - said[some, j].mean()
                c = (a * b).sum() / (a.square().sum() * b.square().sum()).sqrt()
                loss = loss + ((c - 1) ** 2 if i == j else 0.1 * (c + 1) ** 2)
        descend(loss, 0.05)
    write(net, {"params": read(net)["params"], "buffers": statistics})  # public images leave no trace in these
    site.reseed(0, "train")
    ((x, y, *_),) = site.batches()
    scores = net(x)
    loss = F.cross_entropy(scores, y)
    for name, weight in (("teacher", 0.5), ("last", 0.25)):
        p = nets[name](x).softmax(1).detach()
        loss = loss + weight * (p * (p.log() - scores.log_softmax(1))).sum(1).mean()
    descend(loss, 0.1)
    for part, want in (("params", net.named_parameters()), ("buffers", net.named_buffers())):
        for name, leaf in want:
            torch.testing.assert_close(reply["model"][part][name], leaf.detach(), rtol=1e-3, atol=1e-5)
    assert_equal(tree.flatten(kept["teacher"]), tree.flatten(private["teacher"]))
    assert_equal(tree.flatten(kept["last"]), tree.flatten(reply["model"]))


def conversation(method, state, clients="abc", number=0, seed=0):
    return method.server.round(state, Round(number, 9, tuple(clients), tuple("abc"), seed))


def taught(clients, held=24.0):
    return [Reply(name, {"held": torch.tensor(held)}, 1.0) for name in clients]


def index_of(number=0, seed=0, images=8, held=24.0):
    talk = conversation(fccl(images=images), {"model": {}, "taught": {}}, number=number, seed=seed)
    next(talk)
    return talk.send(taught("abc", held)).body["index"]


def test_the_server_draws_public_images_from_its_seed_anew_in_every_round():
    first = index_of()
    assert len(set(first.tolist())) == 8 and set(first.tolist()) <= set(range(24))
    assert torch.equal(first, index_of()) and not torch.equal(first, index_of(number=1))
    assert not torch.equal(first, index_of(seed=1))
    assert sorted(index_of(images=99).tolist()) == list(range(24))  # all there are


def test_all_sites_get_the_same_images_and_the_plain_mean_of_what_was_said():
    method = fccl(images=4)
    talk = conversation(method, method.server.init({"model": {"params": {"w": torch.ones(1)}}}))
    assert next(talk).kind == "teach"
    request = talk.send(taught("abc"))
    assert request.kind == "tell" and request.to == ("a", "b", "c") and set(request.body) == {"index"}
    said = {"a": 1.0, "b": 4.0}  # c fails
    told = [Reply(name, {"logits": {"public": torch.full((4, 3), z)}}, 9 * z) for name, z in said.items()]
    train = talk.send(told)
    assert train.kind == "train" and train.to == ("a", "b", "c")
    assert torch.equal(train.body["index"], request.body["index"])
    assert torch.equal(train.body["logits"]["public"], torch.full((4, 3), 2.5))


def test_who_has_no_teacher_yet_is_asked_for_nothing_else():
    talk = conversation(fccl(), {"model": {}, "taught": {"a": {"held": torch.tensor(24.0)}}}, clients="abc", number=4)
    request = next(talk)
    assert request.kind == "teach" and request.to == ("b", "c")
    assert talk.send(taught("c")).to == ("a", "c")


def test_a_site_that_holds_fewer_public_images_limits_all():
    talk = conversation(fccl(images=50), {"model": {}, "taught": {}}, clients="ab")
    next(talk)
    assert sorted(talk.send(taught("a", 24.0) + taught("b", 20.0)).body["index"].tolist()) == list(range(20))


def test_a_teacher_is_trained_once_and_the_last_model_follows():
    _, early, _ = played(fccl(**SMALL), rounds=1)
    _, late, round_log = played(fccl(**SMALL), rounds=3)
    for name in early:
        assert_equal(tree.flatten(early[name]["teacher"]), tree.flatten(late[name]["teacher"]))
        assert not torch.equal(
            early[name]["last"]["params"]["head.weight"], late[name]["last"]["params"]["head.weight"]
        )
    asked = [{left.request for left in happened["ledger"]} for happened in round_log]
    assert asked == [{"teach", "tell", "train"}, {"tell", "train"}, {"tell", "train"}]


def test_the_ledger_tells_what_leaves_with_its_size():
    _, _, round_log = played(fccl(**SMALL), rounds=1)
    left = {(one.request, one.name, one.kind, one.bytes) for one in round_log[0]["ledger"]}
    assert ("tell", "logits", "statistics", 16 * 3 * 4) in left and ("teach", "held", "scalars", 4) in left


def test_what_would_leave_is_known_before_it_does():
    method = fccl(images=16)
    like = method.sends["tell"]["logits"].like
    assert like(toy.shared(method), {})["public"].shape == (16, 3)
    assert like(toy.shared(method), {"index": torch.arange(5)})["public"].shape == (5, 3)


def test_a_last_batch_of_one_or_two_images_is_left_out():
    method = fccl(**SMALL)
    site = toy.sites(method)[0]
    start = toy.shared(method)
    private = {"teacher": start["model"], "last": start["model"]}

    def trained(count):
        body = start | {"index": torch.arange(count), "logits": {"public": torch.eye(3).repeat(7, 1)[:count]}}
        return tree.flatten(method.client.handlers["train"](site.reseed(0, "train"), body, private)[0])

    assert_equal(trained(17), trained(16))
    assert_equal(trained(18), trained(16))
    assert not torch.equal(trained(19)["model/params/head.weight"], trained(16)["model/params/head.weight"])


def test_without_its_parts_it_is_uniform_fedavg_to_the_bit_and_needs_no_public_images():
    bare = fccl(images=0, intra=0.0, inter=0.0, pretrain=0)
    assert not bare.public and "tell" not in bare.sends and "public" not in toy.sites(bare)[0].data
    assert_equal(model(bare), model(fedavg("uniform")))


@pytest.mark.parametrize("images", [1, 2])
def test_too_few_public_images_are_refused(images):
    with pytest.raises(ConfigError, match=rf"images={images} is too few for .*; give 3 or more, or images=0"):
        registry.build(f"fccl(images={images})")


def test_a_public_dataset_of_two_images_ends_in_a_line_that_says_so():
    method = fccl(**SMALL)
    sites = toy.sites(method)
    for site in sites:
        x, y = site.data["public"]
        site.data = {**site.data, "public": (x[:2], y[:2])}
    with pytest.raises(FederationError, match=r"public has 2 images, .*; give a dataset with 3 or more"):
        simulate(method, federation=Simulator(method.client, sites))


def test_one_site_is_no_trouble():
    state, _ = simulate(fccl(**SMALL), sizes={"east": 9})
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(state))
