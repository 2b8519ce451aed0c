"""Federated Domain Generalization for Image Recognition via Cross-Client Style Transfer.

Chen, Jiang, Dou, Chen; WACV 2023; https://arxiv.org/abs/2210.00912

Each site sends its style (mean and standard deviation of each channel of early feature maps) to a bank that all sites
receive. While a site trains, a share of its images is given the style of another site at that stage (AdaIN).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from .._method import Method, Sent, Share, parameters
from ..batch import Batch
from ..classifier import Networks, Task, at_stages, batchnorm_layers, for_images, statistics_kept, write
from ..client import Local, Term, training
from ..errors import ConfigError
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, request_once, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {"paper": {"share": 0.75}}

SPATIAL = (2, 3)  # the axes of height and width in a feature map
TINY = 1e-5


def ccst(
    style: Annotated[Literal["overall", "single"], "one style for each site, or for each image"] = "overall",
    share: Annotated[Share, "probability that an image gets the style of another site"] = 0.5,
    stage: Annotated[int, Field(ge=1, le=3), "stage whose maps are restyled, 1 (shallow) to 3 (deep)"] = 1,
    images: Annotated[PositiveInt, "images whose styles a site sends, if style is single"] = 64,
    every: Annotated[PositiveInt | None, "rounds after which styles are measured again; none: never"] = None,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train with the styles of other sites in the early feature maps of a share of the images."""
    count = images if style == "single" else 1

    def networks(task: Task) -> Networks:
        model, outputs = task.network(task), list[Tensor]()
        with torch.no_grad(), stage_hook(model.eval(), stage, outputs.append):
            model(torch.zeros(1, *task.shape))
        return {"model": model.train(), "style": Style(count, outputs[0].shape[1])}

    def measure_style(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        """Send the style of the site's training images, measured with the received model."""
        net, moments = write(site.nets["model"], received["model"]).eval(), list[tuple[Tensor, Tensor]]()
        for _, layer in batchnorm_layers(net):
            layer.train()  # batch statistics, as where styles are applied; all other layers in evaluation mode
        with torch.no_grad(), statistics_kept(net), stage_hook(net, stage, lambda x: moments.append(statistics(x))):
            for batch in site.batches(1):
                net(batch.x)
        means, variances = (torch.cat(values) for values in zip(*moments, strict=True))
        if style == "single":
            means, variances = (values.repeat(-(-count // len(values)), 1)[:count] for values in (means, variances))
        else:  # over all positions of all images
            variances = variances.mean(0, keepdim=True) + means.var(0, correction=0, keepdim=True)
            means = means.mean(0, keepdim=True)
        return {"style": {"mean": means, "spread": variances.sqrt()}}, private

    def round(state: Tree, now: Round) -> Conversation:
        due = now.clients if every and now.number % every == 0 else ()
        known = {name: sent for name, sent in state["bank"].items() if name not in due}
        bank = yield from request_once("styles", known, now, {"model": state["model"]})
        replies = yield Request("train", {"model": state["model"], "bank": bank}, now.clients)
        return {"model": mean(replies, "model"), "bank": bank}

    sent_style = Sent("data-derived", lambda nets, body: nets["style"]["buffers"])
    return Method(
        client=training(style_transfer(share, stage), optimizer=optimizer).also(styles=measure_style),
        server=Server(lambda nets: {"model": nets["model"], "bank": {}}, round),
        weighting=uniform,
        sends={"train": {"model": parameters("model")}, "styles": {"style": sent_style}},
        networks=for_images("ccst", networks),
        needs={"stages"},
        shared=("model", "style"),
        min_clients=2,
    )


class Style(nn.Module):
    """One site's entry in the bank: the channels' means and standard deviations, of `count` images or over all."""

    def __init__(self, count: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(count, channels))
        self.register_buffer("spread", torch.zeros(count, channels))


@contextmanager
def stage_hook(net: nn.Module, stage: int, act: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Call `act` on the output of one stage within the context; a returned tensor replaces that output."""
    *earlier, last = at_stages(net, "ccst", act, stage)
    for hook in earlier:
        hook.remove()
    with last:
        found = 1 + len(earlier)
        if found < stage:
            raise ConfigError(f"ccst: stage={stage}, but this network has {found} early stages; set a lower stage")
        yield


def statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of each image and channel."""
    return maps.mean(SPATIAL), maps.var(SPATIAL, correction=0)


def style_transfer(share: float, stage: int) -> Term:
    """Return cross-entropy as a loss term, with the styles of other sites in a share of the maps of one stage."""
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
            own_mean, variance = (values.detach()[:, :, None, None] for values in statistics(maps))
            styled = (maps - own_mean) / (variance + TINY).sqrt() * spread + mean
            return torch.where(chosen[:, None, None, None], styled, maps)

        if not others:  # no other site has sent its style yet
            return plain(local, batch)
        with stage_hook(local.net, stage, restyle):
            return plain(local, batch)

    return term
