"""Running statistics of BatchNorm from one batch, and the fixed clean images of a site that they are measured on."""

from dataclasses import replace

import torch
from torch import nn

from fedbeyond.classifier import Classifier, batchnorm_layers
from fedbeyond.images import View, pixels
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.networks.batchnorm import frozen
from fedbeyond.networks.running_statistics import refresh
from fedbeyond.site import Site
from fedbeyond.testing import toy


def test_statistics_become_the_mean_and_the_biased_variance_of_the_batch():
    layer = nn.BatchNorm1d(2)
    layer.running_mean.fill_(9), layer.num_batches_tracked.fill_(5)
    refresh(layer.train(), torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]]))
    torch.testing.assert_close(layer.running_mean, torch.tensor([3.0, 2.0]))
    torch.testing.assert_close(layer.running_var, torch.tensor([8 / 3, 8.0]))  # (4+0+4)/3, (4+4+16)/3
    assert int(layer.num_batches_tracked) == 5 and not layer.training


def test_a_later_layer_sees_what_the_earlier_one_puts_out_with_its_new_statistics():
    torch.manual_seed(0)
    first, second = nn.BatchNorm2d(3), nn.BatchNorm2d(4)
    mix = nn.Conv2d(3, 4, 1)
    net = nn.Sequential(first, mix, nn.Dropout(0.9), nn.ReLU(), second).train()
    for layer in (first, second):
        layer.running_mean.fill_(7), layer.running_var.fill_(3)
        nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    x = torch.randn(5, 3, 4, 4) * 2 + 1
    refresh(net, x)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    scale, shift = first.weight.view(3, 1, 1), first.bias.view(3, 1, 1)
    h = (x - mean.view(3, 1, 1)) / (variance + first.eps).view(3, 1, 1).sqrt() * scale + shift
    h = mix(h).relu().detach()  # no dropout
    torch.testing.assert_close(first.running_mean, mean)
    torch.testing.assert_close(first.running_var, variance)
    torch.testing.assert_close(second.running_mean, h.mean((0, 2, 3)))
    torch.testing.assert_close(second.running_var, h.var((0, 2, 3), correction=0))
    assert not net.training and all(int(layer.num_batches_tracked) == 0 for layer in (first, second))
    assert not net(x).isnan().any() and all(not layer._forward_pre_hooks for layer in net.modules())
    assert all(param.grad is None for param in net.parameters())


def test_a_network_whose_statistics_cannot_change_is_not_run():
    class Unused(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            raise AssertionError("a pass for nothing")

    still = nn.BatchNorm2d(3)
    still.frozen = True
    for layer in (nn.Linear(3, 3), nn.BatchNorm2d(3, track_running_stats=False), still):
        net = Unused(layer)
        refresh(net, torch.randn(2, 3, 4, 4))
        assert not net.training


def test_frozen_statistics_stay():
    net = frozen(fedavg()).networks(toy.TASK)["model"]
    refresh(net, torch.randn(4, 3, 6, 6))
    ((_, layer),) = batchnorm_layers(net)
    assert layer.running_mean.tolist() == [0] * 4 and layer.running_var.tolist() == [1] * 4
    other = fedavg().networks(toy.TASK)["model"]
    refresh(other, torch.randn(4, 3, 6, 6))
    assert isinstance(other, Classifier) and other.body[1].running_mean.any()


def made(count, **options):
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(256, (count, 3, 4, 4), generator=rng, dtype=torch.uint8)
    return Site("east", {"train": (x, torch.zeros(count, dtype=torch.long))}, {}, **options), x


def test_clean_images_are_a_fixed_sample_of_the_training_images_as_they_are():
    method = replace(fedavg(), augment=lambda batch, rng: batch._replace(x=batch.x * 0))
    site, x = made(400, augment=method.augment)
    first = site.reseed(0, "train").clean()
    before = site.rng.get_state()
    assert first.shape == (256, 3, 4, 4) and torch.equal(site.reseed(3, "score").clean(), first)
    assert torch.equal(site.reseed(0, "train").rng.get_state(), before)
    rows = {tuple(row.flatten().tolist()) for row in pixels(x)}
    drawn = {tuple(row.flatten().tolist()) for row in first}
    assert len(drawn) == 256 and drawn <= rows
    assert torch.equal(site.clean(9), site.clean(9)) and site.clean(9).shape[0] == 9


def test_asking_for_clean_images_changes_no_batch_that_follows():
    site, _ = made(40)
    plain = [batch.x for batch in site.reseed(0, "train").batches()]
    site.reseed(0, "train").clean()
    assert all(torch.equal(one, batch.x) for one, batch in zip(plain, site.batches(), strict=True))


def test_clean_images_depend_on_the_seed_and_the_site_and_a_small_site_gives_all():
    site, x = made(400)
    assert not torch.equal(site.clean(), made(400, seed=1)[0].clean())
    other = Site("west", site.data, {})
    assert not torch.equal(site.clean(), other.clean())
    few, x = made(10)
    assert torch.equal(few.clean(), pixels(x))
    view = Site("east", {"train": (View([x], [torch.arange(10)]), torch.zeros(10, dtype=torch.long))}, {})
    assert torch.equal(view.clean(), pixels(x))
