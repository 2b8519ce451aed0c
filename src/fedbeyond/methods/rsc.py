"""Self-Challenging Improves Cross-Domain Generalization.

Huang, Wang, Xing, Huang; ECCV 2020; https://arxiv.org/abs/2007.02454

Representation self-challenging (RSC): the positions or the channels of the last feature maps that contribute most to
the true class are set to zero, for the images of a batch whose prediction suffers most. So the network must use others.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from .._method import BelowOne, Method, Share
from ..batch import Batch
from ..classifier import classifier, for_images
from ..client import Local, Term, training
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean
from ..tree import Tree

PRESETS = {
    "paper": {"channels": 1 / 3},
    "official": {"samples": 0.3, "grow": 0.4},
}

Where = Literal["maps", "features"]


def rsc(
    places: Annotated[BelowOne, "share of positions that are masked"] = 1 / 3,
    channels: Annotated[BelowOne, "share of channels that are masked"] = 1 / 3.2,
    samples: Annotated[Share, "share of a batch's images that keep their mask"] = 1 / 3,
    grow: Annotated[Share, "added to samples over the run, linearly"] = 0.0,
    coin: Annotated[Share, "probability that positions are masked, not channels"] = 0.5,
    where: Annotated[Where, "what is masked: the last maps, or the input of the head"] = "maps",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average models that learn without the features they rely on most."""

    def round(state: Tree, now: Round) -> Conversation:
        share = torch.tensor(min(1.0, samples + (grow * now.number / now.total if grow else 0)))
        replies = yield Request("train", state | {"samples": share}, now.clients)
        return {"model": mean(replies, "model")}

    return Method(
        client=training(challenged(places, channels, coin, where), optimizer=optimizer),
        server=Server(lambda nets: nets, round),
        uses_total={f"rsc(grow={grow:g})"} if grow else set(),
        linear_aggregation=True,
        networks=for_images("rsc", classifier) if where == "maps" else classifier,
        needs={"pooled"} if where == "maps" else {"features"},
        inputs_unchanged=True,
    )


def challenged(places: float, channels: float, coin: float, where: Where) -> Term:
    """Return a loss: cross-entropy without the features that contribute most to the true class."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        net, rng = local.net, local.site.rng
        maps = net.maps(x) if where == "maps" else net.features(x)[:, :, None, None]

        def logits_of(maps: Tensor) -> Tensor:
            return net.head(net.pooled(maps) if where == "maps" else maps.flatten(1))  # type: ignore[no-any-return]

        spatial = float(torch.rand((), generator=rng)) < coin and maps[0, 0].numel() > 1
        net.eval()  # without dropout: the mask depends on the features alone
        fixed = maps.detach().requires_grad_()
        logits = logits_of(fixed)
        (slope,) = torch.autograd.grad(logits.gather(1, y[:, None]).sum(), fixed)
        with torch.no_grad():
            mask = place_mask(fixed, slope, places) if spatial else channel_mask(slope, channels)
            drop = (logits.softmax(1) - logits_of(fixed * mask).softmax(1)).gather(1, y[:, None])
            unmasked = largest(drop.T, float(local.received["samples"]))[0] > 0
            mask[unmasked] = 1.0
        net.train()
        return F.cross_entropy(logits_of(maps * mask), y)

    return term


def place_mask(maps: Tensor, slope: Tensor, share: float) -> Tensor:
    """Return a mask: 0 at the positions where the sum of features, weighted by their map's mean slope, is largest."""
    weighted = torch.einsum("nc,nchw->nhw", slope.mean((2, 3)), maps)
    return largest(weighted.flatten(1), share).view_as(weighted)[:, None]


def channel_mask(slope: Tensor, share: float) -> Tensor:
    """Return a mask: 0 for the maps with the largest mean slope."""
    return largest(slope.mean((2, 3)), share)[:, :, None, None]


def largest(values: Tensor, share: float) -> Tensor:
    """Return 0 at the largest values of each row (a `share` of them, at least one), and 1 elsewhere."""
    count = max(1, int(share * values.shape[1] + 1e-6)) if share else 0
    return torch.ones_like(values).scatter_(1, values.topk(count).indices, 0.0)
