"""Features of images projected to a plane by t-SNE (van der Maaten and Hinton, JMLR 2008)."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...methods.fedadg import draw as noise
from ...networks.adversary import Generator
from ..figure import PALETTE, Figure, panels
from .runs import OpenRun, balanced_rows, features

MAX_POINTS, MAX_CLASSES = 800, 8
REFERENCE = "reference"  # features of FedADG's generator, shown as a domain


def draw(runs: Sequence[OpenRun]) -> Figure:
    """Draw two panels of the same points: coloured by class, and by domain."""
    (opened,) = runs
    opened.ensure("features", "tsne")
    points, classes, domains = gather_features(opened)
    places = project(points)
    names = [opened.classes[label] for label in sorted(set(classes))]
    class_names = [opened.classes[label] for label in classes]
    picture, (left, right) = panels(2, width=3.9, height=3.9)
    shapes = {name: "^" if name in opened.unseen else "o" for name in opened.domains} | {REFERENCE: "*"}
    markers = [shapes[domain] for domain in domains]
    scatter(left, places, class_names, markers, "class", {name: (name, "o") for name in names})
    legend = {name: (opened.label(name), shapes[name]) for name in dict.fromkeys(domains)}
    scatter(right, places, domains, markers, "domain", legend)
    made = domains.count(REFERENCE)
    extra = f" Stars: {made} reference features that the last round's generator makes from noise." if made else ""
    subset = "" if len(names) == len(opened.classes) else f", of the {len(names)} classes with the most images"
    rule = "last round" if made else "round chosen by source validation"
    caption = (
        f"Features of {len(domains) - made:,} images{subset} by the model of {opened.run} ({rule}), projected to a "
        f"plane by t-SNE; distances between groups mean little. Triangles: the unseen domain.{extra}"
    )
    data = [["x", "y", "class", "domain"]]
    data += [[f"{x:.4f}", f"{y:.4f}", a, b] for (x, y), a, b in zip(places, class_names, domains, strict=True)]
    title = f"Features by t-SNE, {opened.run.config.method}, {opened.run.config.target} unseen"
    return Figure(opened.name("tsne"), title, caption, picture, data)


def gather_features(opened: OpenRun) -> tuple[Tensor, list[int], list[str]]:
    """Return features with classes and domains, equally many of each domain, and of the reference if there is one."""
    generator = opened.nets.get("generator")
    has_reference = isinstance(generator, Generator)
    if has_reference:
        opened.load_last_round()
    every = torch.cat([labels for _, labels in opened.domains.values()])
    largest = torch.bincount(every, minlength=len(opened.classes)).argsort(descending=True, stable=True)[:MAX_CLASSES]
    share = MAX_POINTS // (len(opened.domains) + has_reference)
    points, classes, domains = [], [], []
    for domain, (images, labels) in opened.domains.items():
        candidates = torch.isin(labels, largest).nonzero()[:, 0]
        rows = candidates[balanced_rows(labels[candidates], share)]
        points.append(features(opened, images[rows]))
        classes += labels[rows].tolist()
        domains += [domain] * len(rows)
    if has_reference:
        assert isinstance(generator, Generator)
        rng = torch.Generator().manual_seed(0)
        y = largest.sort().values.repeat(-(-share // len(largest)))[:share]
        drawn = noise("generator", len(y), opened.net.head.in_features, rng)
        with torch.no_grad():
            points.append(generator.eval()(drawn.to(opened.device), y.to(opened.device)).cpu())
        classes += y.tolist()
        domains += [REFERENCE] * len(y)
    return torch.cat(points), classes, domains


def project(points: Tensor) -> np.ndarray:
    """Project points to a plane, reproducibly: one thread, one seed, initialised by principal components."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        tsne = TSNE(perplexity=min(30, (len(points) - 1) / 3), init="pca", random_state=0)
        places: np.ndarray = tsne.fit_transform(points.double().numpy())
    return places


def scatter(
    axis: Any,
    places: np.ndarray,
    groups: Sequence[str],
    shapes: Sequence[str],
    title: str,
    legend: Mapping[str, tuple[str, str]],
) -> None:
    """Draw points in the colour of their group; `legend` has the label and the marker of each group."""
    group, shape = np.array(groups), np.array(shapes)
    for name, colour in zip(legend, cycle(PALETTE), strict=False):
        for form, size in (("o", 9), ("^", 15), ("*", 28)):
            selected = (group == name) & (shape == form)
            axis.scatter(*places[selected].T, s=size, color=colour, marker=form, linewidths=0, alpha=0.8)
    handles = [
        axis.scatter([], [], s=26, color=colour, marker=form, linewidths=0)
        for (_, form), colour in zip(legend.values(), cycle(PALETTE), strict=False)
    ]
    style = {"ncols": 4 if len(legend) > 5 else 3, "columnspacing": 0.8, "handletextpad": 0.1, "fontsize": 8}
    names = [label for label, _ in legend.values()]
    axis.legend(handles, names, loc="upper center", bbox_to_anchor=(0.5, 0), **style)
    axis.set(title=f"by {title}", xticks=[], yticks=[])
