"""What becomes of BatchNorm under any method: averaged as all else, measured anew, kept by each site, or frozen.

`local` is FedBN (Li, Jiang, Zhang, Kamp, Dou; ICLR 2021; https://arxiv.org/abs/2102.07623). `frozen` is what
DomainBed calls freeze_bn. Layers are found by their type, never by their name.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from ..classifier import Networks, Task, norms
from ..client import Handler
from ..method import Method
from ..site import Site
from ..tree import Tree

Policy = Literal["average", "reestimate", "local", "frozen"]


def average(method: Method) -> Method:
    """Numbers of BatchNorm travel and are averaged as all others: the method as it is."""
    return method


def reestimate(method: Method) -> Method:
    """Train as under `average`; measure the statistics of models that are evaluated anew (see reestimation.py)."""
    return replace(method, reestimate=True)


def local(method: Method) -> Method:
    """Each site goes on with the BatchNorm it ended its last round with; what it sends is averaged as before."""

    def keeping(handler: Handler) -> Handler:
        def answer(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
            net, kept = site.nets["model"], private.get("batchnorm", {})
            reply, own = handler(site, overlaid(received, kept), private["own"])
            fresh = {name: part(reply[name], net) for name in received if like(reply.get(name), net)}
            latest = {**kept, **fresh}
            return reply, {"own": own} | ({"batchnorm": latest} if latest else {})

        return answer

    handlers = {kind: keeping(handler) for kind, handler in method.client.handlers.items()}
    client = method.client._replace(init=lambda site: {"own": method.client.init(site)}, handlers=handlers)
    return replace(method, client=client)


def frozen(method: Method) -> Method:
    """Running statistics are used in training too, and stay as they were; scales and shifts are learnt."""

    def networks(task: Task) -> Networks:
        nets = method.networks(task)
        for net in nets.values():
            for _, layer in norms(net):
                layer.register_forward_pre_hook(rest)
                layer.frozen = True  # type: ignore[assignment]  # whoever re-estimates statistics leaves these alone
        return nets

    return replace(method, networks=networks)


POLICIES: dict[Policy, Callable[[Method], Method]] = {
    "average": average,
    "reestimate": reestimate,
    "local": local,
    "frozen": frozen,
}


def rest(layer: nn.Module, given: object) -> None:
    """Whatever mode its network is in, a frozen layer goes by its running statistics."""
    layer.eval()


def like(tree: Any, net: nn.Module) -> bool:
    """Whether a tree holds the numbers of such a network."""
    return isinstance(tree, dict) and tree.get("params", {}).keys() == dict(net.named_parameters()).keys()


def part(tree: Tree, net: nn.Module) -> Tree:
    """What of a network's numbers belongs to its BatchNorm layers."""
    own = {
        "params": {f"{place}.{name}" for place, layer in norms(net) for name, _ in layer.named_parameters()},
        "buffers": {f"{place}.{name}" for place, layer in norms(net) for name, _ in layer.named_buffers()},
    }
    return {kind: {name: tree[kind][name] for name in tree[kind] if name in own[kind]} for kind in own}


def overlaid(received: Tree, kept: Tree) -> Tree:
    """What was received, with the site's own BatchNorm in it; also in the parameters that training starts from."""
    mixed = {
        name: {kind: received[name][kind] | mine[kind] for kind in mine}
        for name, mine in kept.items()
        if name in received
    }
    if "start" in received and "model" in kept:
        mixed["start"] = received["start"] | kept["model"]["params"]
    return received | mixed
