"""Class activation maps (Zhou and others, CVPR 2016) over images of the unseen domain."""

from collections.abc import Sequence

import torch
from matplotlib import colormaps
from torch import Tensor
from torch.nn import functional as F

from ...classifier import logits
from ...images import pixels
from ...methods.fedgca import activation, maps_and_logits
from ..figure import PALETTE, Figure
from .board import Tile, as_bytes, board, displayed
from .runs import OpenRun, describe_runs, ensure_same_setting, labels

MAX_ROWS = 8  # one image a row
RIGHT, WRONG = PALETTE[2], PALETTE[1]


def draw(runs: Sequence[OpenRun]) -> Figure:
    """Draw a row for an image of each class: the image, then each model's activation map for its predicted class."""
    closed, first = [each.run for each in runs], runs[0]
    ensure_same_setting(closed)
    domain = next(iter(first.unseen))
    images, labelled = first.unseen[domain]
    rows = first_of_classes(labelled, len(first.classes))
    x, truth = images[torch.tensor(rows)], labelled[rows]
    names = labels(closed)
    predictions = [activation_maps(each, x) for each in runs]
    base = [displayed(image) for image in pixels(x)]
    tiles, data = [], [["method", "domain", "image", "class", "predicted", "confidence"]]
    for index, row in enumerate(rows):
        line = [Tile(as_bytes(base[index]))]
        for name, (maps, probabilities) in zip(names, predictions, strict=True):
            confidence, label = probabilities[index].max(0)
            right = int(label) == int(truth[index])
            text = f"{first.classes[label]} {float(confidence):.0%} {'✓' if right else '✗'}"
            line.append(Tile(as_bytes(overlaid(base[index], maps[index])), text, RIGHT if right else WRONG))
            cells = [first.classes[truth[index]], first.classes[label], f"{float(confidence):.6g}"]
            data.append([name, domain, first.file(domain, row), *cells])
        tiles.append(line)
    picture = board(tiles, ["image", *names], [first.classes[label] for label in truth])
    caption = (
        f"The first image of each class of {domain}, which is unseen, and each model's class activation map for its "
        "predicted class, from its smallest (dark) to its largest value (bright); under it the prediction and its "
        f"probability. Runs: {describe_runs(closed)}; models of the round chosen by source "
        "validation."
    )
    name = f"cam-{first.run.config.target}-seed-{first.run.config.seed}"
    return Figure(name, f"Class activation maps, {domain} unseen", caption, picture, data)


def first_of_classes(labelled: Tensor, classes: int) -> list[int]:
    """Return the row of the first image of each class; of many classes, of evenly spaced ones."""
    present = [label for label in range(classes) if bool((labelled == label).any())]
    count = min(MAX_ROWS, len(present))
    return [int((labelled == present[i * len(present) // count]).nonzero()[0]) for i in range(count)]


def activation_maps(opened: OpenRun, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the activation maps of a model's predicted classes, and the probabilities of all classes."""
    opened.ensure("maps", "cam")
    outputs = logits(opened.net, x)
    inputs = pixels(x.to(opened.device))
    maps, raw = maps_and_logits(opened.net, inputs, trained=False)
    predicted = outputs.argmax(1).to(opened.device)
    return activation(opened.net, maps, raw, predicted).detach().cpu(), outputs.softmax(1)


def overlaid(base: Tensor, map: Tensor) -> Tensor:
    """Blend an image in grey with its map in colours."""
    span = float(map.max() - map.min())
    level = (map - map.min()) / span if span else torch.zeros_like(map)
    level = F.interpolate(level[None, None], base.shape[1:], mode="bilinear")[0, 0]
    heat = torch.from_numpy(colormaps["inferno"](level.numpy())[..., :3]).permute(2, 0, 1).float()
    return (0.45 * base.mean(0) + 0.55 * heat).clamp(0, 1)
