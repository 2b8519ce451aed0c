"""Federated Domain Generalization for Image Recognition via Cross-Client Style Transfer.

Chen, Jiang, Dou, Chen; WACV 2023; https://arxiv.org/abs/2210.00912

Sites put their style, the mean and spread of each channel of early feature maps, into a bank that all may see. A site
learns from its images as they are, and from a share of them whose maps are given another site's style (AdaIN).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..batch import Batch
from ..classifier import Networks, Task, at_stages, for_images, norms, resting, write
from ..client import Local, Term, training
from ..errors import ConfigError
from ..losses import cross_entropy
from ..method import Method, Sent, parameters
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, gather, mean, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {"paper": {"share": 0.75}}

PLACES = (2, 3)  # of a map
TINY = 1e-5


def ccst(
    style: Literal["overall", "single"] = "overall",
    share: Annotated[float, Field(ge=0, le=1)] = 0.5,
    stage: Annotated[int, Field(ge=1, le=3)] = 1,
    images: Annotated[int, Field(gt=0)] = 64,
    every: Annotated[int, Field(gt=0)] | None = None,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Early feature maps of a share of the images in the styles of other sites."""
    count = images if style == "single" else 1

    def networks(task: Task) -> Networks:
        model, seen = task.network(task), list[Tensor]()
        with torch.no_grad(), acting(model.eval(), stage, seen.append):
            model(torch.zeros(1, *task.shape))
        return {"model": model.train(), "style": Style(count, seen[0].shape[1])}

    def tell(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        net, seen = write(site.nets["model"], received["model"]).eval(), list[tuple[Tensor, Tensor]]()
        for _, layer in norms(net):
            layer.train()  # by the batch, as where styles are put in; all else as in evaluation
        with torch.no_grad(), resting(net), acting(net, stage, lambda maps: seen.append(statistics(maps))):
            for batch in site.batches(1):
                net(batch.x)
        means, variances = (torch.cat(some) for some in zip(*seen, strict=True))
        if style == "single":
            means, variances = (some.repeat(-(-count // len(some)), 1)[:count] for some in (means, variances))
        else:  # of all places of all images
            variances = variances.mean(0, keepdim=True) + means.var(0, correction=0, keepdim=True)
            means = means.mean(0, keepdim=True)
        return {"style": {"mean": means, "spread": variances.sqrt()}}, private

    def round(state: Tree, now: Round) -> Conversation:
        due = now.clients if every and now.number % every == 0 else ()
        known = {name: told for name, told in state["bank"].items() if name not in due}
        bank = yield from gather("styles", known, now, {"model": state["model"]})
        replies = yield Request("train", {"model": state["model"], "bank": bank}, now.clients)
        return {"model": mean(replies, "model"), "bank": bank}

    client = training(transferred(share, stage), optimizer=optimizer)
    told = Sent("data-derived", lambda nets, body: nets["style"]["buffers"])
    return Method(
        client=client._replace(handlers={**client.handlers, "styles": tell}),
        server=Server(lambda nets: {"model": nets["model"], "bank": {}}, round),
        weighting=uniform,
        sends={"train": {"model": parameters("model")}, "styles": {"style": told}},
        networks=for_images("ccst", networks),
        shared=("model", "style"),
        least=2,
    )


class Style(nn.Module):
    """What one site puts into the bank: of each channel the mean and spread, over all its images or of some."""

    def __init__(self, count: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(count, channels))
        self.register_buffer("spread", torch.zeros(count, channels))


@contextmanager
def acting(net: nn.Module, stage: int, act: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Call `act` on the maps of one stage for the time being; what it returns takes their place."""
    hooks = at_stages(net, "ccst", act, stage)
    for hook in hooks[:-1]:
        hook.remove()
    try:
        if len(hooks) < stage:
            raise ConfigError(f"ccst: stage={stage} does not fit: this network names {len(hooks)} early stages")
        yield
    finally:
        hooks[-1].remove()


def statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Of each image and channel the mean and the variance."""
    return maps.mean(PLACES), maps.var(PLACES, correction=0)


def transferred(share: float, stage: int) -> Term:
    """Cross-entropy, a share of the images being given styles of other sites at a stage of the network."""
    plain = cross_entropy()

    def term(local: Local, batch: Batch) -> Tensor:
        rng, bank = local.site.rng, local.received["bank"]
        others = [bank[name]["style"] for name in sorted(bank) if name != local.site.name]

        def restyle(maps: Tensor) -> Tensor:  # AdaIN
            site = torch.randint(len(others), (len(maps),), generator=rng)
            image = torch.randint(len(others[0]["mean"]), (len(maps),), generator=rng)
            chosen = (torch.rand(len(maps), generator=rng) < share).to(maps.device)
            mean, spread = (
                torch.stack([other[key] for other in others])[site, image][:, :, None, None]
                for key in ("mean", "spread")
            )
            own, variance = (some.detach()[:, :, None, None] for some in statistics(maps))
            styled = (maps - own) / (variance + TINY).sqrt() * spread + mean
            return torch.where(chosen[:, None, None, None], styled, maps)

        if not others:  # nobody else has been asked yet
            return plain(local, batch)
        with acting(local.net, stage, restyle):
            return plain(local, batch)

    return term
