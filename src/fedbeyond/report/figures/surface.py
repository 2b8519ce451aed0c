"""Loss and accuracy on the plane through three models (Garipov and others, NeurIPS 2018, section 3)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..._progress import track
from ...classifier import batchnorm_layers, measure
from ...errors import ConfigError
from ...images import Split, pixels
from ..figure import PALETTE, Figure, panels
from .board import LIGHT
from .runs import OpenRun, describe_runs, ensure_same_setting, labels, sample, without_options

STEPS = 15  # grid points along each axis
IMAGES, STATISTICS_IMAGES, BATCH = 384, 256, 128  # for scores; for BatchNorm statistics, and their batch size
MARGIN = 0.6  # around the models, as a share of the longest side

Point = tuple[float, float]


class Plane(NamedTuple):
    """A plane in parameter space: the first model, two orthonormal directions, and the coordinates of three models."""

    origin: Tensor
    along: Tensor
    across: Tensor
    places: tuple[Point, ...]

    def at(self, x: float, y: float) -> Tensor:
        """Return the parameters at a point."""
        return self.origin + x * self.along + y * self.across


def draw(runs: Sequence[OpenRun]) -> Figure:
    """Draw four panels: loss and accuracy, on the unseen domain and on the sources' validation images."""
    ensure_same_network(runs)
    first, names, config = runs[0], labels([each.run for each in runs]), runs[0].run.config
    unseen = " + ".join(first.unseen)
    splits = {unseen: sample(first.unseen.values(), IMAGES), "sources": sample(first.val.values(), IMAGES)}
    batches: Sequence[Tensor] = ()
    if any(batchnorm_layers(first.net)) and config.train.batchnorm != "frozen":
        batches = sample(first.train.values(), STATISTICS_IMAGES)[0].chunk(STATISTICS_IMAGES // BATCH)
    model_scores = [measure_splits(each.net, splits) for each in runs]
    plane = plane_through([flat(each.net) for each in runs])
    x, y = grid(plane)
    points = [*plane.places, *((column, row) for row in y for column in x)]
    scores = explore(first.net, plane, points, splits, batches)
    heights = np.array(scores[3:]).reshape(STEPS, STEPS, 2, 2)  # y, x, split, loss or accuracy
    picture, axes = panels(4, across=2, width=3.5, height=3.05, sharex=True, sharey=True)
    picture.set_layout_engine("constrained", w_pad=0.1)  # otherwise minus signs are cut off
    for index, axis in enumerate(axes):
        metric, split = divmod(index, 2)
        title = f"{('loss', 'accuracy')[metric]}, {'sources' if split else f'{unseen} (unseen)'}"
        contours(axis, (x, y), heights[:, :, split, metric], np.array(scores[:3])[:, split, metric], metric == 1, title)
        marks = mark_models(axis, plane.places)
    picture.legend(marks, names, loc="outside lower center", ncols=3)
    measured = [f"{metric} {split}" for split in splits for metric in ("loss", "accuracy")]
    statistics = "recomputed" if batches else "own"
    labelled = [(name, "own") for name in names] + [(name, statistics) for name in [*names, *["grid"] * STEPS**2]]
    entries = zip(labelled, [*plane.places, *points], [*model_scores, *scores], strict=True)
    rows = [[*label, *(f"{value:.6g}" for value in (*point, *np.ravel(each)))] for label, point, each in entries]
    about = f"recomputed at every point on {sum(map(len, batches))} training images" if batches else "unchanged"
    caption = (
        f"The plane through the models of {describe_runs([each.run for each in runs])}; each of the round chosen by "
        f"source validation. Axes: Euclidean distance in parameters. {len(splits[unseen][1])} images of the unseen "
        f"domain, {len(splits['sources'][1])} validation images of the sources; BatchNorm's statistics {about}."
    )
    methods = "-".join(dict.fromkeys(without_options(each.run.config.method) for each in runs))
    name = f"surface-{methods}-{config.target}-seed-{config.seed}"
    title = f"Loss surface through three models, {config.target} unseen"
    return Figure(name, title, caption, picture, [["point", "statistics", "x", "y", *measured], *rows])


def ensure_same_network(runs: Sequence[OpenRun]) -> None:
    """Raise ConfigError if the models are not of one network and setting."""
    ensure_same_setting([each.run for each in runs])
    shapes = [[(name, part.shape) for name, part in each.net.state_dict().items()] for each in runs]
    pairs = zip(runs, shapes, strict=True)
    if any(type(each.net) is not type(runs[0].net) or shape != shapes[0] for each, shape in pairs):
        methods = ", ".join(each.run.config.method for each in runs)
        raise ConfigError(
            f"surface needs models of one network; {methods} have different ones: choose others with --method"
        )


def flat(net: nn.Module) -> Tensor:
    """Return a network's parameters as one vector."""
    return torch.cat([param.detach().cpu().double().flatten() for param in net.parameters()])


def explore(
    net: nn.Module, plane: Plane, points: Sequence[Point], splits: Mapping[str, Split], batches: Sequence[Tensor]
) -> list[list[tuple[float, float]]]:
    """Measure a network at each point of a plane, with BatchNorm statistics recomputed on `batches`, if any."""
    scores = []
    for point in track(points, "surface"):
        write_parameters(net, plane.at(*point))
        recompute_statistics(net, batches)
        scores.append(measure_splits(net, splits))
    return scores


def plane_through(models: Sequence[Tensor]) -> Plane:
    """Return the plane through three models, with the second on its first axis."""
    first, second, third = models
    u, v = second - first, third - first
    along = u / u.norm()
    across = v - (v @ along) * along
    if not (u.norm() > 0 and across.norm() > 1e-6 * v.norm()):
        raise ConfigError("the three models lie on one line, or are equal; choose others with --method")
    across /= across.norm()
    return Plane(first, along, across, ((0.0, 0.0), (float(u @ along), 0.0), (float(v @ along), float(v @ across))))


def grid(plane: Plane) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates along both axes of a square grid around the models."""
    corners = np.array(plane.places)
    low, high = corners.min(0), corners.max(0)
    half = (high - low).max() * (0.5 + MARGIN)
    x, y = (np.linspace(middle - half, middle + half, STEPS) for middle in (low + high) / 2)
    return x, y


@torch.no_grad()
def write_parameters(net: nn.Module, vector: Tensor) -> None:
    """Write a vector into a network's parameters."""
    params = list(net.parameters())
    for param, part in zip(params, vector.split([param.numel() for param in params]), strict=True):
        param.copy_(part.view_as(param))


@torch.no_grad()
def recompute_statistics(net: nn.Module, batches: Sequence[Tensor]) -> None:
    """Set BatchNorm's running statistics to their mean over batches of images; other layers stay in eval mode."""
    if batches:
        net.eval()
        for _, layer in batchnorm_layers(net):
            layer.reset_running_stats()
            layer.momentum = None  # the plain mean of all batches
            layer.train()
        for x in batches:
            net(pixels(x.to(next(net.parameters()).device)))


def measure_splits(net: nn.Module, splits: Mapping[str, Split]) -> list[tuple[float, float]]:
    """Return loss and accuracy on each split."""
    scores = [measure(net, split) for split in splits.values()]
    return [(float(each["loss"]), float(each["accuracy"])) for each in scores]


def contours(
    axis: Any, axes: tuple[np.ndarray, np.ndarray], heights: np.ndarray, models: np.ndarray, shares: bool, title: str
) -> None:
    """Draw one panel; the levels of a loss end at four times the loss of the worst model."""
    low, high = float(min(heights.min(), models.min())), float(max(heights.max(), models.max()))
    if shares:
        levels = np.linspace(low, max(high, low + 0.01), 11)
    else:
        low = max(low, 1e-4)
        levels = np.geomspace(low, max(min(high, 4 * float(models.max())), 1.01 * low), 11)
    filled = axis.contourf(*axes, heights, levels, cmap="viridis" if shares else "viridis_r", extend="both")
    axis.contour(*axes, heights, levels[::2], colors=LIGHT, linewidths=0.5, alpha=0.5)
    bar = axis.figure.colorbar(filled, ax=axis, ticks=levels[::2], extendfrac=0.03)
    bar.ax.set_yticklabels([f"{100 * level:.0f} %" if shares else f"{level:.3g}" for level in levels[::2]])
    bar.ax.tick_params(length=0)
    bar.outline.set_visible(False)
    axis.set(title=title, aspect="equal")
    axis.locator_params(nbins=5)
    axis.grid(False)


def mark_models(axis: Any, places: Sequence[Point]) -> list[Any]:
    """Draw the markers of the models."""
    style = {"linestyle": "none", "markeredgecolor": LIGHT, "markersize": 8, "markeredgewidth": 1.2}
    shapes = zip(places, "os^", (PALETTE[1], PALETTE[3], PALETTE[0]), strict=True)
    return [axis.plot(*place, marker=shape, color=colour, **style)[0] for place, shape, colour in shapes]
