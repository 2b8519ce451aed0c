"""FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in Continuous Frequency Space.

Liu, Chen, Qin, Dou, Heng; CVPR 2021; https://arxiv.org/abs/2103.06030

Each site sends the amplitude spectra of some images to a bank that all sites receive. A site takes an inner step on its
images, then minimises the loss before that step plus the loss after it on the same images, whose low-frequency
amplitudes are blended with those of other sites.
"""  # noqa: E501 (the title is one line)

from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from .._method import Method, Sent, Share, parameters
from ..batch import Batch
from ..classifier import Networks, Task, call_with, for_images
from ..client import Local, Term, training
from ..data.augment.spectrum import amplitudes, blend, clipped, size
from ..images import pixels
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Request, Round, Server, mean, request_once
from ..site import Site
from ..tree import Tree

PRESETS = {
    "paper": {"window": 0.02, "order": "full"},
    "official": {"window": 0.0, "ratio": 1.0},
}


def elcfs(
    window: Annotated[Share, "share of the frequencies of each axis that are blended, L"] = 0.1,
    ratio: Annotated[Share | None, "share of the other site's amplitudes, lambda; none: drawn for each image"] = None,
    spectra: Annotated[PositiveInt, "images whose amplitudes each site sends"] = 32,
    views: Annotated[PositiveInt | None, "other sites in an episode; none: all"] = None,
    step: Annotated[NonNegativeFloat, "size of the inner step, beta"] = 1e-3,
    order: Annotated[Literal["first", "full"], "gradient through the inner step: first order, or full"] = "first",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train in episodes: an inner step on a site's images, evaluated on them with amplitudes of other sites."""

    def networks(task: Task) -> Networks:
        return {"model": task.network(task), "bank": Bank((spectra, *size(task.shape, window)))}

    def send_amplitudes(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        """Send the low-frequency amplitudes of `spectra` random training images."""
        chosen = torch.randperm(site.size, generator=site.rng).repeat(-(-spectra // site.size))[:spectra]
        x = pixels(site.data["train"][0][chosen].to(site.device))
        return {"amplitude": {"spectra": amplitudes(x, window)}}, private

    client = training(episode(window, ratio, views, step, order == "full"), optimizer=optimizer)
    sent_spectra = Sent("data-derived", lambda nets, body: {"spectra": nets["bank"]["buffers"]["spectra"]})
    return Method(
        client=client.also(amplitude=send_amplitudes),
        server=Server(lambda nets: {"model": nets["model"], "bank": {}}, round),
        sends={"train": {"model": parameters("model")}, "amplitude": {"amplitude": sent_spectra}},
        networks=for_images("elcfs", networks),
        shared=("model", "bank"),
        min_clients=2,
    )


class Bank(nn.Module):
    """One site's entry in the bank: the amplitude spectra of some images."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("spectra", torch.zeros(shape))


def round(state: Tree, now: Round) -> Conversation:
    """Collect amplitudes of new clients, train with the bank, and average the models."""
    bank = yield from request_once("amplitude", state["bank"], now)
    replies = yield Request("train", {"model": state["model"], "bank": bank}, now.clients)
    return {"model": mean(replies, "model"), "bank": bank}


def episode(window: float, ratio: float | None, views: int | None, step: float, full: bool) -> Term:
    """Return the loss term: loss on a batch, plus loss after an inner step on the batch in other sites' styles."""
    plain = cross_entropy()

    def term(local: Local, batch: Batch) -> Tensor:
        inner = plain(local, batch)
        rng, (x, y) = local.site.rng, batch.merged
        others = [local.received["bank"][name] for name in sorted(local.received["bank"]) if name != local.site.name]
        if not others:  # no other site has sent amplitudes yet
            return inner
        drawn = torch.randperm(len(others), generator=rng)[:views].tolist()
        restyled = []
        for index in drawn:  # the continuous frequency space
            spectra = others[index]["amplitude"]["spectra"]
            partners = spectra[torch.randint(len(spectra), (len(x),), generator=rng).to(x.device)]
            shares = torch.rand(len(x), 1, 1, 1, generator=rng) if ratio is None else torch.tensor(ratio)
            restyled.append(clipped(blend(x, partners, window, shares.to(x)), x))
        params = list(local.params.values())
        slopes = torch.autograd.grad(inner, params, retain_graph=True, create_graph=full, materialize_grads=True)
        stepped = {  # theta'
            name: param - step * slope for (name, param), slope in zip(local.params.items(), slopes, strict=True)
        }
        logits = call_with(local.net, stepped, torch.cat(restyled))
        return inner + F.cross_entropy(logits, y.repeat(len(restyled)))  # the boundary term is for segmentation only

    return term
