"""What a model sees in images: its features on a plane by t-SNE (van der Maaten and Hinton, JMLR 2008)."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...classifier import write
from ...methods.fedadg import draw as noise
from ...networks.adversary import Generator
from ..figure import PALETTE, Figure, panels
from .runs import Held, evenly, features

POINTS, CLASSES = 800, 8  # at most
REFERENCE = "reference"  # FedADG's generator, as a further domain


def draw(runs: Sequence[Held]) -> Figure:
    """Two panels of the same points: coloured by class, and by domain."""
    (held,) = runs
    points, classes, domains = gathered(held)
    places = projected(points)
    names = [held.classes[place] for place in sorted(set(classes))]
    homes = list(dict.fromkeys(domains))
    marked = {name: f"{name} (unseen)" if name in held.unseen else name for name in homes}
    called = [held.classes[place] for place in classes]
    picture, (left, right) = panels(2, width=3.9, height=3.9)
    shapes = {name: "*" if name == REFERENCE else "^" if name in held.unseen else "o" for name in homes}
    scatter(left, places, called, names, [shapes[home] for home in domains], "class")
    scatter(right, places, domains, homes, [shapes[home] for home in domains], "domain", marked)
    extra = ""
    if REFERENCE in homes:
        extra = f" Stars: {domains.count(REFERENCE)} reference features that the last round's generator makes of noise."
    most = "" if len(names) == len(held.classes) else f", of the {len(names)} classes with most images"
    rule = "last round" if extra else "round chosen by source validation"
    caption = (
        f"Features of {len(domains) - domains.count(REFERENCE):,} images{most} under the model of {held.run} ({rule}), "
        f"on a plane by t-SNE; distances between groups mean little. Triangles: the unseen domain.{extra}"
    )
    data = [["x", "y", "class", "domain"]]
    data += [[f"{x:.4f}", f"{y:.4f}", a, b] for (x, y), a, b in zip(places, called, domains, strict=True)]
    title = f"What the model sees, {held.run.config.method}, {held.run.config.target} unseen"
    return Figure(held.name("tsne"), title, caption, picture, data)


def gathered(held: Held) -> tuple[Tensor, list[int], list[str]]:
    """Features with their classes and domains, as many of each domain; and the reference, where there is one."""
    generator = held.nets.get("generator")
    made = isinstance(generator, Generator)
    if made:
        state = held.server()
        write(held.net, state["model"])
        write(held.nets["generator"], state["generator"])
    every = torch.cat([labels for _, labels in held.domains.values()])
    kept = torch.bincount(every, minlength=len(held.classes)).argsort(descending=True, stable=True)[:CLASSES]
    share = POINTS // (len(held.domains) + made)
    points, classes, domains = [], [], []
    for domain, (images, labels) in held.domains.items():
        among = torch.isin(labels, kept).nonzero()[:, 0]
        rows = among[evenly(labels[among], share)]
        points.append(features(held, images[rows]))
        classes += labels[rows].tolist()
        domains += [domain] * len(rows)
    if made:
        assert isinstance(generator, Generator)
        rng = torch.Generator().manual_seed(0)
        y = kept.sort().values.repeat(-(-share // len(kept)))[:share]
        drawn = noise("generator", len(y), held.net.head.in_features, rng)
        with torch.no_grad():
            points.append(generator.eval()(drawn.to(held.device), y.to(held.device)).cpu())
        classes += y.tolist()
        domains += [REFERENCE] * len(y)
    return torch.cat(points), classes, domains


def projected(points: Tensor) -> np.ndarray:
    """Points on a plane, the same every time: one thread, one seed, begun from the principal components."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        settled = TSNE(perplexity=min(30, (len(points) - 1) / 3), init="pca", random_state=0)
        found: np.ndarray = settled.fit_transform(points.double().numpy())
    return found


def scatter(
    axis: Any,
    places: np.ndarray,
    groups: Sequence[str],
    names: Sequence[str],
    shapes: Sequence[str],
    title: str,
    marked: dict[str, str] | None = None,
) -> None:
    """Points in the colour of their group, and a legend."""
    group, shape = np.array(groups), np.array(shapes)
    for name, colour in zip(names, cycle(PALETTE), strict=False):
        for form, size in (("o", 9), ("^", 15), ("*", 28)):
            mine = (group == name) & (shape == form)
            axis.scatter(*places[mine].T, s=size, color=colour, marker=form, linewidths=0, alpha=0.8)
    forms = ["o" if marked is None else shapes[list(groups).index(name)] for name in names]
    handles = [
        axis.scatter([], [], s=26, color=colour, marker=form, linewidths=0)
        for form, colour in zip(forms, cycle(PALETTE), strict=False)
    ]
    key = {"ncols": 4 if len(names) > 5 else 3, "columnspacing": 0.8, "handletextpad": 0.1, "fontsize": 8}
    axis.legend(
        handles, [(marked or {}).get(name, name) for name in names], loc="upper center", bbox_to_anchor=(0.5, 0), **key
    )
    axis.set(title=f"by {title}", xticks=[], yticks=[])
