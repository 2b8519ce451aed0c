"""Deep Domain-Adversarial Image Generation for Domain Generalisation.

Zhou, Yang, Hospedales, Xiang; AAAI 2020; https://arxiv.org/abs/2003.06054

A generator perturbs images so that the label classifier still predicts their class, but the domain classifier cannot
predict their domain. The label classifier learns from original and perturbed images. Domains are sites; the sites share
the domain classifier as well.
"""

from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from .._method import Method, Sent, Share, parameters
from ..classifier import Classifier, Networks, Task, for_images, read, write
from ..client import Client, descend, make_optimizer, no_state
from ..networks.fcn import Fcn
from ..optimizers import Optimizer, plain_sgd, reach
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {"paper": {"domains": "network", "warmup": 3}, "official": {"domains": "network", "warmup": 0}}

# a site moves the domain classifier's last layer by this many steps' worth a round, so that large sites do not dominate
TRAVEL = 10


def ddaig(
    strength: Annotated[NonNegativeFloat, "strength of the perturbation, lambda, for pixels in -1..1"] = 0.6,
    share: Annotated[Share, "share of the perturbed images in the loss, alpha"] = 0.5,
    width: Annotated[PositiveInt, "channels of the generator"] = 32,
    domains: Annotated[Literal["layer", "network"], "domain classifier: a layer on the model, or a network"] = "layer",
    warmup: Annotated[NonNegativeInt, "first rounds, in which the model learns from original images only"] = 2,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train on perturbed images as well, whose class can be predicted but not their site."""
    shared = ("model", "generator", *(["domains"] if domains == "network" else []))

    def networks(task: Task) -> Networks:
        nets: Networks = {"model": task.network(task), "generator": Fcn(task.shape[0], width)}
        return nets | ({"domains": task.network(task)} if domains == "network" else {})

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        nets = {name: write(site.nets[name], received[name]).train() for name in shared}
        net, generator = nets["model"], nets["generator"]
        domain_net = nets.get("domains", net)  # its features are the input of the domain classifier's last layer
        assert isinstance(net, Classifier) and isinstance(domain_net, Classifier)
        received_layer = received["sites"]
        last_layer = {name: leaf.clone().requires_grad_() for name, leaf in received_layer.items()}
        index, warm = int(received["places"][site.name]), bool(received["warm"])
        step_net = make_optimizer(optimizer, net.parameters(), site)
        step_generator = make_optimizer(optimizer, generator.parameters(), site)
        equalised = reach(step_net, TRAVEL) / reach(step_net, site.steps)  # momentum: later steps move further
        own, rate = (domain_net.body.parameters(), 1.0) if domain_net is not net else ((), equalised)
        step_domains = make_optimizer(optimizer, [*own, *last_layer.values()], site, rate)

        def domain_loss(h: Tensor, layer: Tree) -> Tensor:  # L_d
            return F.cross_entropy(F.linear(h, **layer), torch.full((len(h),), index, device=h.device))

        def generator_loss(x: Tensor, y: Tensor) -> Tensor:  # L_g
            novel = x + strength * generator(x)
            return F.cross_entropy(net(novel), y) - domain_loss(
                domain_net.features(novel), received_layer if domain_net is net else last_layer
            )

        def label_loss(x: Tensor, y: Tensor, novel: Tensor) -> Tensor:  # L_f
            old, new = net(torch.cat((x, novel))).chunk(2)  # one pass, so that BatchNorm normalises them together
            return (1 - share) * F.cross_entropy(old, y) + share * F.cross_entropy(new, y)

        def train_on(x: Tensor, y: Tensor) -> None:
            net.eval(), domain_net.eval()  # frozen, running statistics included
            descend(step_generator, partial(generator_loss, x, y))
            with torch.no_grad():
                novel, h = x + strength * generator(x), domain_net.features(x)
            net.train(), domain_net.train()
            loss = (lambda: F.cross_entropy(net(x), y)) if warm else partial(label_loss, x, y, novel)
            descend(step_net, loss, net)
            if domain_net is net:
                descend(step_domains, lambda: domain_loss(h, last_layer))
            else:
                descend(step_domains, lambda: domain_loss(domain_net.features(x), last_layer), domain_net)

        for batch in site.batches():
            train_on(*batch.merged)
        return {name: read(nets[name]) for name in shared} | {
            "sites": {name: leaf.detach() for name, leaf in last_layer.items()}
        }, {}

    def round(state: Tree, now: Round) -> Conversation:
        indices = {name: torch.tensor(index) for index, name in enumerate(now.enrolled)}
        extra = {"places": indices, "warm": torch.tensor(now.number < warmup)}
        replies = yield Request("train", {"sites": zero_layer(state, len(indices))} | state | extra, now.clients)
        return {name: mean(replies, name) for name in (*shared, "sites")}

    networks_sent = {name: parameters(name) for name in shared}
    return Method(
        client=Client(no_state, {"train": train}),
        server=Server(lambda nets: nets, round),
        weighting=uniform,
        networks=for_images("ddaig", networks),
        needs={"features"},
        shared=shared,
        sends={"train": networks_sent | {"sites": Sent("parameters", example_layer, since=("sites",))}},
        linear_aggregation=True,
        min_clients=2,
    )


def zero_layer(state: Tree, sites: int) -> Tree:
    """Return the initial last layer of the domain classifier: zeros, so that all sites have the same probability."""
    weight = state["model"]["params"]["head.weight"]
    return {"weight": weight.new_zeros(sites, weight.shape[1]), "bias": weight.new_zeros(sites)}


def example_layer(nets: Tree, body: Tree) -> Tree:
    """Return an example of the last layer: one row per site, or two rows while the number of sites is not known."""
    return body["sites"] if "sites" in body else zero_layer(nets, 2)
