"""Outlines of the seven classes of the built-in dataset and of the scenes behind them, without any style.

Points are complex numbers (x to the right, y down), so that turning and mirroring are single products.
A drawing is a list of parts. Parts of one layer are inked as one shape, and higher layers cover lower ones.
Pose and proportions of every drawing are random values of the generator that it is given.
"""

from cmath import rect
from collections.abc import Callable, Sequence
from math import pi
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Points = NDArray[np.complex128]


class Part(NamedTuple):
    """A closed outline, its layer, and the tone (a name in the palette) that it is filled with."""

    layer: int
    tone: str
    edge: Points


CIRCLE: Points = np.exp(1j * np.linspace(0, 2 * pi, 18, endpoint=False))
CAP: Points = np.exp(1j * np.linspace(pi / 2, -pi / 2, 5))
T = np.linspace(0, 1, 7)
# By the number of points of a path: their weights along the path, and their weights in its direction.
BLEND = {2: np.array([[1, 0.5, 0], [0, 0.5, 1]]), 3: np.stack([(1 - T) ** 2, 2 * T * (1 - T), T**2])}
SLOPE = {2: np.array([[-1, -1, -1], [1, 1, 1]]), 3: np.stack([T - 1, 1 - 2 * T, T])}


def oval(centre: complex, wide: float, high: float, turn: float = 0.0) -> Points:
    ring = CIRCLE * ((wide + high) / 2) + CIRCLE.conj() * ((wide - high) / 2)
    return ring * rect(1, turn) + centre


def box(left: float, top: float, right: float, bottom: float) -> Points:
    return np.array([left + 1j * top, right + 1j * top, right + 1j * bottom, left + 1j * bottom])


def poly(*corners: complex) -> Points:
    return np.array(corners, dtype=np.complex128)


def tube(path: Sequence[complex], *radii: float) -> Points:
    """Return the outline of a limb: a line of two points or a curve of three, with a radius at each point."""
    line, radius = np.dot(path, BLEND[len(path)]), np.dot(radii, BLEND[len(path)])
    heading = np.dot(path, SLOPE[len(path)])
    heading /= np.abs(heading) + 1e-9
    side = 1j * heading * radius
    tip, tail = heading[-1] * radius[-1] * CAP, -heading[0] * radius[0] * CAP
    return np.concatenate([line + side, line[-1] + tip, (line - side)[::-1], line[0] + tail])


def beast(
    rng: Generator, length: float, girth: float, leg: float, thick: float, pitch: float
) -> tuple[list[Part], complex, complex]:
    """Draw a trunk on four legs that faces right and stands on y = 0; also return its rump and shoulder."""
    rump = complex(0, -leg)
    shoulder = rump + rect(length, -pitch)
    stride = rng.uniform(-0.45, 0.45) * leg
    parts = []
    for layer, hip, phase in ((0, rump, 1), (0, shoulder, -1), (1, rump, -1), (1, shoulder, 1)):
        foot = complex(hip.real + phase * stride + rng.uniform(-0.05, 0.08), rng.uniform(-0.04, 0))
        knee = (hip + foot) / 2 + rng.uniform(-0.08, 0.14)
        tone = "main" if layer else "shade"
        parts.append(Part(layer, tone, tube((hip, knee, foot), thick * 1.5, thick, thick * 0.9)))
    belly = (rump + shoulder) / 2 + 0.1j * girth
    trunk = tube((rump, belly, shoulder), girth * 0.95, girth * rng.uniform(0.85, 1.1), girth)
    return [*parts, Part(1, "main", trunk)], rump, shoulder


def dog(rng: Generator) -> list[Part]:
    draw, sits = rng.uniform, rng.random() < 0.3
    girth = draw(0.16, 0.22)
    leg, pitch = (draw(0.18, 0.22), draw(0.6, 0.9)) if sits else (draw(0.34, 0.46), draw(-0.05, 0.15))
    parts, rump, shoulder = beast(rng, draw(0.65, 0.85), girth, leg, draw(0.05, 0.075), pitch)
    head = shoulder + rect(draw(0.34, 0.42), -draw(0.7, 1.3))
    look = draw(-0.2, 0.5)
    nose = head + rect(draw(0.26, 0.36), look)
    ear = head + rect(0.15, look - 2.3)
    if rng.random() < 0.6:
        flap = tube((ear, ear - 0.1, ear + rect(draw(0.22, 0.32), look + 1.8)), 0.05, 0.09, 0.06)
    else:
        flap = poly(ear - 0.07, ear + rect(draw(0.2, 0.28), look - 1.8), ear + 0.13 - 0.02j)
    wag = rump - girth * 0.7 - draw(0.2, 0.35) - 1j * draw(-0.05, 0.45)
    parts += [
        Part(0, "main", tube((rump, rump - girth - 0.12 + 0.04j, wag), 0.06, 0.05, 0.03)),
        Part(1, "main", tube((shoulder, head), girth * 0.85, 0.13)),
        Part(1, "main", oval(head, 0.19, 0.17)),
        Part(1, "main", tube((head, nose), 0.12, 0.08)),
        Part(2, "second", flap),
        Part(3, "ink", oval(nose + rect(0.06, look - 0.4), 0.05, 0.04)),
        Part(3, "ink", oval(head + rect(0.09, look - 0.9), 0.028, 0.03)),
    ]
    if rng.random() < 0.4:
        spot = shoulder * 0.4 + rump * 0.6 - 0.3j * girth
        parts.append(Part(2, "second", oval(spot, girth * 0.8, girth * 0.5, -pitch)))
    return parts


def elephant(rng: Generator) -> list[Part]:
    draw = rng.uniform
    girth = draw(0.32, 0.4)
    length, leg, thick = draw(0.55, 0.75), draw(0.6, 0.7), draw(0.1, 0.13)
    parts, rump, shoulder = beast(rng, length, girth, leg, thick, draw(-0.05, 0.1))
    head = shoulder + rect(draw(0.36, 0.44), -draw(0.2, 0.6))
    face = head + 0.18 + 0.05j
    reach, lift = draw(0.15, 0.45), draw(-0.45, 0.7)
    trunk = (face, face + reach * 0.7 + 0.5j, face + reach + 1j * lift)
    tusk = (face + 0.1j, face + 0.12 + 0.25j, face + draw(0.2, 0.3) + 0.18j)
    size = draw(0.2, 0.28)
    ear = oval(head - 0.16 + 0.02j, size * draw(0.7, 0.95), size * 1.2, draw(-0.3, 0.3))
    tail = (rump - girth * 0.8, rump - girth - 0.12, rump - girth - 0.08 + 0.4j)
    parts += [
        Part(0, "shade", tube(tail, 0.03, 0.02, 0.04)),
        Part(1, "main", oval(head, 0.27, 0.25)),
        Part(1, "main", tube(trunk, 0.14, 0.09, 0.055)),
        Part(2, "light", tube(tusk, 0.04, 0.03, 0.01)),
        Part(2, "second", ear),
        Part(3, "ink", oval(head + 0.13 - 0.07j, 0.028, 0.03)),
    ]
    return parts


def giraffe(rng: Generator) -> list[Part]:
    draw = rng.uniform
    girth, leg = draw(0.15, 0.19), draw(0.62, 0.76)
    parts, rump, shoulder = beast(rng, draw(0.42, 0.55), girth, leg, draw(0.038, 0.05), draw(0.15, 0.4))
    reach, lean = draw(0.75, 0.95), draw(0.9, 1.45)
    head = shoulder + rect(reach, -lean)
    look = draw(0.1, 0.7)
    crown, seat = head + rect(0.06, look - 1.8), rump - girth
    parts += [
        Part(0, "second", tube((seat, seat - 0.1, seat - 0.05 + 0.35j), 0.02, 0.015, 0.04)),
        Part(0, "second", tube((crown, crown + rect(0.13, look - 1.7)), 0.02, 0.03)),
        Part(0, "second", tube((crown - 0.05, crown - 0.06 + rect(0.13, look - 2.0)), 0.02, 0.03)),
        Part(1, "main", tube((shoulder, (shoulder + head) / 2 + draw(-0.08, 0.1), head), 0.14, 0.08, 0.06)),
        Part(1, "main", tube((head, head + rect(0.24, look)), 0.085, 0.055)),
        Part(1, "main", oval(head - 0.12 - 0.03j, 0.08, 0.035, 0.4)),
        Part(3, "ink", oval(head + rect(0.05, look - 1), 0.022, 0.022)),
    ]
    for along in np.arange(0.12, 0.9, draw(0.14, 0.2)):
        parts.append(Part(2, "second", oval(shoulder + (head - shoulder) * along, 0.045, 0.04, draw(0, 3))))
    for along in np.arange(-0.1, 1.15, draw(0.28, 0.36)):
        for across in (-0.5, 0.45):
            spot = rump + (shoulder - rump) * (along + across * 0.2) + 1j * across * girth
            parts.append(Part(2, "second", oval(spot, draw(0.04, 0.06), draw(0.035, 0.055), draw(0, 3))))
    return parts


def horse(rng: Generator) -> list[Part]:
    draw = rng.uniform
    girth = draw(0.19, 0.23)
    length, leg, thick = draw(0.72, 0.88), draw(0.62, 0.74), draw(0.045, 0.06)
    parts, rump, shoulder = beast(rng, length, girth, leg, thick, draw(-0.05, 0.1))
    neck = rect(draw(0.48, 0.6), -draw(0.55, 1.15) if rng.random() < 0.8 else draw(0.1, 0.5))
    head = shoulder + neck
    look = draw(0.5, 1.1)
    nape = 1j * neck / abs(neck)
    mane = (head - nape * 0.1, shoulder + neck * 0.5 - nape * 0.22, shoulder - nape * 0.1)
    sway, seat = draw(-0.4, -0.15), rump - girth
    hair = (seat + girth * 0.2 - 0.05j, seat + sway - 0.1j, seat + sway * 0.8 + 1j * draw(0.3, 0.55))
    parts += [
        Part(0, "second", tube(hair, 0.04, 0.08, 0.03)),
        Part(1, "main", tube((shoulder, shoulder + neck * 0.5, head), girth * 0.9, 0.13, 0.1)),
        Part(1, "main", tube((head, head + rect(draw(0.32, 0.4), look)), 0.115, 0.07)),
        Part(1, "main", poly(head - 0.1, head - 0.06 - 0.2j, head + 0.05 - 0.05j)),
        Part(2, "second", tube(mane, 0.05, 0.07, 0.04)),
        Part(3, "ink", oval(head + rect(0.08, look - 0.6), 0.024, 0.026)),
    ]
    if rng.random() < 0.3:
        seat = (rump + shoulder) / 2 - 0.8j * girth
        parts.append(Part(2, "extra", poly(seat - 0.16, seat + 0.16, seat + 0.12 + 0.2j, seat - 0.12 + 0.2j)))
    return parts


def guitar(rng: Generator) -> list[Part]:
    draw, acoustic = rng.uniform, rng.random() < 0.6
    wide, waist, neck = draw(0.34, 0.4), draw(0.2, 0.26), draw(0.8, 1.0)
    top = -0.45 - neck
    crest = top - 0.26
    parts = [
        Part(0, "main", oval(0, wide, wide * 0.85)),
        Part(0, "main", oval(-0.42j, wide * draw(0.7, 0.8), wide * 0.65)),
        Part(0, "main", box(-waist, -0.45, waist, 0)),
        Part(1, "second", box(-0.055, top, 0.055, -0.3)),
        Part(1, "extra", poly(1j * top - 0.09, 1j * crest - 0.12, 1j * crest + 0.12, 1j * top + 0.09)),
        Part(2, "light", box(-0.15, 0.06, 0.15, 0.12)),
    ]
    if acoustic:
        parts.append(Part(1, "extra", oval(-0.26j, 0.13, 0.13)))
    else:
        for side, rise in ((-1, draw(0.75, 0.9)), (1, draw(0.6, 0.85))):
            horn = (side * waist * 0.8 - 0.4j, side * 0.26 - 1j * rise)
            parts.append(Part(0, "main", tube(horn, 0.12, 0.06)))
        parts += [Part(2, "extra", box(-0.12, y, 0.12, y + 0.07)) for y in (-0.36, -0.14)]
    parts += [Part(3, "ink", box(x - 0.005, top - 0.1, x + 0.005, 0.08)) for x in (-0.03, 0.0, 0.03)]
    for y in (0.06, 0.14, 0.22):
        parts += [Part(0, "light", oval(side * 0.14 + 1j * (top - y), 0.035, 0.025)) for side in (-1, 1)]
    turn = rect(1, draw(-1.3, 1.3))
    return [part._replace(edge=part.edge * turn) for part in parts]


def house(rng: Generator) -> list[Part]:
    draw = rng.uniform
    wide, high, roof, eave = draw(0.4, 0.6), draw(0.55, 0.95), draw(0.35, 0.6), draw(0.04, 0.12)
    flat, side = draw(0, 0.5) * (rng.random() < 0.4), draw(0.35, 0.8) * (rng.random() < 0.6)
    ridge, edge, chimney = flat * wide - 1j * (high + roof), wide + eave - 1j * high, draw(-0.3, 0.3)
    parts = [
        Part(0, "shade", box(wide, -high, wide + side, 0)),
        Part(0, "extra", box(chimney - 0.07, -high - roof - 0.08, chimney + 0.07, -high - roof * 0.3)),
        Part(1, "main", box(-wide, -high, wide, 0)),
        Part(2, "second", poly(-edge.conjugate(), -ridge.conjugate(), ridge, edge)),
    ]
    if side:
        parts.append(Part(1, "second", poly(ridge, ridge + side + eave, edge + side, edge)))
        parts.append(Part(2, "light", box(wide + side * 0.3, -high * 0.65, wide + side * 0.7, -high * 0.35)))
    door = draw(-0.5, 0.5) * wide
    parts.append(Part(3, "extra", box(door - 0.1, -draw(0.32, 0.4), door + 0.1, 0)))
    columns, pane = int(rng.integers(2, 4)), draw(0.07, 0.1)
    for y in (-high + 0.2, -0.28) if high > 0.7 else (-high + 0.22,):
        for x in np.linspace(-wide * 0.62, wide * 0.62, columns):
            if abs(x - door) > 0.1 + pane or y < -0.5:
                parts.append(Part(3, "light", box(x - pane, y - pane, x + pane, y + pane)))
                parts.append(Part(3, "ink", box(x - 0.01, y - pane, x + 0.01, y + pane)))
    return parts


def person(rng: Generator) -> list[Part]:
    draw, bust, skirt = rng.uniform, rng.random() < 0.2, rng.random() < 0.3
    chest, hips = draw(0.17, 0.23), draw(0.13, 0.18)
    head = draw(-0.05, 0.05) - 0.92j
    hair = tube((head - 0.1 - 0.05j, head - 0.28j, head + 0.1 - 0.05j), 0.07, 0.05, 0.07)
    parts = [
        Part(1, "main", poly(-chest - 0.62j, chest - 0.62j, hips + 0.02j, -hips + 0.02j)),
        Part(1, "light", tube((-0.55j, head), 0.06, 0.06)),
        Part(2, "light", oval(head, 0.135, 0.165)),
        Part(3, "extra", hair),
        Part(3, "ink", oval(head - 0.05 - 0.01j, 0.018, 0.02)),
        Part(3, "ink", oval(head + 0.05 - 0.01j, 0.018, 0.02)),
        Part(3, "ink", oval(head + 0.085j, 0.04, 0.012)),
    ]
    if rng.random() < 0.4:
        parts.append(Part(0, "extra", tube((head - 0.1j, head + 1j * draw(0.1, 0.35)), 0.16, 0.17)))
    for side in (-1, 1):
        joint = side * chest - 0.56j
        swing = draw(0.1, 1.0) if rng.random() < 0.7 else draw(1.0, 2.6)
        elbow = joint + side * rect(0.3, side * (pi / 2 - swing))
        hand = elbow + side * rect(0.28, side * (pi / 2 - swing + draw(-0.9, 0.9)))
        parts.append(Part(1, "light", tube((elbow, hand), 0.05, 0.045)))
        parts.append(Part(1, "main", tube((joint, elbow), 0.075, 0.06)))
        foot = side * draw(0.08, 0.32) + 0.85j
        knee = (side * 0.1 + foot) / 2 + draw(-0.06, 0.1) * side
        if not bust:
            leg = tube((side * 0.09 + 0j, knee, foot), 0.09, 0.07, 0.055)
            parts.append(Part(0, "light" if skirt else "second", leg))
            parts.append(Part(0, "extra", tube((foot, foot + side * 0.09 + 0.02j), 0.055, 0.045)))
    if skirt and not bust:
        flare = draw(0.25, 0.4)
        parts.append(Part(1, "second", poly(-hips - 0.05j, hips - 0.05j, flare + 0.42j, -flare + 0.42j)))
    return parts


def scene(rng: Generator) -> list[Part]:
    """Draw a random background in the unit square: ground, hills, trees, clouds, crates, posts."""
    draw = rng.uniform
    level = draw(0.55, 0.9)
    parts = [Part(-9, "ground", box(-0.2, level, 1.2, 1.2))]
    for _ in range(rng.integers(0, 3)):
        parts.append(Part(-10, "hill", oval(draw(0, 1) + 1j * level, draw(0.2, 0.5), draw(0.08, 0.3))))
    for _ in range(rng.integers(0, 3)):
        spot, wide = draw(0, 1) + 1j * draw(0.05, 0.3), draw(0.06, 0.14)
        parts += [Part(-11, "cloud", oval(spot + x * wide, wide, wide * 0.6)) for x in (-0.7, 0.6)]
    for _ in range(rng.integers(0, 3)):
        foot, tall, kind = draw(0, 1) + 1j * (level + draw(-0.02, 0.1)), draw(0.15, 0.45), rng.integers(3)
        if kind == 0:
            parts.append(Part(-8, "wood", tube((foot, foot - 1j * tall), 0.025, 0.02)))
            parts.append(Part(-7, "leaf", oval(foot - 1j * tall, tall * 0.4, tall * 0.5)))
        elif kind == 1:
            parts.append(Part(-8, "leaf", oval(foot, tall * 0.5, tall * 0.35)))
        else:
            parts.append(Part(-8, "wood", foot + box(-tall * 0.3, -tall * 0.5, tall * 0.3, 0)))
    return sorted(parts, key=lambda part: part.layer)


DRAWINGS: dict[str, Callable[[Generator], list[Part]]] = {
    drawing.__name__: drawing for drawing in (dog, elephant, giraffe, guitar, horse, house, person)
}
