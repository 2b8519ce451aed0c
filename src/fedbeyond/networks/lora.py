"""LoRA: Low-Rank Adaptation of Large Language Models.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen; ICLR 2022; https://arxiv.org/abs/2106.09685

A frozen weight W, as a matrix, gets a trained correction of low rank: W + (alpha / rank) B A, with B zero at first. The
mean of the products B A of several sites is not the product of their means. If A stays as it was drawn, the same at all
sites, it is: FFA-LoRA (Sun, Li, Li, Ding; ICLR 2024; https://arxiv.org/abs/2403.12313).
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..classifier import read
from ..tree import Tree, contiguous_copy
from .frozen import frozen_layers

Targets = Literal["attention", "linear", "conv"]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
ATTENTION = ("attn", "attention")  # in the names of modules, as in timm


class Factor(nn.Module):
    """One of the two factors of a correction."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class LowRank(nn.Module):
    """The parametrization of a weight: the frozen weight plus the product of two factors."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        rows, columns = weight.shape[0], weight[0].numel()
        rank, self.scale = min(rank, rows, columns), alpha / rank
        self.a, self.b = Factor(weight.new_empty(rank, columns)), Factor(weight.new_zeros(rows, rank))
        nn.init.kaiming_uniform_(self.a.weight, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.scale * self.b.weight @ self.a.weight).view(weight.shape)


def add_lora(net: nn.Module, head: nn.Module, rank: int, alpha: float, targets: Targets) -> list[LowRank]:
    """Give every target of a network, except its head, a correction; return the corrections."""
    found = list(_weights(net, head, targets))
    added = []
    for layer, name in found:
        weight: Tensor = getattr(layer, name)
        added.append(LowRank(weight.detach(), rank, alpha))
        parametrize.register_parametrization(layer, name, added[-1])
    return added


def kinds_in(net: nn.Module, head: nn.Module) -> list[str]:
    """Return the targets that a network has."""
    kinds: tuple[Targets, ...] = ("attention", "linear", "conv")
    return [kind for kind in kinds if any(_weights(net, head, kind))]


def _weights(net: nn.Module, head: nn.Module, targets: Targets) -> Iterator[tuple[nn.Module, str]]:
    """Yield each module with a weight that is a target, and the name of the weight in it."""
    for path, layer in net.named_modules():
        holder = net.get_submodule(path.rpartition(".")[0])
        attends = any(word in path.lower() for word in ATTENTION) or isinstance(holder, nn.MultiheadAttention)
        kinds = {"attention": nn.Linear if attends else (), "linear": nn.Linear, "conv": CONVOLUTIONS}
        if isinstance(layer, nn.MultiheadAttention) and targets != "conv":
            for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
                if getattr(layer, name) is not None:  # one matrix for q, k and v, or one for each
                    yield layer, name
        elif isinstance(layer, kinds[targets]) and layer is not head:
            yield layer, "weight"


@torch.no_grad()
def merged(net: nn.Module) -> Tree:
    """Return a network with a frozen part as the tree of the ordinary network: everything in it, LoRA added up."""
    whole = read(net)
    for path, layer in frozen_layers(net):
        for name, tensor in layer.constants.items():
            kind = "params" if name in layer.frozen_parameters else "buffers"
            whole[kind][f"{path}.{name}".lstrip(".")] = contiguous_copy(tensor)
    for path, layer in net.named_modules():
        for name in getattr(layer, "parametrizations", ()):
            inside = f"{path}.parametrizations.{name}.".lstrip(".")
            whole["params"] = {key: tensor for key, tensor in whole["params"].items() if not key.startswith(inside)}
            whole["params"][f"{path}.{name}".lstrip(".")] = contiguous_copy(getattr(layer, name))
    return whole
