"""The references that pool all data and look at domains apart: each loss written out, and what a small batch does."""

import math
from copy import deepcopy
from functools import partial
from itertools import combinations

import pytest
import torch
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.batch import Batch
from fedbeyond.classifier import read, write
from fedbeyond.data.partition.pooling import pool
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry, runner
from fedbeyond.experiment.config import Config
from fedbeyond.experiment.plan import plan
from fedbeyond.methods import irm as irm_module
from fedbeyond.methods import mmd as mmd_module
from fedbeyond.methods.coral import difference
from fedbeyond.methods.dann import ramp_factor, reverse_gradient
from fedbeyond.methods.erm import domains, erm
from fedbeyond.methods.mmd import between, discrepancy
from fedbeyond.optimizers import sam, sgd
from fedbeyond.site import Site
from fedbeyond.spec import POOLED
from fedbeyond.testing import toy
from fedbeyond.testing.laws import LawBroken, alive, simulate

FEW = {"east": 4, "north": 3, "west": 5}
RATE = 0.05
NAMES = ["dann", "coral", "mmd", "irm", "vrex", "groupdro"]


def pooled_site(method, sizes=FEW, batch_size=99, rounds=1):
    """The toy images of a few sites in one place, all of them in one batch."""
    data, origin = pool(toy.domains(sizes))
    settings = {"augment": method.augment, "batch_size": batch_size, "rounds": rounds, "origin": origin}
    return Site(POOLED, data, toy.nets(method), **settings)


def trained(method, site, private=None, start=None, number=0):
    """What the site answers and keeps after a round."""
    private = method.client.init(site) if private is None else private
    return method.client.handlers["train"](site.reseed(number, "train"), start or toy.shared(method), private)


def batch_of(site, number=0):
    (batch,) = site.reseed(number, "train").batches()
    return batch


def stepped(net, loss, rate=RATE):
    """A network's parameters after one step of gradient descent."""
    slopes = torch.autograd.grad(loss, list(net.parameters()))
    return {name: (p - rate * s).detach() for (name, p), s in zip(net.named_parameters(), slopes, strict=True)}


def assert_close(got, want):
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-6)


def apart(values, batch):
    return [values[batch.origin == number] for number in range(int(batch.origin.max()) + 1)]


# the losses, written out


def mmd_by_hand(net, batch):
    def kernel(a, b):
        return sum(torch.exp(-g * sum((p - q) ** 2 for p, q in zip(a, b, strict=True))) for g in (0.5, 2.0))

    def mean(one, other):
        return sum(kernel(a, b) for a in one for b in other) / (len(one) * len(other))

    groups = apart(net.features(batch.x), batch)
    pairs = [mean(a, a) + mean(b, b) - 2 * mean(a, b) for a, b in combinations(groups, 2)]
    return F.cross_entropy(net(batch.x), batch.y) + 3.0 * sum(pairs) / 3


def coral_by_hand(net, batch, weight=3.0, means=True):
    groups = apart(net.features(batch.x), batch)
    total = 0.0
    for a, b in combinations(groups, 2):
        total = total + (torch.cov(a.T) - torch.cov(b.T)).pow(2).sum() / a.shape[1] ** 2
        total = total + ((a.mean(0) - b.mean(0)).pow(2).sum() / a.shape[1] if means else 0.0)
    return F.cross_entropy(net(batch.x), batch.y) + weight * total / 3


def coral_as_printed(net, batch):
    """1/(4 d^2) ||C_a - C_b||^2 of the paper's Eq. 1, the mean over pairs."""
    groups = apart(net.features(batch.x), batch)
    losses = [((torch.cov(a.T) - torch.cov(b.T)).norm() / (2 * a.shape[1])) ** 2 for a, b in combinations(groups, 2)]
    return F.cross_entropy(net(batch.x), batch.y) + sum(losses) / 3


def irm_by_hand(net, batch, weight, halves=True):
    """With autograd along the scale that the paper has, once for each half of a domain's images."""
    scores, total = net(batch.x), 0.0
    for z, y in zip(apart(scores, batch), apart(batch.y, batch), strict=True):
        scale = torch.ones((), requires_grad=True)
        parts = [(z[0::2], y[0::2]), (z[1::2], y[1::2])] if halves else [(z, y), (z, y)]
        risks = [F.cross_entropy(scale * some, truth) for some, truth in parts]
        one, other = (torch.autograd.grad(risk, scale, create_graph=True)[0] for risk in risks)
        total = total + one * other
    return F.cross_entropy(scores, batch.y) + weight * total / 3


def vrex_by_hand(net, batch):
    scores = net(batch.x)
    risks = [F.cross_entropy(z, y) for z, y in zip(apart(scores, batch), apart(batch.y, batch), strict=True)]
    middle = sum(risks) / 3
    return F.cross_entropy(scores, batch.y) + 5.0 * sum((risk - middle) ** 2 for risk in risks) / 3


def groupdro_by_hand(net, batch):
    scores = net(batch.x)
    risks = [F.cross_entropy(z, y) for z, y in zip(apart(scores, batch), apart(batch.y, batch), strict=True)]
    grown = [math.exp(0.5 * risk.item()) / 3 for risk in risks]
    return sum(q / sum(grown) * risk for q, risk in zip(grown, risks, strict=True))


BY_HAND = {
    "mmd(weight=3.0, gammas=[0.5, 2.0])": mmd_by_hand,
    "coral(weight=3.0)": coral_by_hand,
    "coral(weight=3.0, means=false)": partial(coral_by_hand, means=False),
    "coral:paper": coral_as_printed,
    "irm(weight=7.0, anneal=0, unbiased=true, rescale=false)": partial(irm_by_hand, weight=7.0),
    "irm(weight=7.0, anneal=0, unbiased=false, rescale=false)": partial(irm_by_hand, weight=7.0, halves=False),
    "irm(weight=7.0, anneal=0, unbiased=false, rescale=true)": lambda net, batch: (
        irm_by_hand(net, batch, 7.0, False) / 7
    ),
    "irm(weight=7.0, anneal=1, unbiased=true)": partial(irm_by_hand, weight=1.0),
    "vrex(weight=5.0, anneal=0, rescale=false)": vrex_by_hand,
    "vrex(weight=5.0, anneal=0, rescale=true)": lambda net, batch: vrex_by_hand(net, batch) / 5,
    "groupdro(eta=0.5)": groupdro_by_hand,
}


@pytest.mark.parametrize("spelled", BY_HAND)
def test_a_step_follows_the_loss_written_out(spelled):
    method = registry.build(spelled, optimizer=sgd(RATE))
    site = pooled_site(method)
    batch, net = batch_of(site), deepcopy(site.nets["model"]).train()
    reply, _ = trained(method, site)
    assert_close(reply["model"]["params"], stepped(net, BY_HAND[spelled](net, batch)))
    plain, _ = trained(erm(sgd(RATE)), site, {}, {"model": read(net)})
    moved = tree.sub(reply["model"]["params"], plain["model"]["params"])
    assert float(tree.dot(moved, moved)) > 0  # and not that of plain training


@pytest.mark.parametrize("weight", [0.3, 2.0])
def test_danns_features_climb_what_its_discriminator_descends(weight):
    method = registry.build(f"dann(weight={weight}, width=8)", optimizer=sgd(RATE))
    site = pooled_site(method)
    batch = batch_of(site)
    net, judge = (deepcopy(site.nets[name]).train() for name in ("model", "discriminator"))
    assert judge[-1].out_features == 3
    reply, _ = trained(method, site)
    told = F.cross_entropy(judge(net.features(batch.x)), batch.origin)
    assert_close(reply["discriminator"]["params"], stepped(judge, told))
    told = F.cross_entropy(judge(net.features(batch.x)), batch.origin)
    wanted = F.cross_entropy(net(batch.x), batch.y) - weight * told
    slopes = torch.autograd.grad(wanted, list(net.parameters()))
    want = {name: p - RATE * s for (name, p), s in zip(net.named_parameters(), slopes, strict=True)}
    assert_close(reply["model"]["params"], {name: p.detach() for name, p in want.items()})


def test_reversal_changes_no_feature():
    features = torch.randn(5, 4, requires_grad=True)
    turned = reverse_gradient(features, 0.7)
    assert torch.equal(turned, features)
    turned.sum().backward()
    torch.testing.assert_close(features.grad, torch.full((5, 4), -0.7))


def test_danns_ramp_is_the_papers_schedule():
    class Here:
        site, steps, private = pooled_site(erm(), {"east": 40, "west": 40}, batch_size=8, rounds=4), 0, {}

    for played, steps, p in ((0, 0, 0.0), (0, 5, 0.125), (1, 0, 0.25), (3, 10, 1.0), (3, 99, 1.0)):
        Here.steps, Here.private = steps, {"played": torch.tensor(played)}
        assert ramp_factor(Here) == pytest.approx(2 / (1 + math.exp(-10 * p)) - 1)


# what they become without their own part


@pytest.mark.parametrize("name", ["dann", "coral", "mmd", "irm", "vrex"])
def test_with_weight_zero_it_is_plain_training_to_the_bit(name):
    ours, theirs = (
        tree.flatten(simulate(m)[0]["server"]["model"]) for m in (registry.build(f"{name}(weight=0)"), erm())
    )
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_groupdro_without_steps_on_as_many_images_of_each_domain_is_plain_training():
    even = {"east": 4, "north": 4, "west": 4}
    ours, theirs = (trained(m, pooled_site(m, even))[0] for m in (registry.build("groupdro(eta=0)"), erm()))
    assert_close(tree.flatten(ours), tree.flatten(theirs))


@pytest.mark.parametrize("name", ["coral", "mmd", "vrex"])
def test_where_a_batch_holds_one_domain_it_is_plain_training(name):
    ours, theirs = (trained(m, pooled_site(m, {"east": 6}))[0] for m in (registry.build(name), erm()))
    assert_close(tree.flatten(ours), tree.flatten(theirs))


# batches that hold few images of a domain


@pytest.mark.parametrize("batch_size", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_domains_with_one_image_or_none_in_a_batch_do_no_harm(name, batch_size):
    method = registry.build(name)
    site = pooled_site(method, {"east": 9, "north": 1, "west": 1}, batch_size)
    reply, kept = trained(method, site)
    assert all(leaf.isfinite().all() for leaf in tree.leaves({"reply": reply, "private_bytes": kept}))
    changed = tree.sub(reply["model"]["params"], toy.shared(method)["model"]["params"])
    assert float(tree.dot(changed, changed)) > 0


def test_a_domain_with_too_few_images_is_left_out_and_its_views_count():
    origin = torch.tensor([2, 0, 2, 1, 2])
    batch = Batch(torch.zeros(5, 1), torch.zeros(5), origin=origin)
    assert [place.tolist() for place in domains(batch)] == [[1], [3], [0, 2, 4]]
    assert [place.tolist() for place in domains(batch, least=2)] == [[0, 2, 4]]
    seen_twice = batch._replace(views=(torch.zeros(5, 1),))
    assert [place.tolist() for place in domains(seen_twice, least=2)] == [[1, 6], [3, 8], [0, 2, 4, 5, 7, 9]]
    assert between([torch.ones(3, 2)], torch.dist) == 0


def test_domains_that_are_alike_are_not_apart():
    one = torch.randn(6, 4)
    assert float(discrepancy(one, one.flip(0), gammas=(0.1, 10.0))) == pytest.approx(0, abs=1e-6)
    assert float(difference(one, one.flip(0), means=True)) == pytest.approx(0, abs=1e-6)
    assert float(difference(one, one + 1, means=False)) == pytest.approx(0, abs=1e-6)
    assert float(difference(one, one + 1, means=True)) == pytest.approx(1, abs=1e-5)


# what goes on from round to round


@pytest.mark.parametrize("name", ["irm", "vrex"])
def test_a_penalty_counts_once_until_its_share_of_the_rounds_is_played(name):
    long, once, whole = (
        registry.build(f"{name}(weight={weight}, anneal={anneal}, rescale=false)", optimizer=sgd(RATE))
        for weight, anneal in ((3.0, 0.2), (1.0, 0.0), (3.0, 0.0))
    )
    site, private = pooled_site(long, rounds=10), long.client.init(pooled_site(long))
    for number in range(4):
        before = private
        reply, private = trained(long, site, before, number=number)
        like, _ = trained(once if number < 2 else whole, site, before, number=number)
        assert int(private["played"]) == number + 1
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(reply), tree.leaves(like), strict=True))


def test_groupdros_weights_go_on_from_round_to_round():
    method = registry.build("groupdro(eta=2.0)", optimizer=sgd(RATE))
    site, weights, model, private = pooled_site(method), [1 / 3] * 3, toy.shared(method), None
    net = deepcopy(site.nets["model"])
    for number in range(3):
        batch = batch_of(site, number)
        scores = write(net, model["model"]).train()(batch.x)
        risks = [F.cross_entropy(z, y).item() for z, y in zip(apart(scores, batch), apart(batch.y, batch), strict=True)]
        weights = [q * math.exp(2.0 * risk) for q, risk in zip(weights, risks, strict=True)]
        weights = [q / sum(weights) for q in weights]
        model, private = trained(method, site, private, model, number)
        assert private.keys() == {"logs"} and private["logs"].exp().tolist() == pytest.approx(weights, rel=1e-4)
    assert max(weights) > 0.35


def test_groupdros_weights_move_once_a_batch_also_under_sam():
    plain, twice = (registry.build("groupdro(eta=2.0)", optimizer=o) for o in (sgd(RATE), sam(rho=0.5, lr=RATE)))
    (reply, kept), (other, same) = (trained(m, pooled_site(m)) for m in (plain, twice))
    assert torch.equal(kept["logs"], same["logs"])
    assert not torch.equal(reply["model"]["params"]["head.weight"], other["model"]["params"]["head.weight"])


def test_a_domain_that_is_not_in_a_batch_keeps_its_weight_beside_the_others():
    method = registry.build("groupdro(eta=1.0)")
    site = pooled_site(method)
    rows = site.origin != 1
    x, y = site.data["train"]
    site.data, site.origin = {"train": (x[rows.nonzero().flatten()], y[rows])}, site.origin[rows]
    risk = {}
    for number in (0, 2):
        batch = batch_of(site)
        mine = batch.origin == number
        risk[number] = F.cross_entropy(deepcopy(site.nets["model"]).train()(batch.x)[mine], batch.y[mine]).item()
    _, kept = trained(method, site)
    grown = [math.exp(risk[0]), 1.0, math.exp(risk[2])]
    assert kept["logs"].exp().tolist() == pytest.approx([q / sum(grown) for q in grown], rel=1e-4)


# the four silent errors of FedDG_Benchmark, planted: the law finds each


def overwritten(local, weight, anneal):
    """The penalty's weight as it was given, but for a last line too many."""
    weight = weight if anneal == 0 else min(weight, 1.0)
    weight = 0.0
    return weight


def zeroed_by_for_else(groups, distance):
    """The `else` of a loop without `break` runs every time, and undoes it."""
    penalty = 0.0
    for one, other in combinations(groups, 2):
        penalty = penalty + distance(one, other)
    else:
        penalty = 0.0
    return penalty


@pytest.mark.parametrize(
    ("name", "module", "part", "planted"),
    [
        ("irm", irm_module, "strength", overwritten),
        ("vrex", irm_module, "strength", overwritten),
        ("mmd", mmd_module, "between", zeroed_by_for_else),
        ("coral", mmd_module, "between", zeroed_by_for_else),
    ],
)
def test_a_penalty_that_is_lost_is_found_out(name, module, part, planted, monkeypatch):
    alive(partial(registry.build, name), [erm])
    monkeypatch.setattr(module, part, planted)
    with pytest.raises(LawBroken, match="the method has no effect"):
        alive(partial(registry.build, name), [erm])


# refusals


@pytest.mark.parametrize("name", NAMES)
def test_one_source_domain_is_refused_before_training_and_in_a_plan(name, small):
    config = Config(method=name, **small | {"target": "sketch+photo+cartoon"})
    for ask in (runner.prepare, plan):
        with pytest.raises(ConfigError, match=f"{name} needs at least 2 domains"):
            ask(config)


def test_mmd_without_kernels_is_refused():
    with pytest.raises(ConfigError, match="leaves no kernel"):
        registry.build("mmd(gammas=[])")


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_on_tables_too(name, tmp_path):
    rng = torch.Generator().manual_seed(0)
    rows = [f"{site},{float(torch.randn((), generator=rng)):.3f},{i % 2}" for site in "abc" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,y", *rows]))
    data = f"table(path='{tmp_path}/t.csv', site=site, label=y)"
    config = Config(method=name, target="c", data=data, network="mlp(hidden=[4])")
    made = runner.prepare(config)
    assert name != "dann" or made.nets["discriminator"][-1].out_features == 2  # the sources, and no more
    (line, *_) = runner.run(made, tmp_path / name)
    assert set(line["scores"]) == {"a", "b", "c"}
