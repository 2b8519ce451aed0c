"""Policies for BatchNorm under any method: average, re-estimate, keep local, or freeze.

`local` is FedBN (Li, Jiang, Zhang, Kamp, Dou; ICLR 2021; https://arxiv.org/abs/2102.07623). `frozen` is
DomainBed's freeze_bn. Layers are identified by type, never by name.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from .._method import Method
from ..classifier import Networks, Task, batchnorm_layers
from ..client import Handler
from ..site import Site
from ..tree import Tree

Policy = Literal["average", "reestimate", "local", "frozen"]


def average(method: Method) -> Method:
    """Return the method unchanged: BatchNorm is sent and averaged like all other layers."""
    return method


def reestimate(method: Method) -> Method:
    """Train as with `average`; re-estimate the statistics of evaluated models (see engine/reestimation.py)."""
    return replace(method, reestimate=True)


def local(method: Method) -> Method:
    """Let each site continue with its own BatchNorm of its last round; what it sends is still averaged."""

    def keep_batchnorm(handler: Handler) -> Handler:
        def handle(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
            net, saved = site.nets["model"], private.get("batchnorm", {})
            reply, inner = handler(site, with_local_batchnorm(received, saved), private["own"])
            trained = {name: batchnorm_part(reply[name], net) for name in received if is_model_of(reply.get(name), net)}
            latest = {**saved, **trained}
            return reply, {"own": inner} | ({"batchnorm": latest} if latest else {})

        return handle

    handlers = {kind: keep_batchnorm(handler) for kind, handler in method.client.handlers.items()}
    client = method.client._replace(init=lambda site: {"own": method.client.init(site)}, handlers=handlers)
    return replace(method, client=client, keeps={"own", "batchnorm"})


def frozen(method: Method) -> Method:
    """Normalise with the initial running statistics also in training; scales and shifts are trained."""

    def networks(task: Task) -> Networks:
        nets = method.networks(task)
        for net in nets.values():
            for _, layer in batchnorm_layers(net):
                layer.register_forward_pre_hook(use_running_statistics)
                layer.frozen = True  # type: ignore[assignment]  # re-estimation skips these layers
        return nets

    return replace(method, networks=networks)


POLICIES: dict[Policy, Callable[[Method], Method]] = {
    "average": average,
    "reestimate": reestimate,
    "local": local,
    "frozen": frozen,
}


def use_running_statistics(layer: nn.Module, inputs: object) -> None:
    """Put a frozen layer in evaluation mode, whatever the mode of its network."""
    layer.eval()


def is_model_of(tree: Any, net: nn.Module) -> bool:
    """Return whether a tree has the parameters of such a network."""
    return isinstance(tree, dict) and tree.get("params", {}).keys() == dict(net.named_parameters()).keys()


def batchnorm_part(tree: Tree, net: nn.Module) -> Tree:
    """Return the parameters and buffers of a network's BatchNorm layers."""
    names = {
        "params": {f"{path}.{name}" for path, layer in batchnorm_layers(net) for name, _ in layer.named_parameters()},
        "buffers": {f"{path}.{name}" for path, layer in batchnorm_layers(net) for name, _ in layer.named_buffers()},
    }
    return {kind: {name: tree[kind][name] for name in tree[kind] if name in names[kind]} for kind in names}


def with_local_batchnorm(received: Tree, saved: Tree) -> Tree:
    """Replace BatchNorm in the received models, and in the parameters that training starts from, by the site's own."""
    replaced = {
        name: {kind: received[name][kind] | layers[kind] for kind in layers}
        for name, layers in saved.items()
        if name in received
    }
    if "start" in received and "model" in saved:
        replaced["start"] = received["start"] | saved["model"]["params"]
    return received | replaced
