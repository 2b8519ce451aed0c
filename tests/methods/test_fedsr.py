"""FedSR: its Gaussian features, its regularisers, and what stays at the site."""

import math
from dataclasses import replace

import pytest
import torch
from torch import distributions as dist
from torch.nn import functional as F

from fedbeyond.batch import Batch
from fedbeyond.classifier import Task, read
from fedbeyond.client import Local
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedsr import SAMPLES, Gaussian, Reference, fedsr, simple
from fedbeyond.networks._convnet import convnet
from fedbeyond.networks._mlp import mlp
from fedbeyond.optimizers import plain_sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.rc import rc
from support.asserts import assert_equal, model


@pytest.fixture
def net():
    return toy.nets(fedsr())["model"]


def images(count=5, seed=0):
    return torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_a_regularised_batch_by_hand(net):
    method = fedsr()
    site = toy.sites(method)[0]
    reference = {"mean": torch.randn(3, 4), "spread": torch.randn(3, 4), "scale": torch.tensor(-0.7)}
    private = {"reference": {"params": reference, "buffers": {}}}
    received = {"model": read(site.nets["model"])}
    x, y = images(), torch.tensor([0, 1, 2, 1, 1])
    for square in (False, True):
        local = Local(site, received, private, plain_sgd, ("reference",))
        torch.manual_seed(3)
        got = simple(0.3, 0.2, square)(local, Batch(x, y))

        net.load_state_dict(site.nets["model"].state_dict())
        net.train()
        torch.manual_seed(3)
        numbers = net.body.head(net.body.body(x).mean((2, 3)))
        mean, spread = numbers[:, :4], F.softplus(numbers[:, 4:])
        z = mean + spread * torch.randn(5, 4)
        scores = z @ net.head.weight.T + net.head.bias
        want = -scores.log_softmax(1)[range(5), y].mean()
        length = z.square().sum(1)
        want = want + 0.3 * (length if square else length.sqrt()).mean()
        ours = dist.Normal(-0.7 * mean, 0.7 * spread)
        wanted = dist.Normal(reference["mean"][y], F.softplus(reference["spread"])[y])
        want = want + 0.2 * dist.kl_divergence(ours, wanted).sum(1).mean()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_reference_of_a_class_that_is_not_in_the_batch_is_left_alone():
    reference = Reference(3, 4)
    reference(torch.randn(2, 4), torch.rand(2, 4) + 0.1, torch.tensor([0, 2])).backward()
    assert float(reference.mean.grad[1].abs().sum()) == float(reference.spread.grad[1].abs().sum()) == 0
    assert float(reference.mean.grad[0].abs().sum()) > 0


def test_a_spread_that_vanishes_and_a_scale_of_zero_stay_finite(net):
    reference = Reference(3, 4)
    torch.nn.init.zeros_(reference.scale)
    torch.nn.init.constant_(reference.spread, -200.0)
    torch.nn.init.constant_(net.body.head.bias, -200.0)
    loss = reference(*net.gaussian(images()), torch.zeros(5, dtype=torch.long))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(net.body.head.weight.grad).all()


def test_an_image_is_judged_by_the_mean_probability_of_twenty_draws(net):
    net.eval()
    x = images()
    mean, spread = net.gaussian(x)
    draws = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    probabilities = [net.head(mean + spread * draw).softmax(1) for draw in draws]
    torch.testing.assert_close(net(x).exp(), torch.stack(probabilities).mean(0))
    assert SAMPLES == 20 and torch.allclose(net(x).exp().sum(1), torch.ones(5))


def test_judging_draws_nothing_and_does_not_depend_on_the_other_images(net):
    net.eval()
    x, before = images(), torch.get_rng_state()
    assert torch.equal(net(x), net(x))
    torch.testing.assert_close(net(x)[2:3], net(x[2:3]))
    assert torch.equal(torch.get_rng_state(), before)
    net.train()
    assert not torch.equal(net(x), net(x)), "in training features are drawn anew"


def test_it_is_a_classifier_like_others(net):
    x, net = images(), net.eval()
    maps, scores = net.maps_and_logits(x)
    assert torch.equal(maps, net.maps(x))
    torch.testing.assert_close(net.features(x), net.pooled(maps))
    torch.testing.assert_close(scores, net.head(net.features(x)))
    assert [type(net.get_submodule(stage)).__name__ for stage in net.stages] == ["Conv2d", "ReLU"]


@pytest.mark.parametrize(("network", "shape"), [(convnet(4), (3, 16, 16)), (mlp((8,)), (5,))], ids=["convnet", "mlp"])
def test_any_classifier_can_be_made_gaussian(network, shape):
    nets = fedsr().networks(Task(("a", "b", "c"), shape, network))
    assert isinstance(nets["model"], Gaussian)
    assert nets["model"](torch.rand(2, *shape)).shape == (2, 3)
    assert nets["reference"].mean.shape == (3, nets["model"].features(torch.rand(2, *shape)).shape[1])


def test_the_reference_stays_at_its_site_unless_it_is_shared():
    method = fedsr(cmi=0.1)
    federation = Simulator(method.client, toy.sites(method))
    state, round_log = simulate(method, federation=federation)
    assert {left.name for happened in round_log for left in happened["ledger"]} == {"model"}
    kept = [
        client_state["pending"]["private"]["reference"]["params"]["mean"]
        for client_state in federation.client_states.values()
    ]
    assert all(float(one.abs().sum()) > 0 for one in kept) and not torch.equal(kept[0], kept[1])
    assert "reference" not in state["server"]

    method = fedsr(cmi=0.1, share_r=True)
    federation = Simulator(method.client, toy.sites(method))
    state, round_log = simulate(method, federation=federation)
    assert {left.name for happened in round_log for left in happened["ledger"]} == {"model", "reference"}
    assert float(state["server"]["reference"]["params"]["mean"].abs().sum()) > 0
    assert all(client_state["pending"]["private"] == {} for client_state in federation.client_states.values())


def test_a_site_starts_from_an_untrained_reference_whatever_its_networks_went_through():
    method = fedsr()
    site = toy.sites(method)[0]
    for param in site.nets["reference"].parameters():
        torch.nn.init.constant_(param, 7.0)
    (first,) = method.client.init(site).values()
    assert {name: set(leaf.flatten().tolist()) for name, leaf in first["params"].items()} == {
        "mean": {0.0},
        "spread": {1.0},
        "scale": {1.0},
    }


def test_without_its_regularisers_fedsr_is_uniform_fedavg_on_its_network():
    off = fedsr(l2r=0.0, cmi=0.0)
    assert list(off.networks(toy.TASK)) == ["model"]
    assert_equal(model(off), model(replace(fedavg("uniform"), networks=off.networks)))


def test_views_have_features_of_their_own():
    plain, viewed = model(fedsr()), model(rc(fedsr()))
    assert any(not torch.equal(plain[name], viewed[name]) for name in plain)


def test_a_single_image_can_be_trained_on():
    assert all(math.isfinite(float(leaf.sum())) for leaf in model(fedsr(), sizes={"east": 1}).values())


def test_sharing_nothing_is_refused():
    with pytest.raises(ConfigError, match="cmi=0 learns nothing"):
        registry.build("fedsr(cmi=0, share_r=true)")
