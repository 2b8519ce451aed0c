"""RSC: what is masked, for whom, and through which heads."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbeyond.batch import Batch
from fedbeyond.classifier import Classifier, Task, read
from fedbeyond.client import Local
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import build, registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.rsc import challenged, channel_mask, largest, place_mask, rsc
from fedbeyond.optimizers import sgd
from fedbeyond.server import Round
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.asserts import assert_close, assert_equal, model

X, Y = torch.rand(9, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3


class Deep(Classifier):
    """A head behind further layers, as AlexNet's: no map is weighed by it directly."""

    attentive = False

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()), 7, 3)
        self.after = nn.Sequential(nn.Dropout(), nn.Linear(5 * 16, 7), nn.ReLU())

    def pooled(self, maps):
        return self.after(maps.flatten(1))


def local(net, share):
    (site, *_) = toy.sites(fedavg())
    site.nets = {"model": net}
    return Local(site.reseed(0, "train"), {"model": read(net), "samples": torch.tensor(share)}, {}, sgd())


@pytest.mark.parametrize("spatial", [True, False])
def test_a_batch_by_hand(spatial):
    torch.manual_seed(0)
    net = toy.tiny(toy.TASK)
    ours = challenged(1 / 3, 1 / 2, 1.0 if spatial else 0.0, "maps")(local(net, 1 / 3), Batch(X, Y))
    # the head weighs the mean of each map, so the slope of a score along a map is its weight / 36 everywhere
    maps = torch.relu(F.batch_norm(net.body[0](X), None, None, net.body[1].weight, net.body[1].bias, training=True))
    masks, drops = [], []
    for z, y in zip(maps, Y, strict=True):
        weights, mask = net.head.weight[y], torch.ones_like(z)
        if spatial:
            order = (weights[:, None, None] * z).sum(0).flatten().argsort(descending=True)
            mask.flatten(1)[:, order[:12]] = 0  # a third of 36 places
        else:
            mask[weights.argsort(descending=True)[:2]] = 0  # half of four channels
        before, after = (net.head(one.mean((1, 2))).softmax(0)[y] for one in (z, z * mask))
        masks.append(mask), drops.append((before - after).item())
    worst = sorted(range(9), key=lambda i: -drops[i])[:3]
    seen = torch.stack([z * (mask if i in worst else 1) for i, (z, mask) in enumerate(zip(maps, masks, strict=True))])
    torch.testing.assert_close(ours, F.cross_entropy(net.head(seen.mean((2, 3))), Y))


@pytest.mark.parametrize("coin", [0.0, 1.0])
def test_a_head_that_does_not_weigh_maps_is_challenged_through_its_own_slope(coin):
    torch.manual_seed(0)
    net = Deep()
    maps = net.body(X).detach()
    net.eval()
    slope = torch.zeros_like(maps)
    for i in range(9):  # by differences: a score's slope along each feature of each image
        for place in range(maps[0].numel()):
            moved = maps[i : i + 1].clone()
            moved.view(-1)[place] += 1e-3
            change = net.head(net.pooled(moved)) - net.head(net.pooled(maps[i : i + 1]))
            slope[i].view(-1)[place] = change[0, Y[i]].detach() / 1e-3
    mean = slope.mean((2, 3))
    if coin:
        strength = torch.stack([(mean[i][:, None, None] * maps[i]).sum(0).flatten() for i in range(9)])
        mask = largest(strength, 1 / 4).view(9, 1, 4, 4)
        torch.testing.assert_close(mask.sum((1, 2, 3)), torch.full((9,), 12.0))
    else:
        mask = largest(mean, 2 / 5)[:, :, None, None]
    net.after[0].p = 0.0  # what is left of the loss is not random
    ours = challenged(1 / 4, 2 / 5, coin, "maps")(local(net, 1.0), Batch(X, Y))
    torch.testing.assert_close(ours, F.cross_entropy(net.head(net.pooled(maps * mask)), Y), rtol=1e-3, atol=1e-3)
    ours.backward()
    assert net.training and all(param.grad is not None for param in net.parameters())


def test_masks_leave_the_rest_alone():
    slope = torch.tensor([[3.0, 1.0, 2.0], [0.0, -1.0, 5.0]])[:, :, None, None].expand(2, 3, 2, 2)
    assert channel_mask(slope, 1 / 3).squeeze().tolist() == [[0, 1, 1], [1, 1, 0]]
    maps = torch.zeros(2, 3, 2, 2)
    maps[0, 0, 1, 0] = maps[1, 2, 0, 1] = 1.0
    assert place_mask(maps, slope, 1 / 4).flatten(1).tolist() == [[1, 1, 0, 1], [1, 0, 1, 1]]
    assert largest(torch.rand(2, 5), 0.01).sum(1).tolist() == [4, 4]  # one at least
    assert largest(torch.rand(2, 5), 0.0).sum(1).tolist() == [5, 5]


def test_maps_of_one_place_are_challenged_by_channels():
    net = toy.tiny(toy.TASK)
    net.body.append(nn.AdaptiveAvgPool2d(1))
    by_place, by_channel = (challenged(0.5, 0.5, coin, "maps")(local(net, 1.0), Batch(X, Y)) for coin in (1.0, 0.0))
    assert torch.equal(by_place, by_channel)


def test_without_samples_it_is_fedavg():
    assert_close(model(rsc(samples=0.0)), model(fedavg()))


def test_on_features_of_a_plain_head_it_is_the_channel_mask():
    assert_close(model(rsc(where="features", coin=0.0)), model(rsc(coin=0.0)))


def test_views_are_challenged_too():
    net = toy.tiny(toy.TASK)
    term = challenged(1 / 3, 1 / 3, 1.0, "maps")
    merged = term(local(net, 1 / 3), Batch(torch.cat((X, X + 1)), Y.repeat(2)))
    assert torch.equal(term(local(net, 1 / 3), Batch(X, Y, (X + 1,))), merged)


def test_running_statistics_take_note_once_a_batch():
    state = simulate(rsc(), 1)[0]["server"]["model"]["buffers"]
    assert int(state["body.1.num_batches_tracked"]) == 3  # 20 images in eights


def test_the_share_of_images_grows_over_the_rounds():
    method = rsc(samples=0.25, grow=0.5)
    state = method.server.init(toy.shared(method))
    bodies = [next(method.server.round(state, Round(n, 4, ("east",), ("east",)))).body for n in range(4)]
    assert [float(body["samples"]) for body in bodies] == [0.25, 0.375, 0.5, 0.625]
    assert float(next(rsc(samples=1.0, grow=1.0).server.round(state, Round(3, 4, (), ()))).body["samples"]) == 1


def test_a_batch_of_one_does_no_harm():
    net = Deep()
    value = challenged(1 / 3, 1 / 3, 0.5, "maps")(local(net, 1 / 3), Batch(X[:1], Y[:1]))
    assert bool(torch.isfinite(value))


@pytest.mark.parametrize(
    ("network", "shape", "complaint"),
    [
        (
            "vit_b_32",
            (3, 32, 32),
            "feature maps that its head averages, and vit_b_32 gives only logits and features and maps",
        ),
        ("mlp", (5,), "rsc needs images"),
    ],
)
def test_networks_without_maps_are_refused_unless_features_will_do(network, shape, complaint):
    task = Task(("no", "yes"), shape, registry.make_one("networks", network))
    with pytest.raises(ConfigError, match=complaint):
        build.networks(rsc(), task, 0, "meta")
    assert "model" in build.networks(rsc(where="features"), task, 0, "meta")


def test_tables_are_challenged_by_features():
    task = Task(("no", "yes"), (5,), registry.make_one("networks", "mlp(hidden=[6])"))
    net = build.networks(rsc(where="features"), task, 0, "cpu")["model"]
    x, y = torch.rand(6, 5), torch.arange(6) % 2
    loss = challenged(1 / 3, 1 / 2, 1.0, "features")(local(net, 1.0), Batch(x, y))
    h = net.features(x)
    want = [net.head(h[i] * (largest(net.head.weight[y[i]][None], 1 / 2)[0])) for i in range(6)]
    torch.testing.assert_close(loss, F.cross_entropy(torch.stack(want), y))


def test_alexnet_can_be_challenged():
    task = Task(("no", "yes"), (3, 63, 63), registry.make_one("networks", "alexnet"))
    with torch.device("meta"):
        net = rsc().networks(task)["model"]
    assert not net.attentive and isinstance(net, Classifier)


def test_presets_are_what_they_say():
    assert_equal(model(registry.build("rsc:paper")), model(rsc(channels=1 / 3)))
    assert_equal(model(registry.build("rsc:official")), model(rsc(samples=0.3, grow=0.4)))
