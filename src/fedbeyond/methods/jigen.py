"""Domain Generalization by Solving Jigsaw Puzzles.

Carlucci, D'Innocente, Bucci, Caputo, Tommasi; CVPR 2019; https://arxiv.org/abs/1903.06864

Some images of a batch are cut into 3 x 3 tiles, which are put together in one of thirty wrong orders. A second head on
the same features predicts the order, which requires features of how an object's parts are arranged. The class is learnt
from intact images only. Both heads are shared by all sites.
"""

from functools import lru_cache
from itertools import chain, permutations
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional as F

from .._method import Method, Share, parameters
from ..batch import Batch
from ..classifier import Networks, Task, for_images
from ..client import Local, Term, training
from ..errors import ConfigError
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}, "official": {}}

SIDE = 3  # tiles along a side


def jigen(
    weight: Annotated[NonNegativeFloat, "weight of the loss of the tiles' order"] = 0.7,
    orders: Annotated[int, Field(gt=0, le=1000), "orders of the tiles besides the original one"] = 30,
    whole: Annotated[Share, "probability that an image is not cut into tiles"] = 0.9,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average models that also learn to predict the order in which an image's tiles were put together."""
    shared = ("model", "jigsaw")

    def networks(task: Task) -> Networks:
        if min(task.shape[1:]) < SIDE:
            size = " x ".join(map(str, task.shape[1:]))
            raise ConfigError(f"jigen cuts images into {SIDE} x {SIDE} tiles, these have {size} pixels; enlarge them")
        model = task.classifier()
        return {"model": model, "jigsaw": nn.Linear(model.head.in_features, 1 + orders)}

    return Method(
        client=training(puzzled(weight, orders, whole), optimizer=optimizer, along=("jigsaw",)),
        server=averaging,
        linear_aggregation=True,
        networks=for_images("jigen", networks),
        needs={"features"},
        shared=shared,
        sends={"train": {name: parameters(name) for name in shared}},
    )


def puzzled(weight: float, orders: int, whole: float) -> Term:
    """Return a loss: cross-entropy of the intact images' classes, plus `weight` times that of all images' orders."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        net, rng = local.net, local.site.rng
        drawn = torch.randint(1, 1 + orders, (len(y),), generator=rng)
        order = drawn.where(torch.rand(len(y), generator=rng) >= whole, 0).to(y.device)
        h = net.features(scramble(x, chosen(orders).to(y.device)[order]))
        intact = order == 0
        error = F.cross_entropy(net.head(h[intact]), y[intact]) if bool(intact.any()) else h.new_zeros(())
        return error + weight * F.cross_entropy(local.along["jigsaw"](h), order)

    return term


def scramble(x: Tensor, order: Tensor) -> Tensor:
    """Put the tiles of each image into its order; rows and columns outside the tiles do not move."""
    high, wide = (side // SIDE for side in x.shape[2:])
    inner = x[:, :, : SIDE * high, : SIDE * wide]
    tiles = inner.unflatten(3, (SIDE, wide)).unflatten(2, (SIDE, high)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    moved = tiles[torch.arange(len(x), device=x.device)[:, None], order].unflatten(1, (SIDE, SIDE))
    result = x.clone()
    result[:, :, : SIDE * high, : SIDE * wide] = moved.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    return result


@lru_cache
def chosen(orders: int) -> Tensor:
    """Return the original order and `orders` others, each chosen as far as possible from those before it.

    The distance is Hamming's: the number of tiles in another position. The smallest distance is maximised first, then
    the sum of distances.
    """
    count = SIDE * SIDE
    flat = np.fromiter(chain.from_iterable(permutations(range(count))), np.int8)
    candidates = np.ascontiguousarray(flat.reshape(-1, count).T)
    picked, smallest, total = [0], np.full(candidates.shape[1], count), np.zeros(candidates.shape[1], int)
    for _ in range(orders):
        distance = (candidates != candidates[:, picked[-1:]]).sum(0, dtype=np.int8)
        smallest, total = np.minimum(smallest, distance), total + distance
        picked.append(int((smallest * (count * orders + 1) + total).argmax()))
    return torch.from_numpy(candidates[:, picked].T.astype(np.int64))
