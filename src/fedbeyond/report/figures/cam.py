"""Where models look: class activation maps (Zhou and others, CVPR 2016) over images of the unseen domain."""

from collections.abc import Sequence

import torch
from matplotlib import colormaps
from torch import Tensor
from torch.nn import functional as F

from ...classifier import scores
from ...errors import ConfigError
from ...images import pixels
from ...methods.fedgca import activation, look
from ..figure import PALETTE, Figure
from .board import Tile, as_bytes, board, shown
from .runs import Held, alike, labels, together

ROWS = 8  # images at most
RIGHT, WRONG = PALETTE[2], PALETTE[1]


def draw(runs: Sequence[Held]) -> Figure:
    """A row an image, one of each class; the image, then what each model looks at for the class that it answers."""
    alike([held.run for held in runs])
    first = runs[0]
    domain = next(iter(first.unseen))
    images, labelled = first.unseen[domain]
    rows = chosen(labelled, len(first.classes))
    x, truth = images[torch.tensor(rows)], labelled[rows]
    names = labels([held.run for held in runs])
    seen = [looked(held, x) for held in runs]
    base = [shown(image) for image in pixels(x)]
    tiles, data = [], [["method", "domain", "image", "class", "predicted", "confidence"]]
    for place, row in enumerate(rows):
        line = [Tile(as_bytes(base[place]))]
        for name, (maps, chances) in zip(names, seen, strict=True):
            sure, answer = chances[place].max(0)
            right = int(answer) == int(truth[place])
            word = f"{first.classes[answer]} {float(sure):.0%} {'✓' if right else '✗'}"
            line.append(Tile(as_bytes(overlaid(base[place], maps[place])), word, RIGHT if right else WRONG))
            told = [first.classes[truth[place]], first.classes[answer], f"{float(sure):.6g}"]
            data.append([name, domain, first.file(domain, row), *told])
        tiles.append(line)
    picture = board(tiles, ["image", *names], [first.classes[label] for label in truth])
    caption = (
        f"The first image of each class of {domain}, which is unseen, and where models look for the class that they "
        "answer: class activation maps, each from its least (dark) to its greatest value (bright); under them the "
        f"answer and its probability. Runs: {together([held.run for held in runs])}; models of the round "
        "chosen by source validation."
    )
    name = f"cam-{first.run.config.target}-seed-{first.run.config.seed}"
    return Figure(name, f"Where models look, {domain} unseen", caption, picture, data)


def chosen(labelled: Tensor, classes: int) -> list[int]:
    """The first image of each class; of many classes, spread over them."""
    there = [place for place in range(classes) if bool((labelled == place).any())]
    picked = [there[i * len(there) // min(ROWS, len(there))] for i in range(min(ROWS, len(there)))]
    return [int((labelled == place).nonzero()[0]) for place in picked]


def looked(held: Held, x: Tensor) -> tuple[Tensor, Tensor]:
    """The activation maps of the classes that a model answers, and how probable it holds each class."""
    said = scores(held.net, x)
    inputs = pixels(x.to(held.device))
    try:
        maps, raw = look(held.net, inputs, trained=False)
    except ConfigError:
        raise ConfigError(
            f"cam needs feature maps, and {held.run.config.network} has none; convnet, ResNets, AlexNet, MobileNetV2, "
            "vision transformers and most networks of timm have them"
        ) from None
    return activation(held.net, maps, raw, said.argmax(1).to(held.device)).detach().cpu(), said.softmax(1)


def overlaid(base: Tensor, map: Tensor) -> Tensor:
    """An image in grey under its map in colours."""
    span = float(map.max() - map.min())
    level = (map - map.min()) / span if span else torch.zeros_like(map)
    level = F.interpolate(level[None, None], base.shape[1:], mode="bilinear")[0, 0]
    heat = torch.from_numpy(colormaps["inferno"](level.numpy())[..., :3]).permute(2, 0, 1).float()
    return (0.45 * base.mean(0) + 0.55 * heat).clamp(0, 1)
