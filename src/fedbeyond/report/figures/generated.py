"""Images made by generators: the image, the perturbation added to it, and the generated image."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import spec
from ...classifier import logits
from ...experiment.config import Config
from ...images import pixels
from ...methods.ats import painted
from ...methods.ndag import Generate, perturbing
from ..figure import Figure
from ..sensitivity import with_defaults
from .board import Tile, as_bytes, board, displayed
from .runs import OpenRun, balanced_rows

MAX_EACH, MAX_TOTAL = 3, 12  # images of a domain, and of all


def _ndag(options: Mapping[str, Any]) -> Generate:
    return perturbing(float(options["alpha"]), options["space"], options["clamp"])


MAKERS: dict[str, Callable[[Mapping[str, Any]], Generate]] = {
    "feddag": _ndag,
    "ndag": _ndag,
    "ddaig": lambda options: perturbing(float(options["strength"]), "input"),
    "ats": lambda options: painted,
}


def fits(config: Config) -> bool:
    """Return whether a method generates images."""
    return spec.parse(config.method)[0].name in MAKERS


def draw(runs: Sequence[OpenRun]) -> Figure:
    """Draw three rows: images of the sources, perturbations, generated images."""
    (opened,) = runs
    opened.load_last_round()
    count = max(1, min(MAX_EACH, MAX_TOTAL // len(opened.train)))
    picked = [(domain, row) for domain, (_, y) in opened.train.items() for row in first_of_classes(y, count)]
    x = torch.cat([opened.train[domain][0][torch.tensor([row])] for domain, row in picked])
    truth = [int(opened.train[domain][1][row]) for domain, row in picked]
    images, generated = generate(opened, x)
    before, after = (logits(opened.net, each).softmax(1) for each in (images, generated))
    largest = float((generated - images).abs().max()) or 1.0
    head = ["domain", "image", "class", "predicted", "confidence", "predicted generated", "confidence generated"]
    data = [[*head, "norm of perturbation", "maximum of perturbation"]]
    tiles: list[list[Tile]] = [[], [], []]
    for index, (domain, row) in enumerate(picked):
        added = generated[index] - images[index]
        tiles[1].append(Tile(as_bytes(displayed(added / largest)), f"length {float(added.norm()):.1f}"))
        cells = [opened.classes[truth[index]]]
        for line, x, probabilities in ((tiles[0], images, before[index]), (tiles[2], generated, after[index])):
            confidence, label = probabilities.max(0)
            line.append(Tile(as_bytes(displayed(x[index])), f"{opened.classes[label]} {float(confidence):.0%}"))
            cells += [opened.classes[label], f"{float(confidence):.6g}"]
        norms = [f"{float(added.norm()):.6g}", f"{float(added.abs().max()):.6g}"]
        data.append([domain, opened.file(domain, row), *cells, *norms])
    top = [domain if index % count == count // 2 else "" for index, (domain, _) in enumerate(picked)]
    picture = board(tiles, top, ["image", "perturbation", "generated"])
    caption = (
        f"Training images of the sources, the perturbations by the generator of {opened.run} after the last round, and "
        f"the generated images. Images lie between -1 and 1; perturbations are scaled by {1 / largest:.1f} so that the "
        "largest value is white or black and zero is grey; generated images are clipped to -1 and 1. Under images: the "
        "prediction of the last round's model; under perturbations: their Euclidean length."
    )
    title = f"Generated images, {opened.run.config.method}, {opened.run.config.target} unseen"
    return Figure(opened.name("generated"), title, caption, picture, data)


def first_of_classes(labels: Tensor, count: int) -> list[int]:
    """Return the row of the first image of each of `count` classes."""
    return [int((labels == label).nonzero()[0]) for label in labels[balanced_rows(labels, count)].tolist()]


@torch.no_grad()
def generate(opened: OpenRun, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return images between -1 and 1, and those that a run's generator makes of them, which may exceed this range."""
    images = pixels(x.to(opened.device))
    return images.cpu(), maker(opened.run.config.method)(opened.nets["generator"].eval(), images).cpu()


def maker(method: str) -> Generate:
    """Return the function that makes a method's images with its generator."""
    part = spec.parse(method)[0]
    return MAKERS[part.name](with_defaults(str(part)).options)
