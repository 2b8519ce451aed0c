"""Crops, flips and colours: what transforms do to images, how often, and by which numbers."""

import colorsys

import pytest
import torch

from fedbeyond.batch import Batch
from fedbeyond.data.augment import colours
from fedbeyond.data.augment.colours import greyed
from fedbeyond.data.augment.transforms import (
    centre,
    colour_jitter,
    custom,
    cut,
    draw_crops,
    mirrored,
    padded_crop,
    resized_crop,
    sometimes,
)
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry, runner
from fedbeyond.experiment.config import Config, Train, load

NAMES = list(registry.REGISTRY["transforms"])


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


X = 2 * torch.rand(6, 3, 9, 7, generator=stream(5)) - 1
BATCH = Batch(X, torch.arange(6), (X / 2,))


def make(spelled):
    return registry.make_one("transforms", spelled)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_keeps_shape_range_and_labels(name):
    batch = make(name)(BATCH, stream())
    assert batch.x.shape == X.shape and batch.views[0].shape == X.shape and torch.equal(batch.y, BATCH.y)
    assert float(batch.x.min()) >= -1 and float(batch.x.max()) <= 1
    assert torch.equal(batch.x, X) == (name in ("none", "custom"))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_depends_on_the_stream_alone(name):
    one, same, other = (make(name)(BATCH, stream(seed)).x for seed in (1, 1, 2))
    assert torch.equal(one, same) and (torch.equal(one, other) == (name in ("none", "custom")))


def test_settings_that_change_nothing_change_nothing():
    assert torch.equal(custom()(BATCH, stream()).x, X)
    torch.testing.assert_close(resized_crop(1.0, 1.0)(X, stream()), X)
    torch.testing.assert_close(centre(1.0)(X, stream()), X)
    torch.testing.assert_close(colour_jitter(0, 0, 0, 0)(X, stream()), X)
    assert torch.equal(padded_crop(0)(X, stream()), X)
    assert torch.equal(sometimes(mirrored, 0.0)(X, stream()), X)
    assert torch.equal(sometimes(greyed, 0.0)(X, stream()), X)


def test_half_of_the_images_are_flipped_each_on_its_own():
    many = X[:1].expand(4000, -1, -1, -1)
    turned = (sometimes(mirrored, 0.5)(many, stream()) != many).flatten(1).any(1)
    assert 0.47 < float(turned.float().mean()) < 0.53
    assert torch.equal(sometimes(mirrored, 1.0)(X, stream()), X.flip(3))


def test_crops_have_the_area_the_shape_and_the_place_that_were_asked_for():
    size, place = draw_crops(20_000, 1.0, 0.7, 1.0, stream())
    area, ratio = size.prod(1), size[:, 0] / size[:, 1]
    assert float(area.min()) >= 0.7 and float(area.max()) <= 1 and float(size.max()) <= 1
    assert float(ratio.min()) >= 3 / 4 - 1e-4 and float(ratio.max()) <= 4 / 3 + 1e-4
    assert abs(float(ratio.log().mean())) < 0.01  # as often wide as high
    assert bool((place.abs() <= 1 - size + 1e-6).all())  # inside
    assert place.mean(0).abs().max() < 0.01 and 0.45 < float((place.abs() / (1 - size + 1e-9)).mean()) < 0.55


def test_a_crop_that_never_fits_is_the_whole_image():
    size, place = draw_crops(50, 8.0, 1.0, 1.0, stream())  # eight times as high as wide
    assert torch.equal(size, torch.ones(50, 2)) and not place.any()


def test_a_cut_is_the_part_it_says():
    ramp = torch.linspace(-1, 1, 8).repeat(8, 1)[None, None]  # from left to right
    left = cut(ramp, torch.tensor([[0.5, 1.0]]), torch.tensor([[-0.5, 0.0]]))
    torch.testing.assert_close(left[0, 0, 0, 1:-1], torch.linspace(-1.0, 0.0, 8)[1:-1], atol=0.08, rtol=0)
    torch.testing.assert_close(left[0, 0, 0], left[0, 0, 5])
    middle = centre(0.5)(ramp, stream())
    torch.testing.assert_close(middle[0, 0], torch.linspace(-0.5, 0.5, 8).repeat(8, 1))


def test_shifted_images_are_pieces_of_the_padded_one():
    moved = padded_crop(2)(X[:1].expand(300, -1, -1, -1), stream())
    padded = torch.nn.functional.pad(X[0], (2,) * 4, value=-1.0)
    pieces = {(r, c): padded[:, r : r + 9, c : c + 7] for r in range(5) for c in range(5)}
    found = [next(place for place, piece in pieces.items() if torch.equal(image, piece)) for image in moved]
    assert len(set(found)) == 25


def test_hue_and_saturation_are_those_of_the_standard_library():
    pixels = torch.rand(40, 3, 1, 1, generator=stream(3))
    pixels[:4] = torch.tensor([[0.2, 0.2, 0.2], [0, 0, 0], [1, 1, 1], [1, 0, 0]])[:, :, None, None]
    hue, saturation, value = colours.hsv(pixels)
    for place, pixel in enumerate(pixels[:, :, 0, 0].tolist()):
        want = colorsys.rgb_to_hsv(*pixel)
        assert (float(hue[place]), float(saturation[place]), float(value[place])) == pytest.approx(want, abs=1e-5)
        turned = colours.turn(pixels[place : place + 1], torch.full((1, 1, 1, 1), 0.3)).flatten().tolist()
        assert turned == pytest.approx(colorsys.hsv_to_rgb((want[0] + 0.3) % 1, *want[1:]), abs=1e-5)
    torch.testing.assert_close(colours.rgb(hue, saturation, value), pixels)


def test_brightness_contrast_and_saturation_are_those_of_pillow():
    from PIL import Image, ImageEnhance

    raw = torch.randint(256, (3, 5, 4), generator=stream(2), dtype=torch.uint8)
    image, x = Image.fromarray(raw.permute(1, 2, 0).numpy()), raw[None] / 255
    ours = {"Brightness": colours.brighten, "Contrast": colours.contrast, "Color": colours.saturate}
    for name, change in ours.items():
        for factor in (0.0, 0.6, 1.0, 1.4):
            want = torch.tensor(list(getattr(ImageEnhance, name)(image).enhance(factor).tobytes())).view(5, 4, 3)
            got = change(x, torch.full((1, 1, 1, 1), factor))[0].permute(1, 2, 0) * 255
            assert float((got - want).abs().max()) <= 2  # Pillow counts in whole numbers


def test_each_image_gets_an_amount_of_its_own():
    same = torch.zeros(50, 3, 2, 2)
    levels = colour_jitter(0.4, 0, 0, 0)(same, stream())[:, 0, 0, 0]
    factors = levels + 1  # brightness of (0 + 1) / 2, times its factor, back in -1..1
    assert len(set(factors.tolist())) == 50 and float(factors.min()) >= 0.6 and float(factors.max()) <= 1.4


def test_grey_images_have_one_value_a_place():
    grey = sometimes(greyed, 1.0)(X, stream())
    assert torch.equal(grey[:, 0], grey[:, 1]) and torch.equal(grey[:, 0], grey[:, 2])
    torch.testing.assert_close(grey[:, 0], 0.299 * X[:, 0] + 0.587 * X[:, 1] + 0.114 * X[:, 2])
    one = X[:, :1]  # images of one channel have no colours to lose
    jittered = make("ga")(Batch(one, BATCH.y), stream())
    assert torch.equal(sometimes(greyed, 1.0)(one, stream()), one) and jittered.x.shape == one.shape


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("gaa", "transform 'gaa' is not known; did you mean 'ga'"),
        ("custom(crop=[0.9, 0.2])", r"crop=\[0.9, 0.2\] is not valid: give two shares"),
        ("custom(jitter=[0.1, 0.1, 0.1, 0.7])", "the last at most 0.5"),
        ("custom(flip=2)", "flip=2 is not valid"),
    ],
)
def test_a_transform_that_cannot_be_is_told(spelled, message):
    with pytest.raises(ConfigError, match=message):
        make(spelled)


def test_a_run_transforms_its_training_images_before_the_methods_own_augmentation(small):
    plain = Config(method="fedavg+rc", train=Train(batch_size=8), **small)
    turned = Config(method="fedavg+rc", train=Train(batch_size=8, transform="custom(flip=1)"), **small)
    one, other = (next(iter(runner.prepare(c).engine.sites.values())) for c in (plain, turned))
    before, after = (next(iter(site.reseed(0, "train").batches())) for site in (one, other))
    assert torch.equal(before.x.flip(3), after.x) and len(after.views) == 1
    assert torch.equal(one.data["val"][0][:], other.data["val"][0][:])


def test_none_can_be_set_from_the_command_line():
    assert load(None, ["train.transform=none"]).train.transform == "none"
    assert load(None, ["train.transform=ga"]).train.transform == "ga"
