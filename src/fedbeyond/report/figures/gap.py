"""How far the styles of domains are apart: distances of their mean Gram matrices (Gatys and others, CVPR 2016)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..._progress import track
from ...classifier import Classifier, at_stages
from ...images import Images, pixels
from ..figure import Figure, panels
from .board import DARK, LIGHT
from .runs import Held, evenly

IMAGES, BATCH, DEPTH = 400, 64, 2  # of a domain; at a time; stages


def draw(runs: Sequence[Held]) -> Figure:
    """A heat map with numbers: each pair of domains, and on the diagonal the two halves of one."""
    (held,) = runs
    names = list(held.domains)
    halves: list[list[list[Tensor]]] = []
    for images, labels in track(list(held.domains.values()), "gap"):
        rows = evenly(labels, IMAGES)
        halves.append([grams(held.net, images, part) for part in (rows[::2], rows[1::2])])
    whole = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in halves]
    found = np.array([[apart(one, other) for other in whole] for one in whole])
    for place, pair in enumerate(halves):
        found[place, place] = apart(*pair)
    marked = [f"{name} (unseen)" if name in held.unseen else name for name in names]
    picture, (axis,) = panels(1, width=1.7 + 0.72 * len(names), height=0.9 + 0.62 * len(names))
    axis.imshow(found, cmap="viridis", vmin=0, aspect="auto")
    for y, row in enumerate(found):
        for x, value in enumerate(row):
            ink = LIGHT if value < 0.6 * found.max() else DARK
            axis.text(x, y, f"{value:.2f}", ha="center", va="center", color=ink, style="italic" if x == y else "normal")
    axis.set_xticks(range(len(names)), marked, rotation=30, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(names)), marked)
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    caption = (
        f"Distances between the styles of domains, as the model of {held.run} (round chosen by source validation) sees "
        f"them: of mean Gram matrices of its first {DEPTH} stages, relative to their size (0 to 2), of up to {IMAGES} "
        "images of each; on the diagonal, in italics, of one half of a domain's images to the other, which is what "
        "chance alone makes."
    )
    data = [["domain", *names], *([name, *(f"{v:.6g}" for v in row)] for name, row in zip(names, found, strict=True))]
    return Figure(
        held.name("gap"), f"How far domains are apart, {held.run.config.target} unseen", caption, picture, data
    )


@torch.no_grad()
def grams(net: Classifier, images: Images, rows: Tensor) -> list[Tensor]:
    """The mean Gram matrix of images at each of a network's early stages: F F' / (C H W) of maps F, C x H W."""
    device, seen = next(net.parameters()).device, list[Tensor]()
    total: list[Tensor] = []
    hooks = at_stages(net, "gap", lambda maps: seen.append(maps.flatten(2)), DEPTH)
    try:
        for some in rows.split(BATCH):
            seen.clear()
            net.eval()(pixels(images[some].to(device)))
            sums = [torch.einsum("ncp,ndp->cd", maps, maps).cpu().double() / maps[0].numel() for maps in seen]
            total = [a + b for a, b in zip(total, sums, strict=True)] if total else sums
    finally:
        for hook in hooks:
            hook.remove()
    return [each / len(rows) for each in total]


def apart(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The Frobenius distance of two stages' Gram matrices over the mean of their norms; the mean over stages."""
    sizes = [(a.norm() + b.norm()) / 2 for a, b in zip(one, other, strict=True)]
    pairs = zip(one, other, sizes, strict=True)
    return float(np.mean([float((a - b).norm() / size) if size else 0.0 for a, b, size in pairs]))
