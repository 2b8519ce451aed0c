"""Other styles, the same shapes: what augmentations do to images, and what they leave alone."""

import pytest
import torch
from torch.nn import functional as F

from fedbeyond.batch import Batch, chain, plain
from fedbeyond.data.augment.style import amplitude_mix, levelled, rand_conv, repaint, views
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.wrappers.am import am
from fedbeyond.wrappers.rc import rc


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


X = torch.randn(6, 3, 9, 7, generator=stream(5))
BATCH = Batch(X, torch.arange(6))


def test_a_random_convolution_is_one_kernel_of_one_size_for_the_whole_batch():
    painted = rand_conv((3,), mix=False)(X, stream())
    alone = rand_conv((3,), mix=False)(X[2:3], stream())
    torch.testing.assert_close(painted[2:3], alone)
    assert painted.shape == X.shape and not torch.allclose(painted, X)
    torch.testing.assert_close(rand_conv((3,), mix=False)(2 * X, stream()), 2 * painted)  # linear


def test_repetitions_use_the_same_weights():
    rng = stream(3)
    torch.rand(1, generator=rng)  # the weight of the only chain
    torch.randint(1, (), generator=rng)  # one size to choose from
    kernel = torch.randn(3, 3, 3, 3, generator=rng) / 27**0.5
    times = 1 + int(torch.randint(3, (), generator=rng))
    want = X
    for _ in range(times):
        want = F.conv2d(want, kernel, padding=1)
    torch.testing.assert_close(rand_conv((3,), repeats=3, mix=False)(X, stream(3)), want)
    assert times > 1  # or the test would show nothing


def test_mixing_stays_between_the_image_and_its_convolution():
    for seed in range(5):
        mixed = rand_conv((1,))(X, stream(seed))
        styled = rand_conv((1,), mix=False)(X, stream(seed))
        shares = (mixed - X) / (styled - X)
        assert torch.allclose(shares, shares.flatten()[0].expand_as(shares), atol=1e-2)
        assert 0 <= float(shares.median()) <= 1


def test_levelling_keeps_each_channels_mean_and_spread():
    painted = rand_conv(repeats=3, chains=2, level=True)(X, stream())
    for statistic in (torch.mean, torch.std):
        torch.testing.assert_close(statistic(painted, (0, 2, 3)), statistic(X, (0, 2, 3)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_levelling_is_by_mean_and_standard_deviation(layout):
    x, styled = (t.contiguous(memory_format=layout) for t in (X, 3 * X.flip(0) ** 2 - 5))
    over = (0, 2, 3)
    spread = x.std(over, keepdim=True) / (styled.std(over, keepdim=True) + 1e-6)
    want = (styled - styled.mean(over, keepdim=True)) * spread + x.mean(over, keepdim=True)
    before = x.clone(), styled.clone()
    found = levelled(styled, x)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, before[0]) and torch.equal(styled, before[1])


def test_chains_are_blended_by_weights_that_sum_to_one():
    rng, x = stream(1), torch.ones(2, 1, 5, 5)
    weights = -torch.rand(3, generator=rng).log()
    kernels = []
    for _ in range(3):  # as they are drawn: a size, a kernel of one number, how often
        torch.randint(1, (), generator=rng)
        kernels.append(float(torch.randn(1, 1, 1, 1, generator=rng)))
        torch.randint(1, (), generator=rng)
    want = sum(float(w) * k for w, k in zip(weights / weights.sum(), kernels, strict=True))
    painted = rand_conv((1,), chains=3, mix=False)(x, stream(1))
    torch.testing.assert_close(painted, torch.full_like(x, want))


def test_amplitude_mix_keeps_phases_and_takes_amplitudes_from_the_batch():
    images = X / 10  # between -1 and 1, and mixed too, so that nothing is clipped
    mixed = amplitude_mix()(images, stream())
    ours, theirs = torch.fft.rfft2((images + 1) / 2), torch.fft.rfft2((mixed + 1) / 2)
    strong = (ours.abs() > 1e-2) & (theirs.abs() > 1e-2)
    turned = torch.polar(torch.ones_like(ours.abs()), ours.angle() - theirs.angle())
    assert torch.allclose(turned.real[strong], torch.ones(()), atol=1e-3)
    assert not torch.allclose(mixed, images, atol=0.05) and float(mixed.abs().max()) < 1
    lowest, highest = ours.abs().amin(0), ours.abs().amax(0)
    assert bool((theirs.abs() >= lowest - 1e-3).all() and (theirs.abs() <= highest + 1e-3).all())


def test_amplitude_mix_of_strength_zero_or_by_no_chance_changes_nothing():
    torch.testing.assert_close(amplitude_mix(strength=0.0)(X, stream()), X, rtol=1e-4, atol=1e-5)
    assert torch.equal(amplitude_mix(chance=0.0)(X, stream()), X)


def test_views_stand_beside_images_and_count_with_them():
    batch = chain(plain, views(rand_conv(), 2))(BATCH, stream())
    assert torch.equal(batch.x, X) and len(batch.views) == 2
    x, y = batch.merged
    assert x.shape[0] == 18 and y.tolist() == [*range(6)] * 3 and torch.equal(x[6:12], batch.views[0])
    assert not torch.equal(*batch.views)
    again = repaint(amplitude_mix())(batch, stream())
    assert len(again.views) == 2 and not torch.equal(again.views[0], batch.views[0])


def test_wrappers_act_in_the_order_they_are_spelled():
    both = am(rc(fedavg()), chance=1.0).augment(BATCH, stream())
    assert len(both.views) == 1 and not torch.equal(both.x, X)  # the view is mixed as well
    instead = rc(fedavg(), views=0).augment(BATCH, stream())
    assert not instead.views and not torch.equal(instead.x, X)
