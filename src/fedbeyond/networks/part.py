"""Which part of a network is trained: all of it, its head, its last blocks, its normalisation layers, or LoRA.

A part is a function that is given a new network and its task, and returns the modules that are trained. All others are
frozen (networks/frozen.py). The head is always trained.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn

from .._factory import spec_of
from .._method import Method
from ..batch import CachedCopies, plain
from ..classifier import Classifier, Networks, Task, attached
from ..errors import ConfigError
from ..site import forked_rng
from .frozen import freeze, frozen_layers, share
from .lora import Targets, add_lora, kinds_in
from .prefix import tail_of


class Part(NamedTuple):
    """What is trained, and whether the outputs of what is frozen before it are computed once for each image."""

    choose: Callable[[nn.Module, Task], list[nn.Module]]
    cache: bool = False
    copies: int = 0  # augmented ones of each training image that are cached, if images are augmented


Cache = Annotated[bool, "compute frozen first layers once for each image, if the method allows it"]
Copies = Annotated[NonNegativeInt, "cached copies of each image by train.transform; 0: it is applied in every round"]
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def everything() -> Part:
    """Train the whole network."""
    return Part(lambda net, task: [net])


def head(cache: Cache = True, copies: Copies = 0) -> Part:
    """Train the last layer on frozen features."""
    return Part(lambda net, task: [head_of(net, task)], cache, copies)


def last(
    n: Annotated[PositiveInt, "blocks that are trained, from the end, and the head"] = 1,
    cache: Cache = True,
    copies: Copies = 0,
) -> Part:
    """Train the last blocks and the head; blocks end at the stages of the network."""

    def choose(net: nn.Module, task: Task) -> list[nn.Module]:
        blocks = blocks_of(net, task)
        if n >= len(blocks):
            raise ConfigError(
                f"train.part = last(n={n}): {type(net).__name__} has {len(blocks)} blocks; give n from 1 to "
                f"{len(blocks) - 1}, or train.part = 'all'"
            )
        return [head_of(net, task), *(layer for block in blocks[-n:] for layer in block)]

    return Part(choose, cache, copies)


def norm() -> Part:
    """Train the normalisation layers and the head."""

    def choose(net: nn.Module, task: Task) -> list[nn.Module]:
        return [head_of(net, task), *(layer for layer in net.modules() if isinstance(layer, NORMS))]

    return Part(choose)


def lora(
    rank: Annotated[PositiveInt, "rank of the correction of a weight"] = 8,
    alpha: Annotated[PositiveFloat, "a correction is multiplied by alpha / rank"] = 16.0,
    targets: Annotated[
        Targets, "layers whose weights are corrected: those of attention, all linear ones, or convolutions"
    ] = "attention",
    exact: Annotated[bool, "freeze the factor A, so that the mean of B is the mean of the corrections"] = True,
) -> Part:
    """Train corrections of low rank to frozen weights (LoRA), and the head."""

    def choose(net: nn.Module, task: Task) -> list[nn.Module]:
        last_layer = head_of(net, task)
        found = kinds_in(net, last_layer)
        if targets not in found:
            raise ConfigError(
                f"train.part = lora(targets={targets}): {type(net).__name__} has no such layers before its head; "
                + (f"give targets={' or '.join(found)}" if found else "give another part, such as head")
            )
        added = add_lora(net, last_layer, rank, alpha, targets)
        return [last_layer, *(factor for one in added for factor in ([one.b] if exact else [one.a, one.b]))]

    return Part(choose)


def train_part(method: Method, part: Part) -> Method:
    """Return the method with all its networks of the task's kind (`model`, `guide`, ...) trained in part.

    They share what is frozen. Networks of the method's own, such as generators, are trained as a whole. If outputs are
    cached, and the method allows it, the networks are tails, which get these outputs instead of images.
    """
    cached = part.cache and not why_images(method)

    def networks(task: Task) -> Networks:
        built: list[nn.Module] = []

        def network(task: Task) -> nn.Module:
            net = inner(task)
            freeze(net, part.choose(net, task))
            ensure_effect(method, net)
            for first in built[:1]:
                share(net, first)
            built.append(net)
            return tail_of(net, task.shape, method.needs) if cached else net

        inner = task.network
        nets = method.networks(task._replace(network=network))
        reached = {id(layer) for net in nets.values() for _, layer in frozen_layers(net)}
        if any(id(layer) not in reached for net in built for _, layer in frozen_layers(net)):
            raise ConfigError(
                "this method wraps the network, whose own parameters cannot be frozen then; put them into a submodule, "
                "or train all of the network (train.part = 'all')"
            )
        return nets

    return replace(method, networks=networks)


def why_images(method: Method) -> str:
    """Return why a method needs images, and not only what a frozen network computes from them; empty if it does not."""
    if method.augment is not plain and not isinstance(method.augment, CachedCopies):
        return "images are augmented"
    if not method.inputs_unchanged:
        return "the method uses images themselves"
    return "the method uses early layers" if "stages" in method.needs else ""


def ensure_effect(method: Method, net: nn.Module) -> None:
    """Raise `ConfigError` if a method that acts on features alone is given frozen ones."""
    if method.shapes_features and all(name.startswith("head.") for name, _ in net.named_parameters()):
        raise ConfigError(
            f"{spec_of(method) or 'this method'} acts on features, which train.part freezes: its model would be that "
            "of plain training; use train.part = last, norm, lora or all, or another method"
        )


def head_of(net: nn.Module, task: Task) -> nn.Module:
    """Return the last layer of a network: its head, or of a module that gives only logits the last layer it calls."""
    if isinstance(net, Classifier):
        return net.get_submodule("head")
    called = [layer for layer, _ in calls(net, task) if isinstance(layer, nn.Linear | nn.Conv2d)]
    if not called or called[-1].weight.shape[0] != len(task.classes):
        raise ConfigError(
            f"train.part: the last layer of {type(net).__name__} is not linear with {len(task.classes)} outputs: it "
            "has no head to train; build it with fedbeyond.networks.classifier(body, head), or train.part = 'all'"
        )
    return called[-1]


def blocks_of(net: nn.Module, task: Task) -> list[list[nn.Module]]:
    """Return the layers with numbers between the network's cuts, from the first block to the last, without the head."""
    cuts = net.cuts if isinstance(net, Classifier) else ()
    if not cuts:
        raise ConfigError(
            f"train.part = last: {type(net).__name__} does not say where its blocks end; build it with "
            "fedbeyond.networks.classifier(body, head, stages=[...]), or give another part: head, norm or lora"
        )
    block = {id(layer): number for layer, number in reversed(calls(net, task, cuts))}  # at the first call
    ending, blocks = head_of(net, task), [list[nn.Module]() for _ in range(len(cuts) + 1)]

    def assign(layer: nn.Module, number: int) -> None:
        number = block.get(id(layer), number)  # one that is not called belongs to what it is in
        if layer is ending:
            return
        if layer._parameters or layer._buffers:
            blocks[number].append(layer)
        for child in layer.children():
            assign(child, number)

    assign(net, 0)
    return [layers for layers in blocks if layers]


@torch.no_grad()
def calls(net: nn.Module, task: Task, cuts: tuple[str, ...] = ()) -> list[tuple[nn.Module, int]]:
    """Return the modules in the order in which a forward pass calls them, with the number of cuts passed before."""
    order: list[tuple[nn.Module, int]] = []
    passed: list[nn.Module] = []
    hooks = [
        part.register_forward_pre_hook(lambda part, inputs: order.append((part, len(passed)))) for part in net.modules()
    ]
    hooks += [
        net.get_submodule(cut).register_forward_hook(lambda part, inputs, output: passed.append(part)) for cut in cuts
    ]
    mode, device = net.training, next(net.parameters()).device
    with attached(hooks), forked_rng():
        net.eval()(torch.zeros(2, *task.shape, device=device))
    net.train(mode)
    return order
