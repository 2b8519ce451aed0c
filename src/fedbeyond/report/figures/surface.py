"""Loss and accuracy on the plane through three models (Garipov and others, NeurIPS 2018, section 3)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..._progress import track
from ...classifier import measure, norms
from ...errors import ConfigError
from ...images import Split, pixels
from ..figure import PALETTE, Figure, panels
from .board import LIGHT
from .runs import Held, alike, bare, labels, sample, together

STEPS = 15  # points of the grid along each axis
IMAGES, SETTLING, BATCH = 384, 256, 128  # to measure on; to recompute statistics on, so many at a time
MARGIN = 0.6  # of the longest side, around the models


Place = tuple[float, float]


class Plane(NamedTuple):
    """Two orthonormal directions from a first model, and where the three models are."""

    origin: Tensor
    along: Tensor
    across: Tensor
    places: tuple[Place, ...]

    def at(self, x: float, y: float) -> Tensor:
        """The parameters at a place."""
        return self.origin + x * self.along + y * self.across


def draw(runs: Sequence[Held]) -> Figure:
    """Four panels: loss and accuracy, on the unseen domain and on the sources' validation images."""
    comparable(runs)
    first, names, config = runs[0], labels([held.run for held in runs]), runs[0].run.config
    unseen = " + ".join(first.unseen)
    splits = {unseen: sample(first.unseen.values(), IMAGES), "sources": sample(first.val.values(), IMAGES)}
    moving = any(norms(first.net)) and config.train.batchnorm != "frozen"
    images = sample(first.train.values(), SETTLING)[0] if moving else torch.empty(0)
    own = [measured(held.net, splits) for held in runs]
    plane = through([flat(held.net) for held in runs])
    x, y = grid(plane)
    points = [*plane.places, *((across, up) for up in y for across in x)]
    found = explore(first.net, plane, points, splits, images.chunk(SETTLING // BATCH) if moving else ())
    heights = np.array(found[3:]).reshape(STEPS, STEPS, 2, 2)  # y, x, split, loss or accuracy
    picture, axes = panels(4, across=2, width=3.5, height=3.05, sharex=True, sharey=True)
    picture.set_layout_engine("constrained", w_pad=0.1)  # or the signs of numbers are cut off
    for place, axis in enumerate(axes):
        what, split = divmod(place, 2)
        title = f"{('loss', 'accuracy')[what]}, {'sources' if split else f'{unseen} (unseen)'}"
        contours(axis, (x, y), heights[:, :, split, what], np.array(found[:3])[:, split, what], what == 1, title)
        marks = mark(axis, plane.places)
    picture.legend(marks, names, loc="outside lower center", ncols=3)
    head = ["point", "statistics", "x", "y", *(f"{what} {split}" for split in splits for what in ("loss", "accuracy"))]
    kept = "recomputed" if moving else "own"
    called = [(name, "own") for name in names] + [(name, kept) for name in (*names, *["grid"] * (len(points) - 3))]
    numbers = zip(called, [*plane.places, *points], [*own, *found], strict=True)
    rows = [[*words, *(f"{number:.6g}" for number in (*place, *np.ravel(told)))] for words, place, told in numbers]
    about = f"recomputed at every point on {len(images)} training images" if moving else "as they are"
    caption = (
        f"The plane through the models of {together([held.run for held in runs])}; each of the round chosen by "
        f"source validation. Axes: Euclidean distance in parameters. {len(splits[unseen][1])} images of the unseen "
        f"domain, {len(splits['sources'][1])} validation images of the sources; BatchNorm's statistics {about}."
    )
    methods = "-".join(dict.fromkeys(bare(held.run.config.method) for held in runs))
    name, title = (
        f"surface-{methods}-{config.target}-seed-{config.seed}",
        f"Between three models, {config.target} unseen",
    )
    return Figure(name, title, caption, picture, [head, *rows])


def comparable(runs: Sequence[Held]) -> None:
    """Refuse models that one network cannot stand for."""
    alike([held.run for held in runs])
    shapes = [[(name, part.shape) for name, part in held.net.state_dict().items()] for held in runs]
    if any(type(held.net) is not type(runs[0].net) or own != shapes[0] for held, own in zip(runs, shapes, strict=True)):
        told = ", ".join(held.run.config.method for held in runs)
        raise ConfigError(f"the models of {told} are not of one network, as a plane needs; choose others with --method")


def flat(net: nn.Module) -> Tensor:
    """A network's parameters as one vector."""
    return torch.cat([param.detach().cpu().double().flatten() for param in net.parameters()])


def explore(
    net: nn.Module, plane: Plane, points: Sequence[Place], splits: Mapping[str, Split], settling: Sequence[Tensor]
) -> list[list[tuple[float, float]]]:
    """What a network measures at each point of a plane, with statistics of its own there."""
    found = []
    for point in track(points, "surface"):
        put(net, plane.at(*point))
        settle(net, settling)
        found.append(measured(net, splits))
    return found


def through(models: Sequence[Tensor]) -> Plane:
    """The plane through three models, the second on its first axis."""
    one, two, three = models
    u, v = two - one, three - one
    along = u / u.norm()
    across = v - (v @ along) * along
    if not (u.norm() > 0 and across.norm() > 1e-6 * v.norm()):
        raise ConfigError("the three models lie on one line, or are the same; choose others with --method")
    across /= across.norm()
    return Plane(one, along, across, ((0.0, 0.0), (float(u @ along), 0.0), (float(v @ along), float(v @ across))))


def grid(plane: Plane) -> tuple[np.ndarray, np.ndarray]:
    """A square around the models: the places along both axes."""
    corners = np.array(plane.places)
    low, high = corners.min(0), corners.max(0)
    half = (high - low).max() * (0.5 + MARGIN)
    x, y = (np.linspace(middle - half, middle + half, STEPS) for middle in (low + high) / 2)
    return x, y


@torch.no_grad()
def put(net: nn.Module, vector: Tensor) -> None:
    """Write a vector into a network's parameters."""
    params = list(net.parameters())
    for param, part in zip(params, vector.split([param.numel() for param in params]), strict=True):
        param.copy_(part.view_as(param))


@torch.no_grad()
def settle(net: nn.Module, batches: Sequence[Tensor]) -> None:
    """Make BatchNorm's running statistics those of these images, the mean over batches; all else is as in testing."""
    if batches:
        net.eval()
        for _, layer in norms(net):
            layer.reset_running_stats()
            layer.momentum = None  # the plain mean of all batches
            layer.train()
        for x in batches:
            net(pixels(x.to(next(net.parameters()).device)))


def measured(net: nn.Module, splits: Mapping[str, Split]) -> list[tuple[float, float]]:
    """Loss and accuracy on each split."""
    numbers = [measure(net, split) for split in splits.values()]
    return [(float(one["loss"]), float(one["accuracy"])) for one in numbers]


def contours(
    axis: Any, axes: tuple[np.ndarray, np.ndarray], heights: np.ndarray, own: np.ndarray, shares: bool, title: str
) -> None:
    """One panel; losses are told apart up to four times that of the worst of the models."""
    low, high = float(min(heights.min(), own.min())), float(max(heights.max(), own.max()))
    if shares:
        levels = np.linspace(low, max(high, low + 0.01), 11)
    else:
        low = max(low, 1e-4)
        levels = np.geomspace(low, max(min(high, 4 * float(own.max())), 1.01 * low), 11)
    filled = axis.contourf(*axes, heights, levels, cmap="viridis" if shares else "viridis_r", extend="both")
    axis.contour(*axes, heights, levels[::2], colors=LIGHT, linewidths=0.5, alpha=0.5)
    bar = axis.figure.colorbar(filled, ax=axis, ticks=levels[::2], extendfrac=0.03)
    bar.ax.set_yticklabels([f"{100 * level:.0f} %" if shares else f"{level:.3g}" for level in levels[::2]])
    bar.ax.tick_params(length=0)
    bar.outline.set_visible(False)
    axis.set(title=title, aspect="equal")
    axis.locator_params(nbins=5)
    axis.grid(False)


def mark(axis: Any, places: Sequence[Place]) -> list[Any]:
    """Where the models are."""
    look = {"linestyle": "none", "markeredgecolor": LIGHT, "markersize": 8, "markeredgewidth": 1.2}
    shapes = zip(places, "os^", (PALETTE[1], PALETTE[3], PALETTE[0]), strict=True)
    return [axis.plot(*place, marker=shape, color=colour, **look)[0] for place, shape, colour in shapes]
