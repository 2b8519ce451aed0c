"""The image set that comes with the package: seven things in four styles, drawn by code.

It is shaped like PACS (the same classes, domain sizes in the same proportions) but needs no download. The
outlines come from `shapes`; here each of four renderers turns the same outlines into its own style: a photo
is lit, textured and set before a blurred scene; a painting is laid on in brush strokes over canvas; a cartoon
is flat colour inside dark lines; a sketch is lines on paper. An image depends on the seed, its domain, its
index and its size only, so a smaller share of the set is a prefix of the whole.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from fedbeyond.data.shapes import DRAWINGS, Part, scene

CLASSES: tuple[str, ...] = tuple(DRAWINGS)
DOMAINS: dict[str, int] = {"photo": 418, "painting": 512, "cartoon": 586, "sketch": 982}

Pixels = NDArray[np.float32]
Palette = dict[str, NDArray[np.float32]]

FINE = 3  # pictures are drawn this many times larger, then averaged down, for smooth edges

# The colours that things have, as "main second light extra"; one line is picked for each image.
COATS: dict[str, tuple[str, ...]] = {
    "dog": ("a8703c 6e4424 e8d6b0 b02020", "3a322e 1e1a18 b08050 c03030", "c8b090 80542c e8e0d0 3050a0"),
    "elephant": ("8c8a8c 767276 f2ead8 904040", "a09488 887a70 f4eedc 505050", "6e7078 5a5c66 eee6d0 705030"),
    "giraffe": ("dcb268 8a5226 f0e0b0 503018", "d0a050 80481c f4e8c8 604020", "c89c58 6a3c1c e8d8a8 402810"),
    "guitar": ("c07a34 50301c f0e4cc 2a1a12", "a82420 60402a f0f0e8 201818", "28282c 7a5030 e8e8e8 d8d0c0"),
    "horse": ("7c4624 2c1a10 e8d8c0 803020", "b08858 e8dcc8 e8d8c0 304878", "403430 181412 b0a090 a03028"),
    "house": ("c8b08c 8c3a2c a8c4dc 5c3820", "b06a50 54504e c4d8e4 e8e4dc", "a8b0a8 54382c 90a8bc 385070"),
    "person": ("3c5c9c 34343c e4b494 2c1c14", "b83c3c 3c4c78 8a5a3c 18120e", "58885c 6a5c48 f0cca8 a87434"),
}
SCENES: tuple[str, ...] = ("9cc0e4 789050 6c8468 e8eef4 3c6030 6c5038", "d0c8bc a89070 b8a898 e0dcd4 7c8868 886848")


def colour(code: str) -> NDArray[np.float32]:
    return np.array([int(code[i : i + 2], 16) for i in (0, 2, 4)], dtype=np.float32)


COAT = {name: [[colour(code) for code in line.split()] for line in lines] for name, lines in COATS.items()}
BEHIND = ("sky", "ground", "hill", "cloud", "leaf", "wood")
SCENE = [[colour(code) for code in line.split()] for line in SCENES]


def palette(rng: Generator, name: str, spread: float, pale: float) -> Palette:
    """A natural colour for every tone, moved at random by about `spread`; the scene's fade to white by `pale`."""
    coats = COAT[name]
    tones: Palette = dict(zip(("main", "second", "light", "extra"), coats[rng.integers(len(coats))], strict=True))
    back = SCENE[rng.integers(len(SCENE))]
    tones |= {tone: value + (255 - value) * pale for tone, value in zip(BEHIND, back, strict=True)}
    tones = {tone: value + rng.normal(0, spread, 3) for tone, value in tones.items()}
    return tones | {"shade": tones["main"] * 0.72, "ink": np.full(3, 24.0)}


def saturate(tones: Palette, amount: float) -> Palette:
    return {tone: value.mean() + (value - value.mean()) * amount for tone, value in tones.items()}


def place(rng: Generator, parts: list[Part]) -> list[Part]:
    """The drawing mirrored or not, tilted, scaled and put somewhere inside the unit square."""
    spin = np.exp(1j * rng.uniform(-0.1, 0.1))
    points = np.concatenate([part.edge for part in parts]) * spin
    low = complex(points.real.min(), points.imag.min())
    high = complex(points.real.max(), points.imag.max())
    reach = max((high - low).real, (high - low).imag)
    scale = rng.uniform(0.74, 0.96) / reach
    room = np.maximum(1 - scale * np.array([(high - low).real, (high - low).imag]), 0) * 0.5
    centre = 0.5 + 0.5j + complex(*(rng.uniform(-0.8, 0.8, 2) * room))
    flip = -1 if rng.random() < 0.5 else 1
    moved = []
    for part in parts:
        edge = (part.edge * spin - (low + high) / 2) * scale
        moved.append(part._replace(edge=centre + flip * edge.real + 1j * edge.imag))
    return sorted(moved, key=lambda part: part.layer)


def rgb(value: NDArray[np.float32]) -> tuple[int, ...]:
    return tuple(int(min(max(v, 0), 255)) for v in value)


def corners(part: Part, side: int) -> list[float]:
    return (part.edge * side).view(np.float64).tolist()  # type: ignore[no-any-return]


def fill(canvas: Image.Image, parts: Sequence[Part], tones: Palette) -> None:
    pen = ImageDraw.Draw(canvas)
    for part in parts:
        pen.polygon(corners(part, canvas.width), fill=rgb(tones[part.tone]))


def ink(canvas: Image.Image, parts: Sequence[Part], tones: Palette, line: tuple[int, ...], width: float) -> None:
    """Fill the parts and draw a line round each layer: all its outlines first, so that fills hide inner ones."""
    pen = ImageDraw.Draw(canvas)
    thick = max(1, round(width * canvas.width))
    for _, layer in groupby(parts, key=lambda part: part.layer):
        group = [(part, corners(part, canvas.width)) for part in layer]
        for part, points in group:
            if part.tone != "ink":
                pen.line(points + points[:4], fill=line, width=thick)
        for part, points in group:
            pen.polygon(points, fill=rgb(tones[part.tone]))


def reduced(canvas: Image.Image) -> Pixels:
    return np.asarray(canvas.reduce(FINE), dtype=np.float32)


def clouds(rng: Generator, size: int, cells: int) -> Pixels:
    """Smooth noise of about unit height, `cells` bumps across."""
    rough = Image.fromarray(rng.standard_normal((cells, cells)).astype(np.float32))
    return np.asarray(rough.resize((size, size), Image.Resampling.BICUBIC))[:, :, None]


def photo(rng: Generator, name: str, parts: list[Part], back: list[Part], size: int) -> Pixels:
    tones = palette(rng, name, 10, 0.4)
    canvas = Image.new("RGB", (size * FINE, size * FINE), rgb(tones["sky"]))
    fill(canvas, back, tones)
    canvas = canvas.filter(ImageFilter.GaussianBlur(canvas.width * rng.uniform(0.01, 0.03)))
    fill(canvas, parts, tones)
    stencil = Image.new("L", canvas.size, 0)
    pen = ImageDraw.Draw(stencil)
    for part in parts:
        pen.polygon(corners(part, stencil.width), fill=255)
    mask = reduced(stencil)[:, :, None] / 255
    form = reduced(stencil.filter(ImageFilter.BoxBlur(stencil.width * 0.04))) / 255
    down, across = np.gradient(form)
    angle = rng.uniform(-0.8, 0.8)
    light = (np.cos(angle) * down + np.sin(angle) * across)[:, :, None] * size / 32
    fur = mask * (1.8 * light + 0.10 * clouds(rng, size, 24)) + (1 - mask) * 0.07 * clouds(rng, size, 9)
    day = rng.uniform(0.85, 1.15) * (1 + 0.12 * rng.normal() * np.linspace(-1, 1, size)[None, :, None])
    cast = rng.normal(1, 0.04, 3)
    picture = reduced(canvas) * (1 + fur) * day * cast
    return picture + rng.normal(0, 5, picture.shape)


def painting(rng: Generator, name: str, parts: list[Part], back: list[Part], size: int) -> Pixels:
    tones = saturate(palette(rng, name, 15, 0.45), rng.uniform(0.9, 1.5))
    canvas = Image.new("RGB", (size * FINE, size * FINE), rgb(tones["sky"]))
    fill(canvas, back, tones)
    brush(rng, canvas, 90, 0.16, 0.05)
    fill(canvas, parts, tones)
    brush(rng, canvas, 150, 0.07, 0.025)
    fill(canvas, [part for part in parts if part.layer > 1], tones)
    weave = np.sin(np.arange(size) * 2.1)
    cloth = 1 + 0.04 * (weave[:, None, None] + weave[None, :, None])
    return reduced(canvas) * cloth * rng.normal([1.05, 1.0, 0.88], 0.04)


def brush(rng: Generator, canvas: Image.Image, strokes: int, length: float, width: float) -> None:
    """Strokes along a bent field, each in the colour under its middle, a little off."""
    side = canvas.width
    under = np.asarray(canvas)
    spot = rng.random((strokes, 2))
    angle = rng.uniform(0, np.pi) + 1.2 * np.sin(spot @ rng.normal(0, 4, 2))
    reach = length * rng.uniform(0.5, 1, strokes) / 2
    ends = np.stack([np.cos(angle) * reach, np.sin(angle) * reach], axis=1)
    lines = (np.concatenate([spot - ends, spot + ends], axis=1) * side).tolist()
    at = (spot * side).astype(int)
    hues = under[at[:, 1], at[:, 0]] + rng.normal(0, 11, (strokes, 1)) + rng.normal(0, 7, (strokes, 3))
    pen = ImageDraw.Draw(canvas)
    thick = max(1, round(width * side))
    for line, hue in zip(lines, hues.clip(0, 255).astype(int).tolist(), strict=True):
        pen.line(line, fill=tuple(hue), width=thick)


def cartoon(rng: Generator, name: str, parts: list[Part], back: list[Part], size: int) -> Pixels:
    tones = saturate(palette(rng, name, 15, 0.45), rng.uniform(1.6, 2.4))
    tones = {tone: value * 1.1 + 15 for tone, value in tones.items()} | {"ink": tones["ink"]}
    canvas = Image.new("RGB", (size * FINE, size * FINE), rgb(tones["sky"]))
    if rng.random() < 0.75:
        ink(canvas, back, tones, rgb(tones["ink"]), 0.02)
    ink(canvas, parts, tones, rgb(tones["ink"]), rng.uniform(0.03, 0.05))
    return reduced(canvas)


def sketch(rng: Generator, name: str, parts: list[Part], back: list[Part], size: int) -> Pixels:
    white = rng.uniform(205, 245) + rng.normal(0, 6, 3)
    tones: Palette = dict.fromkeys(palette(rng, name, 0, 0), white) | {"ink": np.full(3, 60.0, dtype=np.float32)}
    canvas = Image.new("RGB", (size * FINE, size * FINE), rgb(white))
    if rng.random() < 0.5:
        ink(canvas, back, tones, rgb(white * 0.75), 0.02)
    wobbly = [part._replace(edge=part.edge + rng.normal(0, 0.004, len(part.edge))) for part in parts]
    ink(canvas, wobbly, tones, rgb(np.full(3, rng.uniform(20, 80))), rng.uniform(0.03, 0.05))
    return reduced(canvas) + rng.normal(0, 3, (size, size, 1))


RENDERERS: dict[str, Callable[[Generator, str, list[Part], list[Part], int], Pixels]] = {
    "photo": photo,
    "painting": painting,
    "cartoon": cartoon,
    "sketch": sketch,
}


def image(seed: int, domain: str, index: int, size: int) -> tuple[NDArray[np.uint8], int]:
    rng = np.random.default_rng([seed, list(DOMAINS).index(domain), index])
    label = int(rng.integers(len(CLASSES)))
    name = CLASSES[label]
    parts, back = place(rng, DRAWINGS[name](rng)), sorted(scene(rng), key=lambda part: part.layer)
    picture = RENDERERS[domain](rng, name, parts, back, size)
    return picture.clip(0, 255).astype(np.uint8).transpose(2, 0, 1), label


def styles(
    size: int = 32, share: float = 1.0, seed: int = 0
) -> tuple[tuple[str, ...], dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]]:
    """The classes, and for each domain its images (uint8, N x 3 x size x size) and labels (int64, N)."""
    if not 16 <= size <= 256 or not 0 < share <= 1:
        raise ValueError(f"size must be 16 to 256 and share in (0, 1], got {size} and {share}")
    domains = {}
    for domain, count in DOMAINS.items():
        made = [image(seed, domain, index, size) for index in range(max(1, round(count * share)))]
        pictures, labels = zip(*made, strict=True)
        domains[domain] = np.stack(pictures), np.array(labels, dtype=np.int64)
    return CLASSES, domains
