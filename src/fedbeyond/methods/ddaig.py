"""Deep Domain-Adversarial Image Generation for Domain Generalisation.

Zhou, Yang, Hospedales, Xiang; AAAI 2020; https://arxiv.org/abs/2003.06054

A generator perturbs images so that the label classifier still knows their class, but the domain classifier not where
they are from; the label classifier learns from both. Domains are the sites, which share the domain classifier too.
"""

from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ..classifier import Classifier, Networks, Task, for_images, read, write
from ..client import Client, descend, nothing, stepper
from ..method import Method, Sent, parameters
from ..networks.fcn import Fcn
from ..optimizers import Optimizer, plain_sgd, reach
from ..server import Conversation, Request, Round, Server, mean, uniform
from ..site import Site
from ..tree import Tree

PRESETS = {"paper": {"domains": "network", "warmup": 3}, "official": {"domains": "network", "warmup": 0}}

# how far a site moves the last layer in a round, in steps, however many it takes: no site outweighs others
TRAVEL = 10


def ddaig(
    strength: Annotated[float, Field(ge=0)] = 0.6,  # the paper's 0.3 counts in pixels of 0..1
    share: Annotated[float, Field(ge=0, le=1)] = 0.5,
    width: Annotated[int, Field(gt=0)] = 32,
    domains: Literal["layer", "network"] = "layer",
    warmup: Annotated[int, Field(ge=0)] = 2,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """A generator of images whose class can be told but not their site, to learn from beside those that are."""
    shared = ("model", "generator", *(["domains"] if domains == "network" else []))

    def networks(task: Task) -> Networks:
        nets: Networks = {"model": task.network(task), "generator": Fcn(task.shape[0], width)}
        return nets | ({"domains": task.network(task)} if domains == "network" else {})

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        nets = {name: write(site.nets[name], received[name]).train() for name in shared}
        net, generator = nets["model"], nets["generator"]
        judge = nets.get("domains", net)  # whose features tell the site
        assert isinstance(net, Classifier) and isinstance(judge, Classifier)
        told = received["sites"]
        last = {name: leaf.clone().requires_grad_() for name, leaf in told.items()}
        place, warm = int(received["places"][site.name]), bool(received["warm"])
        step_net = stepper(optimizer, net.parameters(), site)
        step_generator = stepper(optimizer, generator.parameters(), site)
        evened = reach(step_net, TRAVEL) / reach(step_net, site.steps)  # with momentum, more steps go further each
        own, rate = (judge.body.parameters(), 1.0) if judge is not net else ((), evened)
        step_domains = stepper(optimizer, [*own, *last.values()], site, rate)

        def traced(h: Tensor, layer: Tree) -> Tensor:  # L_d
            return F.cross_entropy(F.linear(h, **layer), torch.full((len(h),), place, device=h.device))

        def disguise(x: Tensor, y: Tensor) -> Tensor:  # L_g
            novel = x + strength * generator(x)
            return F.cross_entropy(net(novel), y) - traced(judge.features(novel), told if judge is net else last)

        def recognise(x: Tensor, y: Tensor, novel: Tensor) -> Tensor:  # L_f
            old, new = net(torch.cat((x, novel))).chunk(2)  # one pass: BatchNorm sees them together
            return (1 - share) * F.cross_entropy(old, y) + share * F.cross_entropy(new, y)

        def on(x: Tensor, y: Tensor) -> None:
            net.eval(), judge.eval()  # frozen, their statistics as well
            descend(step_generator, partial(disguise, x, y))
            with torch.no_grad():
                novel, h = x + strength * generator(x), judge.features(x)
            net.train(), judge.train()
            learn = (lambda: F.cross_entropy(net(x), y)) if warm else partial(recognise, x, y, novel)
            descend(step_net, learn, net)
            if judge is net:
                descend(step_domains, lambda: traced(h, last))
            else:
                descend(step_domains, lambda: traced(judge.features(x), last), judge)

        for batch in site.batches():
            on(*batch.merged)
        return {name: read(nets[name]) for name in shared} | {"sites": {n: t.detach() for n, t in last.items()}}, {}

    def round(state: Tree, now: Round) -> Conversation:
        places = {name: torch.tensor(place) for place, name in enumerate(now.enrolled)}
        extra = {"places": places, "warm": torch.tensor(now.number < warmup)}
        replies = yield Request("train", {"sites": unknown(state, len(places))} | state | extra, now.clients)
        return {name: mean(replies, name) for name in (*shared, "sites")}

    promised = {name: parameters(name) for name in shared}
    return Method(
        client=Client(nothing, {"train": train}),
        server=Server(lambda nets: nets, round),
        weighting=uniform,
        networks=for_images("ddaig", networks),
        shared=shared,
        sends={"train": promised | {"sites": Sent("parameters", as_received, since=("sites",))}},
        sums=True,
        least=2,
    )


def unknown(state: Tree, sites: int) -> Tree:
    """The domain classifier's last layer at the start: no image is of one site rather than another."""
    weight = state["model"]["params"]["head.weight"]
    return {"weight": weight.new_zeros(sites, weight.shape[1]), "bias": weight.new_zeros(sites)}


def as_received(nets: Tree, body: Tree) -> Tree:
    """A row for each site that takes part; two, while nobody knows."""
    return body["sites"] if "sites" in body else unknown(nets, 2)
