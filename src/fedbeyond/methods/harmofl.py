"""HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images.

Jiang, Wang, Dou; AAAI 2022; https://arxiv.org/abs/2112.10775

Every image is given the mean amplitudes of all sites' images and keeps its own phases, at sites as in the unseen
domain: the mean belongs to the model. Each step goes by the gradient found rho uphill, so that minima are flat.
"""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from .. import tree
from ..classifier import Classifier, Networks, Task, at_once, for_images
from ..client import training
from ..data.augment.spectrum import amplitudes, blend, size
from ..images import pixels
from ..losses import cross_entropy
from ..method import Method, Sent, also
from ..optimizers import Optimizer, plain_sgd, sharp
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}, "official": {"window": 0.0}}


def harmofl(
    window: Annotated[float, Field(ge=0, le=1)] = 1.0,
    rho: Annotated[float, Field(ge=0)] = 0.05,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Images with the mean amplitudes of all sites, and steps by the gradient found a little uphill."""

    def networks(task: Task) -> Networks:
        return {"model": Harmonised(task.network(task), task.shape, window)}

    def tell(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:  # exact, not a moving average
        total = sum(
            amplitudes(pixels(x.to(site.device)), window).double().sum(0)
            for x in site.data["train"][0].split(at_once(site.device))
        )
        assert isinstance(total, Tensor)
        return {"amplitude": {"mean": (total / site.size).float()}}, private

    client = training(cross_entropy(), optimizer=sharp(optimizer, rho))
    method = Method(
        client=client._replace(handlers={**client.handlers, "amplitude": tell}),
        server=Server(lambda nets: nets, round),
        weighting=uniform,
        networks=for_images("harmofl", networks),
        amplitudes=window < 1,
        sums=True,
    )
    told = Sent("data-derived", lambda nets, body: {"mean": nets["model"]["buffers"]["amplitude"]})
    return replace(method, sends=also(method.sends, "amplitude", amplitude=told))


def round(state: Tree, now: Round) -> Conversation:
    model = state["model"]
    if now.number == 0:  # once in a run, then fixed
        replies = yield Request("amplitude", {}, now.clients)
        shared = tree.mean([reply.body["amplitude"]["mean"] for reply in replies], [1.0] * len(replies))
        model = given(model, shared)
    replies = yield Request("train", {"model": model}, now.clients)
    return {"model": given(mean(replies, "model"), model["buffers"]["amplitude"])}


def given(model: Tree, amplitude: Tensor) -> Tree:
    """The model with these amplitudes for all images."""
    return model | {"buffers": model["buffers"] | {"amplitude": amplitude}}


class Harmonised(Classifier):
    """A classifier that sees every image with the amplitudes it holds, in place of the image's own."""

    amplitude: Tensor

    def __init__(self, net: Classifier, shape: tuple[int, ...], window: float) -> None:
        nn.Module.__init__(self)
        for name, part in net.named_children():  # under the names they have in the network itself
            self.add_module(name, part)
        self.net, self.window = (net,), window
        self.attentive, self.stages = net.attentive, net.stages
        self.register_buffer("amplitude", torch.zeros(size(shape, window)))

    def normalised(self, x: Tensor) -> Tensor:
        """Replace the images' amplitudes with the shared ones; as in the authors' code, nothing is clipped."""
        return blend(x, self.amplitude, self.window)

    def maps(self, x: Tensor) -> Tensor:
        return self.net[0].maps(self.normalised(x))

    def pooled(self, maps: Tensor) -> Tensor:
        return self.net[0].pooled(maps)

    def features(self, x: Tensor) -> Tensor:
        return self.net[0].features(self.normalised(x))

    def look(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net[0].look(self.normalised(x))
