"""HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images.

Jiang, Wang, Dou; AAAI 2022; https://arxiv.org/abs/2112.10775

Every image gets the mean amplitudes of all sites' images and keeps its own phases, at the sites and in the unseen
domain: the mean is a buffer of the model. Each step uses the gradient at the point rho uphill, so that minima are flat.
"""

from collections.abc import Set
from typing import Annotated

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from .. import tree
from .._method import Method, Sent, Share, parameters
from ..classifier import Classifier, Networks, Task, eval_batch_size, for_images
from ..client import training
from ..data.augment.spectrum import amplitudes, blend, size
from ..images import pixels
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd, sharp
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}, "official": {"window": 0.0}}


def harmofl(
    window: Annotated[Share, "share of frequencies that are replaced, L; 0: the mean of each channel"] = 1.0,
    rho: Annotated[NonNegativeFloat, "radius of the weight perturbation, rho"] = 0.05,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train by SAM on images with the mean amplitudes of all sites."""

    def networks(task: Task) -> Networks:
        return {"model": Harmonised(task.network(task), task.shape, window)}

    def mean_amplitude(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:  # exact, not a moving average
        total = sum(
            amplitudes(pixels(x.to(site.device)), window).double().sum(0)
            for x in site.data["train"][0].split(eval_batch_size(site.device))
        )
        assert isinstance(total, Tensor)
        return {"amplitude": {"mean": (total / site.size).float()}}, private

    sent = Sent("data-derived", lambda nets, body: {"mean": nets["model"]["buffers"]["amplitude"]})
    return Method(
        client=training(cross_entropy(), optimizer=sharp(optimizer, rho)).also(amplitude=mean_amplitude),
        server=Server(lambda nets: nets, round),
        weighting=uniform,
        sends={"train": {"model": parameters("model")}, "amplitude": {"amplitude": sent}},
        networks=for_images("harmofl", networks),
        amplitudes=window < 1,
        linear_aggregation=True,
    )


def round(state: Tree, now: Round) -> Conversation:
    """Collect the sites' mean amplitudes in the first round; then train with their mean, which never changes."""
    model = state["model"]
    if now.number == 0:
        replies = yield Request("amplitude", {}, now.clients)
        shared = tree.mean([reply.body["amplitude"]["mean"] for reply in replies], [1.0] * len(replies))
        model = with_amplitude(model, shared)
    replies = yield Request("train", {"model": model}, now.clients)
    return {"model": with_amplitude(mean(replies, "model"), model["buffers"]["amplitude"])}


def with_amplitude(model: Tree, amplitude: Tensor) -> Tree:
    """Return the model with these amplitudes in its buffer."""
    return model | {"buffers": model["buffers"] | {"amplitude": amplitude}}


class Harmonised(Classifier):
    """A classifier that replaces the amplitudes of every image with those in its buffer."""

    amplitude: Tensor

    def __init__(self, net: nn.Module, shape: tuple[int, ...], window: float) -> None:
        nn.Module.__init__(self)
        self._parameters, self._buffers, self._modules = net._parameters, net._buffers, net._modules  # the same names
        self.__dict__["inside"] = net, window  # not as a part, and whatever names the parts have
        self.register_buffer("amplitude", torch.zeros(size(shape, window)))

    @property
    def net(self) -> Classifier:
        """The network inside; if it is no `Classifier`, only its logits are used."""
        return self.__dict__["inside"][0]  # type: ignore[no-any-return]

    @property
    def provides(self) -> Set[str]:
        """What the network inside gives."""
        return getattr(self.net, "provides", frozenset())

    @property
    def stages(self) -> tuple[str, ...]:  # type: ignore[override]
        """The stages of the network inside."""
        return self.net.stages

    @property
    def attentive(self) -> bool:  # type: ignore[override]
        """Whether the head of the network inside acts on its maps linearly."""
        return self.net.attentive

    def normalised(self, x: Tensor) -> Tensor:
        """Replace the images' amplitudes with those of the buffer; as in the authors' code, nothing is clipped."""
        return blend(x, self.amplitude, self.__dict__["inside"][1])

    def train(self, mode: bool = True) -> "Harmonised":
        self.net.training = mode
        return super().train(mode)

    def maps(self, x: Tensor) -> Tensor:
        return self.net.maps(self.normalised(x))

    def pooled(self, maps: Tensor) -> Tensor:
        return self.net.pooled(maps)

    def features(self, x: Tensor) -> Tensor:
        return self.net.features(self.normalised(x))

    def maps_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net.maps_and_logits(self.normalised(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.normalised(x))  # type: ignore[no-any-return]
