"""Styles as statistics of feature maps: CCST takes those of other sites, MixStyle those of the same batch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import Task
from fedbeyond.client import Local
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.experiment.build import ensure_runnable
from fedbeyond.methods.ccst import ccst, stage_hook
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.networks._convnet import convnet
from fedbeyond.networks._mlp import mlp
from fedbeyond.networks._vit import vit_b_32
from fedbeyond.optimizers import plain_sgd, sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.mixstyle import mixed, mixstyle
from support.asserts import assert_close, assert_equal, model

ALONE = {"east": 8}  # one site, one batch


def test_a_sites_overall_style_is_that_of_all_places_of_all_its_images():
    state, _ = simulate(ccst(), rounds=1)
    first = toy.shared(fedavg())["model"]["params"]
    for name, splits in toy.domains().items():
        maps = F.conv2d(splits["train"][0], first["body.0.weight"], first["body.0.bias"], padding=1).numpy()
        told = state["server"]["bank"][name]["style"]
        np.testing.assert_allclose(told["mean"][0], maps.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(told["spread"][0], maps.std((0, 2, 3)), rtol=1e-4, atol=1e-6)


def test_single_styles_are_those_of_some_images_and_come_again_where_there_are_too_few():
    state, _ = simulate(ccst("single", images=24), rounds=1)
    first = toy.shared(fedavg())["model"]["params"]
    for name, splits in toy.domains().items():
        maps = F.conv2d(splits["train"][0], first["body.0.weight"], first["body.0.bias"], padding=1).numpy()
        own = np.concatenate((maps.mean((2, 3)), maps.std((2, 3))), 1)
        told = state["server"]["bank"][name]["style"]
        sent = np.concatenate((told["mean"], told["spread"]), 1)
        gaps = np.abs(sent[:, None] - own[None]).max(2)
        assert len(sent) == 24 and gaps.min(1).max() < 1e-5
        assert len(set(gaps.argmin(1))) == min(24, len(own))


def test_at_a_later_stage_styles_are_measured_by_the_batch_and_leave_running_statistics_alone():
    method = ccst(stage=2)
    (site,) = toy.sites(method, ALONE)
    start = toy.shared(method)["model"]
    reply, kept = method.client.handlers["styles"](site, {"model": start}, {})
    maps = site.nets["model"].body(toy.domains(ALONE)["east"]["train"][0])  # BatchNorm is still by the batch
    torch.testing.assert_close(reply["style"]["mean"][0], maps.mean((0, 2, 3)).detach(), rtol=1e-4, atol=1e-5)
    before = toy.nets(method)["model"].train()
    assert_close(
        {"spread": reply["style"]["spread"][0]},
        {"spread": before.body(toy.domains(ALONE)["east"]["train"][0]).std((0, 2, 3), correction=0).detach()},
    )
    method.client.handlers["styles"](site, {"model": start}, {})
    assert torch.equal(site.nets["model"].body[1].running_mean, start["buffers"]["body.1.running_mean"])
    assert kept == {}


def test_a_step_on_maps_in_another_sites_style_by_hand():
    lr, style = 0.5, {"mean": torch.tensor([[0.5, -1.0, 2.0, 0.0]]), "spread": torch.tensor([[1.0, 0.3, 2.0, 0.7]])}
    method = ccst(share=1.0, optimizer=sgd(lr))
    (site,) = toy.sites(method, ALONE)
    nowhere = {"mean": torch.zeros(1, 4), "spread": torch.zeros(1, 4)}
    bank = {"east": {"style": nowhere}, "west": {"style": style}}
    reply, _ = method.client.handlers["train"](site, {"model": toy.shared(method)["model"], "bank": bank}, {})
    x, y = toy.domains(ALONE)["east"]["train"]
    net = toy.nets(fedavg())["model"].train()
    maps = net.body[0](x)
    mean, spread = maps.mean((2, 3), keepdim=True).detach(), maps.std((2, 3), correction=0, keepdim=True).detach()
    maps = style["spread"][:, :, None, None] * (maps - mean) / spread + style["mean"][:, :, None, None]
    scores = net.head(net.body[2](net.body[1](maps)).mean((2, 3)))
    F.cross_entropy(scores, y).backward()
    for name, param in net.named_parameters():
        want = (param - lr * param.grad).detach()
        torch.testing.assert_close(reply["model"]["params"][name], want, rtol=1e-3, atol=1e-4)


def test_ccst_without_a_share_is_uniform_fedavg_to_the_bit():
    assert_equal(model(ccst(share=0.0)), model(fedavg("uniform")))


def test_ccst_is_fedavg_to_the_bit_while_nobody_else_has_been_asked():
    ours, theirs = (simulate(method, rounds=1, asked=1)[0]["server"]["model"] for method in (ccst(), fedavg()))
    assert_equal(tree.flatten(ours), tree.flatten(theirs))


@pytest.mark.parametrize(("every", "times"), [(None, 1), (2, 2), (1, 4)])
def test_styles_are_asked_for_once_or_every_so_many_rounds(every, times):
    _, round_log = simulate(ccst(every=every), rounds=4)
    told = [left.client for happened in round_log for left in happened["ledger"] if left.name == "style"]
    assert sorted(told) == sorted([*toy.SIZES] * times)


def test_who_is_not_asked_stays_in_the_bank_when_styles_are_renewed():
    state, _ = simulate(ccst(every=1), rounds=6, asked=2)
    assert state["server"]["bank"].keys() == toy.SIZES.keys()


def test_ccst_needs_another_site_early_stages_and_images():
    with pytest.raises(ConfigError, match="needs at least 2 sites"):
        ensure_runnable(ccst(), SimpleNamespace(method="ccst", target="photo"), 1)
    with pytest.raises(ConfigError, match=r"stage=3, but this network has 2 early stages"):
        ccst(stage=3).networks(toy.TASK)
    with pytest.raises(ConfigError, match="ccst needs the maps of a network's early layers"):
        ccst().networks(Task(("a", "b"), (3, 32, 32), vit_b_32()))
    with pytest.raises(ConfigError, match="needs images"):
        ccst().networks(Task(("a", "b"), (5,), mlp()))


def test_nothing_acts_on_a_network_afterwards():
    net = convnet(2)(Task(("a", "b"), (3, 8, 8), None))
    with stage_hook(net, 2, torch.zeros_like):
        assert sum(len(part._forward_hooks) for part in net.modules()) == 1
        assert float(net.maps(torch.rand(2, 3, 8, 8)).detach().var(0).max()) == 0
    assert not any(part._forward_hooks for part in net.modules())


# MixStyle


def test_styles_are_mixed_as_the_paper_says():
    rng = torch.Generator().manual_seed(0)
    maps = torch.randn(5, 3, 4, 6, generator=rng)
    shares, partner = torch.rand(5, 1, 1, 1, generator=rng), torch.tensor([3, 4, 0, 1, 2])
    got = mixed(maps, shares, partner).numpy()
    for i in range(5):
        for c in range(3):
            own, other = maps[i, c].numpy(), maps[partner[i], c].numpy()
            share = shares[i].item()
            mean = share * own.mean() + (1 - share) * other.mean()
            spread = share * own.std() + (1 - share) * other.std()
            np.testing.assert_allclose(got[i, c], spread * (own - own.mean()) / own.std() + mean, rtol=1e-3, atol=1e-4)


def test_no_gradient_passes_through_styles():
    maps = torch.randn(2, 1, 3, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mixed(maps, torch.zeros(2, 1, 1, 1), torch.tensor([1, 0]))[0].sum().backward()
    spread = maps.detach().std((2, 3), correction=0)
    torch.testing.assert_close(
        maps.grad[0], torch.full((1, 3, 3), (spread[1] / spread[0]).item()), rtol=1e-3, atol=1e-4
    )
    assert not maps.grad[1].any()


def test_maps_of_one_place_and_batches_of_one_image_are_finite():
    maps = torch.randn(1, 3, 1, 1, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mixed(maps, torch.full((1, 1, 1, 1), 0.3), torch.zeros(1).long()), maps)
    assert bool(torch.distributions.Beta(0.1, 0.1).sample((100_000,)).isfinite().all())


def test_mixstyle_acts_in_training_alone():
    net, bare = (toy.nets(method)["model"] for method in (mixstyle(fedavg(), chance=1.0, alpha=1.0), fedavg()))
    x = torch.rand(6, 3, 6, 6)
    assert torch.equal(net.eval()(x), bare.eval()(x))
    assert not torch.allclose(net.train()(x), bare.train()(x))
    assert {place for place, part in net.named_modules() if part._forward_hooks} == {"body.0", "body.2"}


def test_mixstyle_leaves_a_guide_alone():
    method = mixstyle(registry.build("fedgca"), chance=1.0, alpha=1.0)
    (site,) = toy.sites(method, ALONE)
    start = toy.shared(method)["model"]
    local = Local(site, {"model": start}, method.client.init(site), plain_sgd)
    x = site.data["train"][0]
    assert torch.equal(local.guide(x), local.guide(x))
    assert not torch.allclose(local.net(x), local.net(x))


def test_mixstyle_by_no_chance_is_the_method_to_the_bit():
    assert_equal(model(mixstyle(fedavg(), chance=0.0)), model(fedavg()))


def test_mixstyle_needs_early_stages():
    with pytest.raises(
        ConfigError,
        match="mixstyle needs the maps of a network's early layers, and Perceptron gives only logits and features",
    ):
        mixstyle(fedavg()).networks(Task(("a", "b"), (5,), mlp()))
    with pytest.raises(ConfigError, match="mixstyle needs the maps"):
        mixstyle(fedavg()).networks(Task((), (3, 6, 6), lambda task: nn.Linear(1, 1)))
