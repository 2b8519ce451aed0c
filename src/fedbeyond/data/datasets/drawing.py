"""Draw the built-in dataset: seven classes in four styles.

It resembles PACS (the same classes, domain sizes in the same proportions) but needs no download. `shapes` makes the
outlines; here one of four renderers draws them in its style. A photo has light, texture and a blurred scene behind; a
painting has brush strokes over canvas; a cartoon has flat colours inside dark lines; a sketch has lines on paper. An
image depends only on the seed, its domain, its index and its size, so a smaller share is a prefix of the full set.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from ..._progress import track
from .shapes import DRAWINGS, Part, scene

CLASSES: tuple[str, ...] = tuple(DRAWINGS)
DOMAINS: dict[str, int] = {"photo": 418, "painting": 512, "cartoon": 586, "sketch": 982}

Pixels = NDArray[np.float64]
Colour = tuple[int, int, int]
Tones = dict[str, Colour]

FINE = 3  # images are drawn this many times larger and then averaged down, for smooth edges
TONES = ("main", "second", "light", "extra", "sky", "ground", "hill", "cloud", "leaf", "wood", "shade", "ink")

# The colours of each class, as "main second light extra"; one line is drawn for each image.
COATS: dict[str, tuple[str, ...]] = {
    "dog": ("a8703c 6e4424 e8d6b0 b02020", "3a322e 1e1a18 b08050 c03030", "c8b090 80542c e8e0d0 3050a0"),
    "elephant": ("8c8a8c 767276 f2ead8 904040", "a09488 887a70 f4eedc 505050", "6e7078 5a5c66 eee6d0 705030"),
    "giraffe": ("dcb268 8a5226 f0e0b0 503018", "d0a050 80481c f4e8c8 604020", "c89c58 6a3c1c e8d8a8 402810"),
    "guitar": ("c07a34 50301c f0e4cc 2a1a12", "a82420 60402a f0f0e8 201818", "28282c 7a5030 e8e8e8 d8d0c0"),
    "horse": ("7c4624 2c1a10 e8d8c0 803020", "b08858 e8dcc8 e8d8c0 304878", "403430 181412 b0a090 a03028"),
    "house": ("c8b08c 8c3a2c a8c4dc 5c3820", "b06a50 54504e c4d8e4 e8e4dc", "a8b0a8 54382c 90a8bc 385070"),
    "person": ("3c5c9c 34343c e4b494 2c1c14", "b83c3c 3c4c78 8a5a3c 18120e", "58885c 6a5c48 f0cca8 a87434"),
}
# The colours of scenes, outdoors and indoors, as "sky ground hill cloud leaf wood".
SCENES = ("9cc0e4 789050 6c8468 e8eef4 3c6030 6c5038", "d0c8bc a89070 b8a898 e0dcd4 7c8868 886848")


def colours(line: str) -> Pixels:
    return np.array([[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in line.split()], dtype=float)


LEADS = colours("202024 3c2a20 602c20 202c54")


def palette(rng: Generator, name: str, spread: float, pale: float) -> Pixels:
    """Draw a colour for each of TONES, with noise of about `spread`; colours of the scene are faded by `pale`."""
    coat, back = (colours(lines[rng.integers(len(lines))]) for lines in (COATS[name], SCENES))
    tones = np.concatenate([coat, back + (255 - back) * pale])
    tones += rng.normal(0, spread, tones.shape)
    return np.concatenate([tones, tones[:1] * 0.72, np.full((1, 3), 24.0)])


def saturate(tones: Pixels, amount: float) -> Pixels:
    grey: Pixels = tones.mean(axis=1, keepdims=True)
    return grey + (tones - grey) * amount


def opaque(rows: Pixels) -> list[Colour]:
    return [(red, green, blue) for red, green, blue in rows.clip(0, 255).astype(int).tolist()]


def solid(tones: Pixels) -> Tones:
    return dict(zip(TONES, opaque(tones), strict=True))


def place(rng: Generator, parts: list[Part], loose: float) -> list[Part]:
    """Tilt a drawing, perhaps mirror it, stretch it by up to `loose`, and place it in the unit square."""
    points = np.concatenate([part.edge for part in parts]) * np.exp(1j * rng.uniform(-0.1, 0.1))
    points = points.real * (1 + rng.uniform(-loose, loose)) + 1j * points.imag
    if rng.random() < 0.5:
        points = -points.conj()
    pairs = points.view(np.float64).reshape(-1, 2)
    low, high = pairs.min(axis=0), pairs.max(axis=0)
    scale = rng.uniform(0.8, 0.97) / (high - low).max()
    room = (1 - scale * (high - low)) * rng.uniform(-0.4, 0.4, 2)
    points = points * scale + complex(*(0.5 + room - scale * (low + high) / 2))
    edges = np.split(points, np.cumsum([len(part.edge) for part in parts])[:-1])
    moved = [part._replace(edge=edge) for part, edge in zip(parts, edges, strict=True)]
    return sorted(moved, key=lambda part: part.layer)


def blank(size: int, paint: Colour) -> Image.Image:
    return Image.new("RGB", (size * FINE, size * FINE), paint)


def reduced(canvas: Image.Image) -> Pixels:
    return np.asarray(canvas.reduce(FINE), dtype=np.float64)


def corners(part: Part, side: int) -> list[float]:
    flat: list[float] = (part.edge * side).view(np.float64).tolist()
    return flat


def fill(canvas: Image.Image, parts: Sequence[Part], tones: Mapping[str, Colour | int]) -> None:
    pen = ImageDraw.Draw(canvas)
    for part in parts:
        pen.polygon(corners(part, canvas.width), fill=tones[part.tone])


def ink(canvas: Image.Image, parts: Sequence[Part], tones: Tones, line: Colour, width: float) -> None:
    """Fill the parts, with a line around each layer: outlines are drawn first, so that fills hide inner lines."""
    pen = ImageDraw.Draw(canvas)
    thick = max(1, round(width * canvas.width))
    for _, layer in groupby(parts, key=lambda part: part.layer):
        group = [(part.tone, corners(part, canvas.width)) for part in layer]
        for tone, points in group:
            if tone != "ink":
                pen.line(points + points[:4], fill=line, width=thick)
        for tone, points in group:
            pen.polygon(points, fill=tones[tone])


def stencil(parts: Sequence[Part], side: int) -> Image.Image:
    """Return a mask: white on the object, black elsewhere."""
    mask = Image.new("L", (side, side))
    fill(mask, parts, dict.fromkeys(TONES, 255))
    return mask


def clouds(rng: Generator, size: int, cells: int) -> Pixels:
    """Return smooth noise of about unit amplitude, `cells` bumps across."""
    rough = Image.fromarray(rng.standard_normal((cells, cells), dtype=np.float32))
    return np.asarray(rough.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float64)[:, :, None]


def photo(rng: Generator, name: str, size: int) -> Pixels:
    parts, back = place(rng, DRAWINGS[name](rng), 0.05), scene(rng)
    tones = solid(palette(rng, name, 8, 0.5))
    canvas = blank(size, tones["sky"])
    fill(canvas, back, tones)
    canvas = canvas.filter(ImageFilter.GaussianBlur(canvas.width * rng.uniform(0.01, 0.03)))
    fill(canvas, parts, tones)
    shape = stencil(parts, canvas.width)
    mask = reduced(shape)[:, :, None] / 255
    down, across = np.gradient(reduced(shape.filter(ImageFilter.BoxBlur(canvas.width * 0.04))) / 255)
    angle = rng.uniform(-0.8, 0.8)
    light: Pixels = (np.cos(angle) * down + np.sin(angle) * across)[:, :, None] * size / 32
    surface = mask * (1.8 * light + 0.09 * clouds(rng, size, 24)) + (1 - mask) * 0.06 * clouds(rng, size, 9)
    day = rng.uniform(0.95, 1.15) * (1 + 0.12 * rng.normal() * np.linspace(-1, 1, size)[None, :, None])
    picture = reduced(canvas) * (1 + surface) * day * rng.normal(1, 0.04, 3)
    return picture + rng.normal(0, 5, picture.shape)


def painting(rng: Generator, name: str, size: int) -> Pixels:
    parts, back = place(rng, DRAWINGS[name](rng), 0.1), scene(rng)
    tones = solid(saturate(palette(rng, name, 10, 0.5), rng.uniform(0.9, 1.3)))
    canvas = blank(size, tones["sky"])
    fill(canvas, back, tones)
    brush(rng, canvas, 90, 0.16, 0.05)
    fill(canvas, parts, tones)
    brush(rng, canvas, 150, 0.07, 0.025)
    fill(canvas, [part for part in parts if part.layer > 1], tones)
    weave: Pixels = np.sin(np.arange(size) * 2.1)
    cloth = 1 + 0.04 * (weave[:, None, None] + weave[None, :, None])
    return reduced(canvas) * cloth * rng.normal([1.05, 1.0, 0.92], 0.03)


def brush(rng: Generator, canvas: Image.Image, strokes: int, length: float, width: float) -> None:
    """Draw strokes along a curved field, each in about the colour under its centre."""
    side = canvas.width
    under = np.asarray(canvas)
    spot = rng.random((strokes, 2))
    angle = rng.uniform(0, np.pi) + 1.2 * np.sin(spot @ rng.normal(0, 4, 2))
    reach = length * rng.uniform(0.5, 1, strokes) / 2
    ends = np.stack([np.cos(angle) * reach, np.sin(angle) * reach], axis=1)
    lines = (np.concatenate([spot - ends, spot + ends], axis=1) * side).tolist()
    at = (spot * side).astype(int)
    hues = under[at[:, 1], at[:, 0]] + rng.normal(0, 9, (strokes, 1)) + rng.normal(0, 5, (strokes, 3))
    pen = ImageDraw.Draw(canvas)
    thick = max(1, round(width * side))
    for line, hue in zip(lines, opaque(hues), strict=True):
        pen.line(line, fill=hue, width=thick)


def cartoon(rng: Generator, name: str, size: int) -> Pixels:
    parts, back = place(rng, DRAWINGS[name](rng), 0.25), scene(rng)
    plain = saturate(palette(rng, name, 12, 0.1), rng.uniform(1.7, 2.4)) * 1.1 + 15
    if rng.random() < 0.5:  # cartoons use any colour: a blue elephant, a violet horse
        plain[:10] = plain[:10, rng.permutation(3)]
    tones = solid(plain)
    canvas = blank(size, tones["sky"])
    if rng.random() < 0.9:
        ink(canvas, back, tones, (40, 40, 40), 0.02)
    ink(canvas, parts, tones, (24, 24, 24), rng.uniform(0.03, 0.05))
    return reduced(canvas)


def sketch(rng: Generator, name: str, size: int) -> Pixels:
    parts, back = place(rng, DRAWINGS[name](rng), 0.1), scene(rng)
    paper = rng.uniform(206, 238) + rng.normal(0, 6, 3)
    lead = LEADS[rng.integers(len(LEADS))] + rng.normal(0, 12, 3)
    sheet, faint, dark = opaque(np.stack([paper, paper * 0.6 + lead * 0.4, lead]))
    tones = dict.fromkeys(TONES, sheet) | {"ink": dark}
    canvas = blank(size, sheet)
    if rng.random() < 0.5:
        ink(canvas, back, tones, faint, 0.02)
    wobbly = [part._replace(edge=part.edge + rng.normal(0, 0.004, len(part.edge))) for part in parts]
    ink(canvas, wobbly, tones, dark, rng.uniform(0.04, 0.06))
    if rng.random() < 0.6:
        hatch(rng, canvas, parts, faint)
    return reduced(canvas) + rng.normal(0, 3, (size, size, 1))


def hatch(rng: Generator, canvas: Image.Image, parts: list[Part], lead: Colour) -> None:
    """Shade the object with parallel pencil lines."""
    shaded, side = canvas.copy(), canvas.width
    pen = ImageDraw.Draw(shaded)
    lean, gap = rng.uniform(-0.6, 0.6) * side, rng.uniform(0.04, 0.07) * side
    for x in np.arange(-0.6 * side, 1.6 * side, gap).tolist():
        pen.line((x - lean, 0, x + lean, side), fill=lead, width=max(1, side // 70))
    canvas.paste(shaded, mask=stencil(parts, side))


RENDERERS: dict[str, Callable[[Generator, str, int], Pixels]] = {
    renderer.__name__: renderer for renderer in (photo, painting, cartoon, sketch)
}


def image(seed: int, domain: str, index: int, size: int) -> tuple[NDArray[np.uint8], int]:
    rng = np.random.default_rng([seed, list(DOMAINS).index(domain), index])
    label = int(rng.integers(len(CLASSES)))
    picture = RENDERERS[domain](rng, CLASSES[label], size)
    return np.ascontiguousarray(picture.clip(0, 255).astype(np.uint8).transpose(2, 0, 1)), label


def styles(
    size: int = 32, share: float = 1.0, seed: int = 0
) -> tuple[tuple[str, ...], dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]]:
    """Return the classes, and for each domain its images (uint8, N x 3 x size x size) and labels (int64, N)."""
    if not 16 <= size <= 256 or not 0 < share <= 1:
        raise ValueError(f"size={size} and share={share} are given; size must be 16 to 256 and share in (0, 1]")
    wanted = [(domain, i) for domain, count in DOMAINS.items() for i in range(max(1, round(count * share)))]
    drawn: dict[str, list[tuple[NDArray[np.uint8], int]]] = {domain: [] for domain in DOMAINS}
    for domain, index in track(wanted, "drawing the built-in data"):
        drawn[domain].append(image(seed, domain, index, size))
    pairs = {domain: zip(*images, strict=True) for domain, images in drawn.items()}
    return CLASSES, {domain: (np.stack(x), np.array(y, dtype=np.int64)) for domain, (x, y) in pairs.items()}
