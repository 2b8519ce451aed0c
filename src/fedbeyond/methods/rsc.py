"""Self-Challenging Improves Cross-Domain Generalization.

Huang, Wang, Xing, Huang; ECCV 2020; https://arxiv.org/abs/2007.02454

Representation self-challenging (RSC): the places or the channels of the last feature maps that speak most for the
true class are set to zero, for those images of a batch that suffer most by it; so the network must find others.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ..batch import Batch
from ..classifier import Classifier, Networks, Task, classifier, for_images
from ..client import Local, Term, training
from ..errors import ConfigError
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean
from ..tree import Tree

PRESETS = {
    "paper": {"channels": 1 / 3},
    "official": {"samples": 0.3, "grow": 0.4},
}

Share = Annotated[float, Field(ge=0, lt=1)]
Where = Literal["maps", "features"]


def rsc(
    places: Share = 1 / 3,
    channels: Share = 1 / 3.2,
    samples: Annotated[float, Field(ge=0, le=1)] = 1 / 3,
    grow: Annotated[float, Field(ge=0, le=1)] = 0.0,
    coin: Annotated[float, Field(ge=0, le=1)] = 0.5,
    where: Where = "maps",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Averaging of models that learn without the features they would rely on most."""

    def round(state: Tree, now: Round) -> Conversation:
        share = torch.tensor(min(1.0, samples + grow * now.number / now.total))
        replies = yield Request("train", state | {"samples": share}, now.clients)
        return {"model": mean(replies, "model")}

    return Method(
        client=training(challenged(places, channels, coin, where), optimizer=optimizer),
        server=Server(lambda nets: nets, round),
        sums=True,
        networks=for_images("rsc", with_maps) if where == "maps" else classifier,
    )


def with_maps(task: Task) -> Networks:
    """A classifier that has maps which its head pools, or an error that says what to do."""
    net = task.network(task)
    if type(net).look is not Classifier.look:
        raise ConfigError(
            f"rsc masks the maps that a network pools for its head, and {type(net).__name__.lower()} pools none; "
            "take rsc(where=features)"
        )
    with torch.no_grad():
        net.eval().maps(torch.zeros(1, *task.shape))  # a network without maps says so itself
    return {"model": net.train()}


def challenged(places: float, channels: float, coin: float, where: Where) -> Term:
    """Cross-entropy without the features that speak most for the true class."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        net, rng = local.net, local.site.rng
        assert isinstance(net, Classifier)
        maps = net.maps(x) if where == "maps" else net.features(x)[:, :, None, None]

        def scores(seen: Tensor) -> Tensor:
            return net.head(net.pooled(seen) if where == "maps" else seen.flatten(1))  # type: ignore[no-any-return]

        spatial = float(torch.rand((), generator=rng)) < coin and maps[0, 0].numel() > 1
        net.eval()  # without dropout, as the mask depends on the features alone
        seen = maps.detach().requires_grad_()
        likely = scores(seen)
        (slope,) = torch.autograd.grad(likely.gather(1, y[:, None]).sum(), seen)
        with torch.no_grad():
            mask = place_mask(seen, slope, places) if spatial else channel_mask(slope, channels)
            drop = (likely.softmax(1) - scores(seen * mask).softmax(1)).gather(1, y[:, None])
            spared = largest(drop.T, float(local.received["samples"]))[0] > 0
            mask[spared] = 1.0
        net.train()
        return F.cross_entropy(scores(maps * mask), y)

    return term


def place_mask(maps: Tensor, slope: Tensor, share: float) -> Tensor:
    """Zero at the places whose features, each weighed by its map's mean slope, add up to most."""
    weighed = torch.einsum("nc,nchw->nhw", slope.mean((2, 3)), maps)
    return largest(weighed.flatten(1), share).view_as(weighed)[:, None]


def channel_mask(slope: Tensor, share: float) -> Tensor:
    """Zero for the maps of the largest mean slope."""
    return largest(slope.mean((2, 3)), share)[:, :, None, None]


def largest(values: Tensor, share: float) -> Tensor:
    """Zero where a row has its largest values, a `share` of them but one at least, and one elsewhere."""
    count = max(1, int(share * values.shape[1] + 1e-6)) if share else 0
    return torch.ones_like(values).scatter_(1, values.topk(count).indices, 0.0)
