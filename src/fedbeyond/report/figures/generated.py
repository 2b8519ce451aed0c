"""What generators of novel images make: the image, what is added to it, and what comes out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import spec
from ...classifier import scores, write
from ...experiment import registry
from ...experiment.config import Config
from ...images import pixels
from ...methods.ats import painted
from ...methods.ndag import Generate, perturbing
from ..figure import Figure
from .board import Tile, as_bytes, board, shown
from .runs import Held, evenly

EACH, MOST = 3, 12  # images of a domain, and of all


def _ndag(options: dict[str, Any]) -> Generate:
    return perturbing(float(options["alpha"]), options["space"], options["clamp"])


def _ddaig(options: dict[str, Any]) -> Generate:
    return perturbing(float(options["strength"]), "input")


MAKERS: dict[str, Callable[[dict[str, Any]], Generate]] = {
    "feddag": _ndag,
    "ndag": _ndag,
    "ddaig": _ddaig,
    "ats": lambda options: painted,
}


class Made(NamedTuple):
    """Images, what a generator made of them, and the difference; between -1 and 1, but for what is made."""

    images: Tensor
    generated: Tensor
    perturbation: Tensor


def fits(config: Config) -> bool:
    """Whether a method generates images."""
    return spec.parse(config.method)[0].name in MAKERS


def draw(runs: Sequence[Held]) -> Figure:
    """Three rows: images of the sources, perturbations, generated images."""
    (held,) = runs
    state = held.server()
    write(held.net, state["model"])
    write(held.nets["generator"], state["generator"])
    count = max(1, min(EACH, MOST // len(held.train)))
    picked = [(domain, row) for domain, (_, y) in held.train.items() for row in spread(y, count)]
    x = torch.cat([held.train[domain][0][torch.tensor([row])] for domain, row in picked])
    truth = [int(held.train[domain][1][row]) for domain, row in picked]
    made = generate(held, x)
    before, after = (scores(held.net, some).softmax(1) for some in (made.images, made.generated))
    most = float(made.perturbation.abs().max()) or 1.0
    head = ["domain", "image", "class", "predicted", "confidence", "predicted generated", "confidence generated"]
    data = [[*head, "norm of perturbation", "most of perturbation"]]
    tiles: list[list[Tile]] = [[], [], []]
    for place, (domain, row) in enumerate(picked):
        image, novel, added = made.images[place], made.generated[place], made.perturbation[place]
        tiles[0].append(Tile(as_bytes(shown(image)), said(held, before[place])))
        tiles[1].append(Tile(as_bytes(shown(added / most)), f"length {float(added.norm()):.1f}"))
        tiles[2].append(Tile(as_bytes(shown(novel)), said(held, after[place])))
        told = [held.classes[truth[place]]]
        for chances in (before[place], after[place]):
            told += [held.classes[int(chances.argmax())], f"{float(chances.max()):.6g}"]
        norms = [f"{float(added.norm()):.6g}", f"{float(added.abs().max()):.6g}"]
        data.append([domain, held.file(domain, row), *told, *norms])
    top = [domain if place % count == count // 2 else "" for place, (domain, _) in enumerate(picked)]
    picture = board(tiles, top, ["image", "perturbation", "generated"])
    caption = (
        f"Training images of the sources, what the generator of {held.run} adds to them after the last round, and what "
        f"comes out. Images lie between -1 and 1; perturbations are shown {1 / most:.1f} times as large, so that the "
        "largest number of all is white or black and grey is nothing; generated images are cut off at -1 and 1. Under "
        "images, what the last round's model answers; under perturbations, their Euclidean length."
    )
    title = f"Generated images, {held.run.config.method}, {held.run.config.target} unseen"
    return Figure(held.name("generated"), title, caption, picture, data)


def spread(labels: Tensor, count: int) -> list[int]:
    """The first image of as many classes."""
    return [int((labels == place).nonzero()[0]) for place in labels[evenly(labels, count)].tolist()]


@torch.no_grad()
def generate(held: Held, x: Tensor) -> Made:
    """What a run's generator makes of images, as its method has it."""
    images = pixels(x.to(held.device))
    generated = maker(held.run.config.method)(held.nets["generator"].eval(), images)
    return Made(images.cpu(), generated.cpu(), (generated - images).cpu())


def maker(method: str) -> Generate:
    """Return how a method makes an image with its generator."""
    part = spec.parse(method)[0]
    factory = registry.find("methods", part.name)
    defaults = {name: option.default for name, option in registry.options(factory).items()}
    return MAKERS[part.name]({**defaults, **registry.presets(factory)[part.preset], **part.options})


def said(held: Held, chances: Tensor) -> str:
    """The answer, and its probability."""
    return f"{held.classes[int(chances.argmax())]} {float(chances.max()):.0%}"
