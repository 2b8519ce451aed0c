"""Amplitudes that leave sites: HarmoFL gives all images their mean, ELCFS blends them into other sites' images.

Where the authors' arithmetic is computed, it is on pixels in 0..1 or 0..255, by numpy's whole complex spectrum.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import Task, read
from fedbeyond.data.augment.spectrum import amplitudes, blend, clipped, size
from fedbeyond.data.augment.style import amplitude_mix
from fedbeyond.errors import ConfigError
from fedbeyond.experiment.build import ensure_runnable
from fedbeyond.images import pixels
from fedbeyond.methods.elcfs import elcfs
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.harmofl import Harmonised, harmofl
from fedbeyond.networks._convnet import convnet
from fedbeyond.networks._mlp import mlp
from fedbeyond.networks._mobilenet import mobilenet_v2
from fedbeyond.networks._vit import vit_b_32
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.ga import ga
from support.asserts import assert_close, assert_equal, model

ALONE = {"east": 8}  # one site, one batch


def photos(count, seed, shape=(3, 8, 7)):
    """Make images as sites hold them: bytes, of every brightness from dark to bright, channel by channel."""
    rng = np.random.default_rng(seed)
    level = rng.uniform(20, 235, (count, shape[0], 1, 1))
    return torch.tensor(np.clip(level + rng.normal(0, 40, (count, *shape)), 0, 255).astype(np.uint8))


BYTES, OTHERS = photos(12, 3), photos(12, 4)
X, Z = pixels(BYTES), pixels(OTHERS)


def toy_photos(sizes=toy.SIZES):
    """The toy sites with such images instead."""
    data = toy.domains(sizes)
    for seed, splits in enumerate(data.values()):
        for number, (name, (x, y)) in enumerate(splits.items()):
            splits[name] = photos(len(y), 10 * seed + number, tuple(x.shape[1:])), y
    return data


@pytest.fixture
def real(monkeypatch):
    """Give the toy sites images in bytes, which reach methods in -1..1."""
    made = toy_photos()
    alone = toy_photos(ALONE)
    monkeypatch.setattr(toy, "domains", lambda sizes=toy.SIZES: alone if sizes == ALONE else made)


def as_pixels(x, top=1.0):
    """From -1..1 to 0..top."""
    return (x.double().numpy() + 1) / 2 * top


def swapped(x, z, share, ratio=1.0):
    """Exchange amplitudes of pixels in a window around the middle of the shifted spectrum, as the authors do."""
    ours, theirs = (np.fft.fftshift(np.fft.fft2(some), axes=(2, 3)) for some in (x, z))
    amplitude, other = np.abs(ours), np.abs(theirs)
    height, width = x.shape[2:]
    other = np.broadcast_to(other, amplitude.shape)
    middle = height // 2, width // 2
    reach = int(share * height / 2), int(share * width / 2)
    place = tuple(slice(max(m - r, 0), m + r + 1) for m, r in zip(middle, reach, strict=True))
    amplitude[:, :, *place] = (1 - ratio) * amplitude[:, :, *place] + ratio * other[:, :, *place]
    mixed = np.fft.ifft2(np.fft.ifftshift(amplitude * np.exp(1j * np.angle(ours)), axes=(2, 3)))
    assert np.abs(mixed.imag).max() < 1e-6
    return mixed.real


def from_pixels(x, top=1.0):
    """From 0..top to -1..1."""
    return torch.tensor(x / top * 2 - 1, dtype=torch.float32)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("ratio", [1.0, 0.3])
def test_a_window_of_amplitudes_is_blended_and_phases_stay(share, ratio):
    given = amplitudes(Z, share)
    assert given.shape[1:] == size((3, 8, 7), share)
    for top in (1.0, 255.0):  # whatever range the authors' pixels are in
        want = from_pixels(swapped(as_pixels(X, top), as_pixels(Z, top), share, ratio), top)
        torch.testing.assert_close(blend(X, given, share, ratio), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_dark_image_with_the_amplitudes_of_a_bright_one_is_as_bright(share):
    moved = blend(X, amplitudes(Z, share), share)
    got, want = moved.mean((2, 3)), Z.mean((2, 3))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert np.corrcoef(got.flatten(), want.flatten())[0, 1] > 0.9999
    dark, bright = torch.full((1, 3, 8, 7), -0.9), torch.full((1, 3, 8, 7), 0.9)
    torch.testing.assert_close(blend(dark, amplitudes(bright, share), share), bright)


def test_clipping_is_to_the_pixels_range_or_to_that_which_an_image_had():
    before = torch.tensor([[-0.5, 0.5], [-2.0, 0.5], [0.0, 3.0]])[:, None, None]
    after = torch.tensor([[-4.0, 1.5], [-1.5, 1.5], [-4.0, 4.0]])[:, None, None]
    want = torch.tensor([[-1.0, 1.0], [-1.5, 1.0], [-1.0, 3.0]])[:, None, None]
    assert torch.equal(clipped(after, before), want)


def test_amplitude_mix_is_the_authors_on_bytes():
    rng = torch.Generator().manual_seed(1)
    partner, share = torch.randperm(len(X), generator=rng), torch.rand(len(X), 1, 1, 1, generator=rng)
    want = swapped(BYTES.numpy(), BYTES[partner].numpy(), 1.0, share.numpy())
    assert want.min() < -1 and want.max() > 256  # or clipping would not be tested
    mixed = amplitude_mix()(X, torch.Generator().manual_seed(1))
    torch.testing.assert_close(mixed, from_pixels(np.clip(want, 0, 255), 255), rtol=1e-4, atol=1e-5)
    whole = np.uint8(np.clip(want, 0, 255))  # the authors drop fractions of a level; we do not
    assert 0 <= ((mixed.numpy() + 1) * 127.5 - whole).max() < 1.001
    faint = 0.1 * X + 0.9 * X.mean((2, 3), keepdim=True)  # so that nothing is clipped
    own, level = faint.mean((2, 3)), amplitude_mix()(faint, torch.Generator().manual_seed(1)).mean((2, 3))
    torch.testing.assert_close(level, torch.lerp(own, own[partner], share[:, :, 0, 0]), rtol=1e-4, atol=1e-5)


def test_the_smallest_window_is_the_mean_of_each_channel_and_its_own_amplitudes_change_nothing():
    assert size((3, 8, 7), 0.0) == (3, 1, 1)
    moved = blend(X, amplitudes(Z, 0.0), 0.0)
    torch.testing.assert_close(moved, X - X.mean((2, 3), keepdim=True) + Z.mean((2, 3), keepdim=True))
    torch.testing.assert_close(blend(X, amplitudes(X, 1.0), 1.0), X)


def mean_amplitudes(x):
    return np.abs(np.fft.fft2(as_pixels(pixels(x)))).mean(0)[:, :, : x.shape[3] // 2 + 1]


def test_harmofl_holds_the_mean_over_sites_of_their_mean_amplitudes_from_the_first_round_on(real):
    held = [splits["train"][0] for splits in toy.domains().values()]
    want = np.mean([mean_amplitudes(x) for x in held], axis=0)  # each site counts once, whatever it holds
    first, last = (simulate(ga(harmofl()), rounds)[0]["server"]["model"]["buffers"] for rounds in (1, 3))
    np.testing.assert_allclose(first["amplitude"].numpy(), want, rtol=1e-5)
    assert torch.equal(first["amplitude"], last["amplitude"])


def test_harmofl_asks_for_amplitudes_once_and_sites_that_join_later_take_them_as_they_are():
    state, round_log = simulate(harmofl(), rounds=4, asked=1)
    asked = [[left.client for left in happened["ledger"] if left.name == "amplitude"] for happened in round_log]
    (first,), *later = asked
    assert not any(later)
    want = mean_amplitudes(toy.domains()[first]["train"][0])
    np.testing.assert_allclose(state["server"]["model"]["buffers"]["amplitude"].numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("window", [1.0, 0.0])
def test_a_round_of_harmofl_by_hand(window, real):
    rho, lr = 0.1, 0.5
    got = simulate(harmofl(window, rho, sgd(lr)), 1, sizes=ALONE)[0]["server"]["model"]
    x, y = toy.domains(ALONE)["east"]["train"]
    spectrum = np.fft.fft2(x.numpy() / 255)  # the authors' range
    amplitude = np.abs(spectrum)
    places = (slice(None), slice(None)) if window else (slice(1), slice(1))
    amplitude[:, :, *places] = amplitude[:, :, *places].mean(0)
    normal = from_pixels(np.fft.ifft2(amplitude * np.exp(1j * np.angle(spectrum))).real)
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
    x = pixels(photos(2, 0, task.shape))
    net = network(task)
    harmonised = Harmonised(net, task.shape, 1.0).eval()
    harmonised.amplitude.copy_(amplitudes(x[:1], 1.0)[0])
    assert not any(part.training for part in harmonised.modules())
    normal = from_pixels(swapped(as_pixels(x), as_pixels(x[:1]), 1.0))
    assert read(harmonised)["params"].keys() == read(net)["params"].keys()
    with torch.no_grad():
        torch.testing.assert_close(harmonised(x), net.eval()(normal), rtol=1e-3, atol=1e-4)
        for ours, theirs in zip(harmonised.maps_and_logits(x), net.maps_and_logits(normal), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(harmonised.maps(x), net.maps(normal), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(harmonised.pooled(net.maps(normal)), net.pooled(net.maps(normal)))


@pytest.mark.parametrize("method", [harmofl(), elcfs()])
def test_tables_have_no_amplitudes(method):
    with pytest.raises(ConfigError, match="needs images"):
        method.networks(Task(("a", "b"), (5,), mlp()))


# ELCFS


BRIGHT = torch.full((1, 3, 6, 6), 230, dtype=torch.uint8)  # all that the only neighbour holds, unless said otherwise


def trained(step, order, lr=0.5, window=0.0, theirs=BRIGHT):
    """One step at a site whose only neighbour holds one image: the model's parameters after it."""
    method = elcfs(window=window, ratio=1.0, spectra=1, step=step, order=order, optimizer=sgd(lr))
    (site,) = toy.sites(method, ALONE)
    held, site.data = site.data, {"train": (theirs, torch.zeros(1).long())}
    reply, _ = method.client.handlers["amplitude"](site, {}, {})
    site.data = held
    start = toy.shared(method)["model"]
    bank = {"east": {"amplitude": tree.zeros(reply["amplitude"])}, "west": reply}
    reply, kept = method.client.handlers["train"](site, {"model": start, "bank": bank}, {})
    assert kept == {}
    return reply["model"]["params"]


def by_hand(step, order, lr=0.5, window=0.0, theirs=BRIGHT):
    x, y = toy.domains(ALONE)["east"]["train"]
    bytes_here = as_pixels(pixels(x), 255)
    moved = from_pixels(np.clip(swapped(bytes_here, theirs.numpy(), window), 0, 255), 255)  # the authors' range
    x = pixels(x)
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


@pytest.mark.parametrize("window", [0.0, 1.0])
def test_an_episode_on_bytes_is_by_the_authors_arithmetic(window, real):
    theirs = photos(1, 8, (3, 6, 6))
    before = swapped(toy.domains(ALONE)["east"]["train"][0].numpy(), theirs.numpy(), window)
    assert before.min() < -1 or before.max() > 256  # or clipping would not be tested
    got, want = (step(0.4, "first", window=window, theirs=theirs) for step in (trained, by_hand))
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


def test_every_site_puts_the_low_amplitudes_of_some_of_its_images_into_the_bank_once(real):
    state, round_log = simulate(elcfs(window=0.4, spectra=24), rounds=2)
    told = [left for happened in round_log for left in happened["ledger"] if left.name == "amplitude"]
    assert sorted(left.client for left in told) == sorted(toy.SIZES)
    for name, splits in toy.domains().items():
        spectra = state["server"]["bank"][name]["amplitude"]["spectra"]
        assert spectra.shape == (24, 3, 3, 2)
        own = torch.fft.fft2(splits["train"][0] / 255).abs()[:, :, [0, 1, 5]][:, :, :, [0, 1]]
        gaps = (spectra[:, None] - own[None]).abs().amax((2, 3, 4))
        assert float(gaps.amin(1).max()) < 1e-4  # each is of one of its images
        assert len(gaps.argmin(1).unique()) == min(24, len(own))  # of which few come twice


def test_elcfs_needs_another_site():
    with pytest.raises(ConfigError, match="needs at least 2 sites"):
        ensure_runnable(elcfs(), SimpleNamespace(method="elcfs", target="photo"), 1)
