"""Other views of images: AugMix's operations against PIL's, RandConv's variants, and predictions that are to agree."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.nn import functional as F

from fedbeyond.batch import Batch
from fedbeyond.classifier import Task
from fedbeyond.client import Local
from fedbeyond.data.augment.augmix import (
    OPERATIONS,
    aug_mix,
    autocontrast,
    equalize,
    moved,
    operate,
    posterize,
    solarize,
)
from fedbeyond.data.augment.style import rand_conv
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.randconv import agreeing, divergence, randconv
from fedbeyond.networks._mlp import mlp
from fedbeyond.optimizers import plain_sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.augmix import augmix
from fedbeyond.wrappers.rc import rc
from support.asserts import assert_equal, model


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


BYTES = torch.randint(20, 200, (3, 3, 8, 12), generator=stream(2), dtype=torch.uint8)
BYTES[1] = BYTES[1] // 16 * 16  # few levels, so that many pixels share one
X = BYTES.float() / 127.5 - 1
NONE = torch.zeros(3)


def by_pil(change):
    """What PIL makes of each channel, as floats -1..1."""
    done = [[np.array(change(Image.fromarray(channel.numpy(), "L"))) for channel in image] for image in BYTES]
    return torch.tensor(np.array(done)).float() / 127.5 - 1


def assert_near(ours, theirs, levels):
    """Equal but for some levels of 256: PIL rounds on its way."""
    assert float((ours - theirs).abs().max()) <= levels * 2 / 255 + 1e-5


def test_autocontrast_and_equalize_are_pils():
    assert_near(autocontrast(X, NONE), by_pil(ImageOps.autocontrast), 1)
    many = torch.randint(20, 200, (1, 1, 160, 160), generator=stream(3), dtype=torch.uint8)  # PIL counts in whole steps
    want = torch.tensor(np.array(ImageOps.equalize(Image.fromarray(many[0, 0].numpy(), "L")))).float() / 127.5 - 1
    assert_near(equalize(many.float() / 127.5 - 1, NONE[:1])[0, 0], want, 4)


def test_equalize_gives_every_level_the_share_of_pixels_below_it():
    x = torch.tensor([-0.5, -0.5, 0.1, 0.2, 0.2, 0.2]).reshape(1, 1, 2, 3)
    # below -0.5 are none of the three that are not brightest, below 0.1 two, below 0.2 all
    want = torch.tensor([0, 0, 2 / 3, 1, 1, 1]).reshape(1, 1, 2, 3) * 2 - 1
    torch.testing.assert_close(equalize(x, NONE[:1]), want)


@pytest.mark.parametrize(("magnitude", "bits"), [(0.0, 4), (0.2, 4), (0.3, 3), (0.6, 2), (1.0, 1)])
def test_posterize_keeps_the_highest_bits(magnitude, bits):
    assert_near(posterize(X, torch.full((3,), -magnitude)), by_pil(lambda one: ImageOps.posterize(one, bits)), 0)


@pytest.mark.parametrize("magnitude", [0.0, 0.3, 0.55, 1.0])
def test_solarize_turns_what_is_bright(magnitude):
    threshold = (1 - 2 * magnitude + 1) * 127.5
    assert_near(solarize(X, torch.full((3,), magnitude)), by_pil(lambda one: ImageOps.solarize(one, threshold)), 0)


def test_images_of_one_colour_stay_as_they_are():
    flat = torch.full((2, 3, 5, 5), 0.3)
    for change in (autocontrast, equalize):
        torch.testing.assert_close(change(flat, torch.ones(2)), flat)


def way(number, count=1):
    return torch.full((count,), number)


def test_images_are_turned_sheared_and_pushed():
    x = torch.rand(1, 2, 9, 9, generator=stream()) * 2 - 1
    quarter = moved(x, way(0), torch.tensor([3.0]))  # 90 degrees
    torch.testing.assert_close(quarter, torch.rot90(x, 1, (2, 3)), rtol=1e-4, atol=1e-4)
    long = X[:1]
    torch.testing.assert_close(moved(long, way(0), torch.tensor([6.0])), long.flip(2, 3), rtol=1e-4, atol=1e-4)
    right = moved(x, way(3), torch.tensor([1 / 3]))  # a third of a third of nine pixels
    torch.testing.assert_close(right[..., :-1], x[..., 1:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(right[..., -1], torch.full((1, 2, 9), -1.0))  # black
    down = moved(x, way(4), torch.tensor([-1 / 3]))
    torch.testing.assert_close(down[:, :, 1:], x[:, :, :-1], rtol=1e-4, atol=1e-4)
    for number, axis in ((1, 2), (2, 3)):  # a pixel for each row, or column, away from the middle
        leant = moved(x, way(number), torch.tensor([1 / 0.3]))
        for place in range(9):
            off = place - 4
            ours, theirs = leant.select(axis, place), x.select(axis, place)
            kept = slice(max(-off, 0), 9 - max(off, 0))
            want = theirs[..., kept.start + off : kept.stop + off]
            torch.testing.assert_close(ours[..., kept], want, rtol=1e-3, atol=1e-3)


def test_a_turned_oblong_image_is_not_sheared():
    x = torch.full((1, 1, 40, 20), -1.0)
    x[:, :, 18:22, 2:18] = 1  # a bar as long as the image is wide
    turned = moved(x, way(0), torch.tensor([1.0]))[0, 0] > 0
    rows, columns = turned.nonzero().unbind(1)
    slope = np.polyfit(columns.numpy(), rows.numpy(), 1)[0]
    assert abs(slope) == pytest.approx(np.tan(np.pi / 6), rel=0.15)


def test_every_image_goes_by_its_own_operation():
    x = torch.rand(OPERATIONS + 1, 3, 8, 8, generator=stream()) * 1.6 - 0.8
    which, magnitude = torch.arange(-1, OPERATIONS), torch.full((OPERATIONS + 1,), 0.3)
    done = operate(x, which, magnitude)
    assert torch.equal(done[0], x[0])
    for place in range(1, OPERATIONS + 1):
        assert not torch.allclose(done[place], x[place], atol=1e-3)
        alone = operate(x[place : place + 1], which[place : place + 1], magnitude[:1])
        torch.testing.assert_close(done[place : place + 1], alone, rtol=1e-4, atol=1e-5)


def test_chains_are_blended_by_weights_that_sum_to_one_and_images_vary_each_for_itself():
    black = torch.full((4, 3, 6, 6), -1.0)  # whatever is done to it, at a severity of 3
    torch.testing.assert_close(aug_mix(width=4)(black, stream()), black)
    same = X[:1].repeat(8, 1, 1, 1)
    mixed = aug_mix()(same, stream())
    assert len({tuple(image.flatten()[:20].tolist()) for image in mixed}) == 8
    assert float(mixed.abs().max()) <= 1 + 1e-5


def test_one_chain_of_one_operation_by_hand():
    paint, rng = aug_mix(width=1, depth=1, severity=2.0), stream(7)
    which, sign = torch.randint(OPERATIONS, (3,), generator=rng), torch.randint(2, (3,), generator=rng) * 2 - 1
    level = 0.1 + 1.9 * torch.rand(3, generator=rng)
    torch.rand(1, 3, generator=rng)  # the weight of the only chain
    share = torch.rand(3, generator=rng)
    changed = torch.cat([operate(X[i : i + 1], which[i : i + 1], (sign * level / 10)[i : i + 1]) for i in range(3)])
    want = torch.stack([s * c + (1 - s) * x for s, c, x in zip(share, changed, X, strict=True)])
    torch.testing.assert_close(paint(X, stream(7)), want, rtol=1e-4, atol=1e-5)


def test_augmix_stands_beside_images_or_in_their_place():
    batch = Batch(X, torch.arange(3))
    beside, instead = augmix(fedavg(), views=2).augment(batch, stream()), augmix(fedavg(), 0).augment(batch, stream())
    assert torch.equal(beside.x, X) and len(beside.views) == 2
    assert not torch.equal(instead.x, X) and not instead.views
    with pytest.raises(ConfigError, match="augmix needs images"):
        augmix(fedavg()).networks(Task(("a", "b"), (5,), mlp()))


# RandConv


def test_rc_as_before_draws_nothing_more():
    batch = rc(fedavg()).augment(Batch(X, torch.arange(3)), stream(4))
    assert torch.equal(batch.views[0], rand_conv()(X, stream(4))) and torch.equal(batch.x, X)


def test_rc_img_keeps_a_batch_as_it_is_with_a_chance():
    image = rc(fedavg(), views=0, mix=False, keep=0.5)
    kept = [torch.equal(image.augment(Batch(X, torch.arange(3)), stream(seed)).x, X) for seed in range(200)]
    assert 70 < sum(kept) < 130
    assert_equal(model(rc(fedavg(), views=0, keep=1.0)), model(fedavg()))


def test_the_divergence_is_that_of_jensen_and_shannon():
    p = np.random.default_rng(0).dirichlet(np.ones(4), (3, 5))
    middle = p.mean(0)
    want = np.mean([[np.sum(q * np.log(q / m)) for q, m in zip(view, middle, strict=True)] for view in p])
    assert float(divergence(torch.tensor(p).log())) == pytest.approx(want)
    same = torch.tensor(p[:1]).log().expand(3, -1, -1)
    assert float(divergence(same)) == pytest.approx(0, abs=1e-9)
    sure = torch.log_softmax(torch.tensor([[[200.0, 0.0]], [[0.0, 200.0]]]), 2)  # sure of different classes
    assert float(divergence(sure)) == pytest.approx(np.log(2))


def test_the_loss_is_of_the_first_copy_and_of_the_agreement_of_all():
    method = randconv()
    site = toy.sites(method)[0]
    local = Local(site, {"model": toy.shared(method)["model"]}, {}, plain_sgd)
    batch = next(site.batches())
    assert len(batch.views) == 2
    got = agreeing(10.0)(local, batch).item()
    local.net.train()
    scores = np.stack([local.net(x).detach().double().numpy() for x in (batch.x, *batch.views)])
    p = np.exp(scores) / np.exp(scores).sum(2, keepdims=True)
    error = -np.log(p[0][np.arange(len(batch.y)), batch.y.numpy()]).mean()
    apart = (p * np.log(p / p.mean(0))).sum(2).mean()
    assert got == pytest.approx(error + 10 * apart, rel=1e-4)


def test_copies_are_of_the_images_or_of_the_first_copy():
    for nested in (False, True):
        batch = randconv(copies=2, nested=nested).augment(Batch(X, torch.arange(3)), stream(5))
        rng, paint = stream(5), rand_conv()
        first = paint(X, rng)
        assert torch.equal(batch.x, first)
        assert torch.equal(batch.views[0], paint(first if nested else X, rng))


def test_without_agreement_randconv_is_averaging_with_rc_and_without_copies_fedavg_to_the_bit():
    assert_equal(model(randconv(copies=1, weight=0.0)), model(rc(fedavg(), views=0)))
    assert_equal(model(randconv(copies=0, weight=0.0)), model(fedavg()))


def test_one_copy_has_nothing_to_agree_with():
    for copies in (0, 1):
        with pytest.raises(FederationError, match=r"nothing for it to agree with; set weight=0, use more copies"):
            simulate(randconv(copies=copies), rounds=1)


def test_views_of_a_wrapper_take_part_in_the_agreement():
    method = augmix(randconv(copies=0, weight=12.0), views=2)  # AugMix as its paper has it
    site = toy.sites(method)[0]
    local = Local(site, {"model": toy.shared(method)["model"]}, {}, plain_sgd)
    batch = next(site.batches())
    clean = F.cross_entropy(local.net(batch.x), batch.y)
    assert len(batch.views) == 2 and agreeing(12.0)(local, batch).item() > clean.item()


def test_sizes_are_checked_everywhere():
    for make in (lambda: rc(fedavg(), sizes=[2]), lambda: randconv(sizes=[])):
        with pytest.raises(ValueError, match="kernels have odd sizes"):
            make()
