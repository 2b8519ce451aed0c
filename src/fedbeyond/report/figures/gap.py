"""Style distances between domains: distances of their mean Gram matrices (Gatys and others, CVPR 2016)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..._progress import track
from ...classifier import Classifier, at_stages
from ...images import Images, pixels
from ..figure import Figure, panels
from .board import DARK, LIGHT
from .runs import OpenRun, balanced_rows

IMAGES, BATCH, DEPTH = 400, 64, 2  # images of a domain; batch size; stages


def draw(runs: Sequence[OpenRun]) -> Figure:
    """Draw a heat map with numbers: each pair of domains; on the diagonal, the two halves of a domain."""
    (opened,) = runs
    names = list(opened.domains)
    halves: list[list[list[Tensor]]] = []
    for images, labels in track(list(opened.domains.values()), "gap"):
        rows = balanced_rows(labels, IMAGES)
        halves.append([grams(opened.net, images, part) for part in (rows[::2], rows[1::2])])
    means = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in halves]
    distances = np.array([[gram_distance(a, b) for b in means] for a in means])
    for index, pair in enumerate(halves):
        distances[index, index] = gram_distance(*pair)
    marked = [opened.label(name) for name in names]
    picture, (axis,) = panels(1, width=1.7 + 0.72 * len(names), height=0.9 + 0.62 * len(names))
    axis.imshow(distances, cmap="viridis", vmin=0, aspect="auto")
    for y, row in enumerate(distances):
        for x, value in enumerate(row):
            ink = LIGHT if value < 0.6 * distances.max() else DARK
            axis.text(x, y, f"{value:.2f}", ha="center", va="center", color=ink, style="italic" if x == y else "normal")
    axis.set_xticks(range(len(names)), marked, rotation=30, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(names)), marked)
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    caption = (
        f"Style distances between domains in the features of {opened.run} (round chosen by source validation): those "
        f"of mean Gram matrices of its first {DEPTH} stages, relative to their size (0 to 2), of up to {IMAGES} images "
        "of each domain; on the diagonal, in italics, the distance of two halves of a domain's images, which is due to "
        "chance alone."
    )
    data = [["domain", *names]]
    data += [[name, *(f"{value:.6g}" for value in row)] for name, row in zip(names, distances, strict=True)]
    title = f"Style distances between domains, {opened.run.config.target} unseen"
    return Figure(opened.name("gap"), title, caption, picture, data)


@torch.no_grad()
def grams(net: Classifier, images: Images, rows: Tensor) -> list[Tensor]:
    """Return the mean Gram matrix of images at a network's first stages: F F' / (C H W) of maps F, C x H W."""
    device, stages = next(net.parameters()).device, list[Tensor]()
    total: list[Tensor] = []
    hooks = at_stages(net, "gap", lambda maps: stages.append(maps.flatten(2)), DEPTH)
    try:
        for batch in rows.split(BATCH):
            stages.clear()
            net.eval()(pixels(images[batch].to(device)))
            sums = [torch.einsum("ncp,ndp->cd", maps, maps).cpu().double() / maps[0].numel() for maps in stages]
            total = [a + b for a, b in zip(total, sums, strict=True)] if total else sums
    finally:
        for hook in hooks:
            hook.remove()
    return [each / len(rows) for each in total]


def gram_distance(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Return the Frobenius distance of Gram matrices over the mean of their norms, averaged over stages."""
    sizes = [(a.norm() + b.norm()) / 2 for a, b in zip(first, second, strict=True)]
    pairs = zip(first, second, sizes, strict=True)
    return float(np.mean([float((a - b).norm() / size) if size else 0.0 for a, b, size in pairs]))
