"""Amplitudes that leave sites: HarmoFL gives all images their mean, ELCFS blends them into other sites' images."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.data.spectrum import amplitudes, blend, size
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import require
from fedbeyond.laws import simulate, toy
from fedbeyond.methods.elcfs import elcfs
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.ga import ga
from fedbeyond.methods.harmofl import Harmonised, harmofl
from fedbeyond.nets import Task, convnet, read
from fedbeyond.nets.mlp import mlp
from fedbeyond.nets.mobilenet import mobilenet_v2
from fedbeyond.nets.vit import vit_b_32
from fedbeyond.optimizers import sgd
from test_reductions import assert_close, assert_equal, model

X = torch.rand(4, 3, 8, 7, generator=torch.Generator().manual_seed(3))
Z = torch.rand(4, 3, 8, 7, generator=torch.Generator().manual_seed(4)) * 2
ALONE = {"east": 8}  # one site, one batch


def swapped(x, z, share, ratio=1.0):
    """By the whole complex spectrum, its middle moved to the middle of the array, and a window cut out there."""
    ours, theirs = (np.fft.fftshift(np.fft.fft2(some.numpy()), axes=(2, 3)) for some in (x, z))
    amplitude, other = np.abs(ours), np.abs(theirs)
    height, width = x.shape[2:]
    middle = height // 2, width // 2
    reach = int(share * height / 2), int(share * width / 2)
    place = tuple(slice(max(m - r, 0), m + r + 1) for m, r in zip(middle, reach, strict=True))
    amplitude[:, :, *place] = (1 - ratio) * amplitude[:, :, *place] + ratio * other[:, :, *place]
    mixed = np.fft.ifft2(np.fft.ifftshift(amplitude * np.exp(1j * np.angle(ours)), axes=(2, 3)))
    assert np.abs(mixed.imag).max() < 1e-6
    return torch.tensor(mixed.real, dtype=torch.float32)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("ratio", [1.0, 0.3])
def test_a_window_of_amplitudes_is_blended_and_phases_stay(share, ratio):
    given = amplitudes(Z, share)
    assert given.shape[1:] == size((3, 8, 7), share)
    torch.testing.assert_close(blend(X, given, share, ratio), swapped(X, Z, share, ratio), rtol=1e-4, atol=1e-5)


def test_the_smallest_window_is_the_mean_of_each_channel_and_its_own_amplitudes_change_nothing():
    assert size((3, 8, 7), 0.0) == (3, 1, 1)
    moved = blend(X, amplitudes(Z, 0.0), 0.0)
    torch.testing.assert_close(moved, X - X.mean((2, 3), keepdim=True) + Z.mean((2, 3), keepdim=True))
    torch.testing.assert_close(blend(X, amplitudes(X, 1.0), 1.0), X)


def mean_amplitudes(x):
    return np.abs(np.fft.fft2(x.numpy())).mean(0)[:, :, : x.shape[3] // 2 + 1]


def test_harmofl_holds_the_mean_over_sites_of_their_mean_amplitudes_from_the_first_round_on():
    held = [splits["train"][0] for splits in toy.domains().values()]
    want = np.mean([mean_amplitudes(x) for x in held], axis=0)  # each site counts once, whatever it holds
    first, last = (simulate(ga(harmofl()), rounds)[0]["server"]["model"]["buffers"] for rounds in (1, 3))
    np.testing.assert_allclose(first["amplitude"].numpy(), want, rtol=1e-5)
    assert torch.equal(first["amplitude"], last["amplitude"])


def test_harmofl_asks_for_amplitudes_once_and_sites_that_join_later_take_them_as_they_are():
    state, minutes = simulate(harmofl(), rounds=4, asked=1)
    asked = [[left.client for left in happened["left"] if left.name == "amplitude"] for happened in minutes]
    (first,), *later = asked
    assert not any(later)
    want = mean_amplitudes(toy.domains()[first]["train"][0])
    np.testing.assert_allclose(state["server"]["model"]["buffers"]["amplitude"].numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("window", [1.0, 0.0])
def test_a_round_of_harmofl_by_hand(window):
    rho, lr = 0.1, 0.5
    got = simulate(harmofl(window, rho, sgd(lr)), 1, sizes=ALONE)[0]["server"]["model"]
    x, y = toy.domains(ALONE)["east"]["train"]
    spectrum = np.fft.fft2(x.numpy())
    amplitude = np.abs(spectrum)
    places = (slice(None), slice(None)) if window else (slice(1), slice(1))
    amplitude[:, :, *places] = amplitude[:, :, *places].mean(0)
    normal = torch.tensor(np.fft.ifft2(amplitude * np.exp(1j * np.angle(spectrum))).real, dtype=torch.float32)
    net = toy.nets(fedavg())["model"].train()
    params, here = list(net.parameters()), [param.detach().clone() for param in net.parameters()]
    slopes = torch.autograd.grad(F.cross_entropy(net(normal), y), params)
    length = sum(float(slope.square().sum()) for slope in slopes) ** 0.5
    with torch.no_grad():
        for param, slope in zip(params, slopes, strict=True):
            param += rho * slope / length
    slopes = torch.autograd.grad(F.cross_entropy(net(normal), y), params)
    want = [param - lr * slope for param, slope in zip(here, slopes, strict=True)]
    for (name, _), ours in zip(net.named_parameters(), want, strict=True):
        torch.testing.assert_close(got["params"][name], ours, rtol=1e-4, atol=1e-5)


def test_where_all_images_have_the_same_amplitudes_harmofl_is_uniform_averaging(monkeypatch):
    one = toy.domains()["west"]["train"][0][:1]

    def copies(sizes):
        return {
            name: {"train": (one.repeat(size, 1, 1, 1), torch.arange(size) % 3), "val": (one, torch.zeros(1).long())}
            for name, size in sizes.items()
        }

    monkeypatch.setattr(toy, "domains", copies)
    ours, theirs = model(harmofl(rho=0.0)), model(fedavg("uniform"))
    del ours["buffers/amplitude"]
    assert_close(ours, theirs)


@pytest.mark.parametrize("network", [convnet(4), mobilenet_v2(), vit_b_32()])
def test_a_harmonised_network_is_the_network_on_normalised_images(network):
    task = Task(("a", "b"), (3, 32, 32), network)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    net = network(task)
    harmonised = Harmonised(net, task.shape, 1.0).eval()
    harmonised.amplitude.copy_(amplitudes(x[:1], 1.0)[0])
    assert not any(part.training for part in harmonised.modules())
    normal = blend(x, amplitudes(x[:1], 1.0), 1.0)
    assert read(harmonised)["params"].keys() == read(net)["params"].keys()
    with torch.no_grad():
        torch.testing.assert_close(harmonised(x), net.eval()(normal))
        for ours, theirs in zip(harmonised.look(x), net.look(normal), strict=True):
            torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(harmonised.maps(x), net.maps(normal))
        torch.testing.assert_close(harmonised.pooled(net.maps(normal)), net.pooled(net.maps(normal)))


@pytest.mark.parametrize("method", [harmofl(), elcfs()])
def test_tables_have_no_amplitudes(method):
    with pytest.raises(ConfigError, match="is for images"):
        method.networks(Task(("a", "b"), (5,), mlp()))


# ELCFS


def trained(step, order, lr=0.5):
    """One step at a site whose only neighbour's images all have one mean: the model's parameters after it."""
    method = elcfs(window=0.0, ratio=1.0, step=step, order=order, optimizer=sgd(lr))
    (site,) = toy.sites(method, ALONE)
    theirs = torch.full((32, 3, 1, 1), 36 * 0.9)
    start = toy.shared(method)["model"]
    bank = {"east": {"amplitude": {"spectra": torch.zeros(32, 3, 1, 1)}}, "west": {"amplitude": {"spectra": theirs}}}
    reply, kept = method.client.handlers["train"](site, {"model": start, "bank": bank}, {})
    assert kept == {}
    return reply["model"]["params"]


def by_hand(step, order, lr=0.5):
    x, y = toy.domains(ALONE)["east"]["train"]
    moved = x - x.mean((2, 3), keepdim=True) + 0.9  # all are bright, so that the mean's phase is zero
    net = toy.nets(fedavg())["model"].train()
    params = list(net.parameters())
    here = [param.detach().clone() for param in params]
    inner = torch.autograd.grad(F.cross_entropy(net(x), y), params, create_graph=True)
    with torch.no_grad():
        for param, slope in zip(params, inner, strict=True):
            param.data = param.data - step * slope
    outer = torch.autograd.grad(F.cross_entropy(net(moved), y), params)
    with torch.no_grad():
        for param, old in zip(params, here, strict=True):
            param.data = old
    total = [a.detach() + b for a, b in zip(inner, outer, strict=True)]
    if order == "full":  # (1 - step * Hessian) on the outer slope; the Hessian where the first step began
        inner = torch.autograd.grad(F.cross_entropy(net(x), y), params, create_graph=True)
        along = sum((a * b).sum() for a, b in zip(inner, outer, strict=True))
        total = [a - step * b for a, b in zip(total, torch.autograd.grad(along, params), strict=True)]
    names = [name for name, _ in net.named_parameters()]
    return {name: old - lr * slope for name, old, slope in zip(names, here, total, strict=True)}


@pytest.mark.parametrize("order", ["first", "full"])
def test_an_episode_by_hand(order):
    got, want = trained(0.4, order), by_hand(0.4, order)
    assert_close(got, {name: ours.detach() for name, ours in want.items()})


def test_the_orders_differ():
    first, full = trained(0.4, "first"), trained(0.4, "full")
    assert max(float((first[name] - full[name]).abs().max()) for name in first) > 1e-3


def test_without_a_step_or_a_blend_an_episode_is_the_loss_twice():
    ours = simulate(elcfs(ratio=0.0, step=0.0, views=1))[0]["server"]["model"]["params"]
    theirs = simulate(fedavg(optimizer=sgd(0.1)))[0]["server"]["model"]["params"]
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


def test_elcfs_is_fedavg_to_the_bit_while_nobody_else_has_been_asked():
    ours, theirs = (simulate(method, rounds=1, asked=1)[0]["server"]["model"] for method in (elcfs(), fedavg()))
    assert_equal(tree.flatten(ours), tree.flatten(theirs))


def test_every_site_puts_the_low_amplitudes_of_some_of_its_images_into_the_bank_once():
    state, minutes = simulate(elcfs(window=0.4, spectra=24), rounds=2)
    told = [left for happened in minutes for left in happened["left"] if left.name == "amplitude"]
    assert sorted(left.client for left in told) == sorted(toy.SIZES)
    for name, splits in toy.domains().items():
        spectra = state["server"]["bank"][name]["amplitude"]["spectra"]
        assert spectra.shape == (24, 3, 3, 2)
        own = torch.fft.fft2(splits["train"][0]).abs()[:, :, [0, 1, 5]][:, :, :, [0, 1]]
        gaps = (spectra[:, None] - own[None]).abs().amax((2, 3, 4))
        assert float(gaps.amin(1).max()) < 1e-4  # each is of one of its images
        assert len(gaps.argmin(1).unique()) == min(24, len(own))  # of which few come twice


def test_elcfs_needs_another_site():
    with pytest.raises(ConfigError, match="needs 2 sites or more"):
        require(elcfs(), SimpleNamespace(method="elcfs", target="photo"), 1)
