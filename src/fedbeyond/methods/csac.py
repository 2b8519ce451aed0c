"""Collaborative Semantic Aggregation and Calibration for Federated Domain Generalization.

Yuan, Ma, Chen, Wu, Lin, Kuang; TKDE 2023; https://arxiv.org/abs/2110.06736

Every site first trains a model of its own. The server fuses the sites' models layer by layer: the further a site's
layer is from the mean, the more it counts. Each site then trains the fused model so that the features of its levels are
distributed as those of the site's own model, at the levels that an attention picks (multi-kernel MMD).
"""

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from .. import tree
from ..batch import Batch
from ..classifier import Networks, Task, at_stages, classifier, for_images, read, write
from ..client import Client, Local, Term, training
from ..losses import cross_entropy
from ..method import Method, parameters
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Reply, Request, Round, Server
from ..site import Site
from ..tree import Tree

PRESETS = {"paper": {"pretrain": 30}, "official": {"pretrain": 30, "smoothing": 0.0}}

KERNELS = tuple(3.0**k for k in range(-3, 2))  # how wide each is, in mean squared distances
ALL = 99  # stages

Fusion = Literal["distance", "uniform"]


def csac(
    weight: Annotated[float, Field(ge=0)] = 0.6,
    fusion: Fusion = "distance",
    pretrain: Annotated[int, Field(ge=0)] = 5,
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.1,
    width: Annotated[int, Field(gt=0)] = 32,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Models fused layer by layer, those far from the mean first; at each site, features drawn to its own model's."""
    schooling = training(cross_entropy(smoothing), optimizer=optimizer, epochs=pretrain)
    if weight:
        learning = training(calibrated(weight), optimizer=optimizer, init=own_attention, along=("attention",))
    else:
        learning = training(cross_entropy(), optimizer=optimizer)

    def teach(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        reply, _ = schooling.handlers["train"](site, received, {})
        return reply, private | {"own": reply["model"]}

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        if weight:
            write(site.nets["own"], private["own"]).eval()
        return learning.handlers["train"](site, received, private)

    def round(state: Tree, now: Round) -> Conversation:
        model, taught = state["model"], state["taught"]
        new = tuple(client for client in now.clients if client not in taught)
        if new:
            others = len(new) < len(now.clients)  # the round can go on without the new ones
            replies = yield Request("teach", {"model": model}, new, quorum=0 if others else 1)
            model = model if taught else fuse(replies, fusion)[0]
            taught = taught | {reply.client: torch.ones(()) for reply in replies}
        ready = tuple(client for client in now.clients if client in taught)
        replies = yield Request("train", {"model": model}, ready)
        model, shares = fuse(replies, fusion)
        return {"model": model, "taught": taught, "told": {"weights": shares}}

    def networks(task: Task) -> Networks:
        model, own = task.network(task), task.network(task)
        maps, _ = look(model.eval(), torch.zeros(1, *task.shape))
        return {"model": model.train(), "own": own, "attention": Attention([m.shape[1:] for m in maps], width)}

    return Method(
        client=Client(learning.init, {"teach": teach, "train": train}),
        server=Server(lambda nets: nets | {"taught": {}, "told": {"weights": {}}}, round),
        weighting=None,
        sends={kind: {"model": parameters("model")} for kind in ("teach", "train")},
        networks=for_images("csac", networks) if weight else classifier,
    )


def fuse(replies: list[Reply], fusion: Fusion) -> tuple[Tree, Tree]:
    """The mean of the sites' models, weighed for each layer; and the weight of each site, on average over layers."""
    models = [reply.body["model"] for reply in replies]
    even = [1 / len(models)] * len(models)
    centre = tree.mean([model["params"] for model in models], even)
    gaps = [lengths(tree.sub(model["params"], centre)) for model in models]
    shares = {layer: even for layer in gaps[0]}
    for layer in shares:
        far = [gap[layer] for gap in gaps]
        if fusion == "distance" and sum(far) > 0:
            shares[layer] = [one / sum(far) for one in far]

    def mean(kind: str, name: str) -> Any:  # running statistics go with the scales and shifts of their layer
        return tree.mean([model[kind][name] for model in models], shares.get(layer_of(name), even))

    fused = {kind: {name: mean(kind, name) for name in models[0][kind]} for kind in models[0]}
    whole = zip(replies, zip(*shares.values(), strict=True), strict=True)
    return fused, {reply.client: torch.tensor(sum(some) / len(shares)) for reply, some in whole}


def lengths(params: Tree) -> dict[str, float]:
    """The l2 norm of each layer."""
    squares: dict[str, float] = {}
    for name, leaf in params.items():
        squares[layer_of(name)] = squares.get(layer_of(name), 0.0) + float(leaf.double().square().sum())
    return {layer: math.sqrt(square) for layer, square in squares.items()}


def layer_of(name: str) -> str:
    return name.rpartition(".")[0]


def calibrated(weight: float) -> Term:
    """Cross-entropy, and how differently features and scores of the fused model and the site's own are distributed."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        maps, scores = look(local.net, x)
        with torch.no_grad():
            own_maps, own_scores = look(local.site.nets["own"], x)
        levels: Tensor = local.along["attention"](maps, own_maps)
        return F.cross_entropy(scores, y) + weight * (levels + mmd(scores, own_scores))

    return term


def look(net: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The maps of all stages of a network, and its scores."""
    maps: list[Tensor] = []
    hooks = at_stages(net, "csac", maps.append, ALL)
    try:
        return maps, net(x)
    finally:
        for hook in hooks:
            hook.remove()


def own_attention(site: Site) -> Tree:
    """An attention that is this site's alone."""
    attention = site.nets["attention"]
    for part in attention.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.reset_parameters()
    return {"attention": read(attention)}


class Attention(nn.Module):
    """Brings the maps of all levels to one size, and weighs how differently each two levels are distributed."""

    def __init__(self, shapes: list[torch.Size], width: int) -> None:
        super().__init__()
        self.side = tuple(shapes[-1][1:])  # that of the deepest
        self.ours, self.theirs = (nn.ModuleList(nn.Conv2d(shape[0], width, 1) for shape in shapes) for _ in range(2))
        self.query, self.key = (nn.ModuleList(nn.Linear(width, width) for _ in shapes) for _ in range(2))

    def forward(self, maps: list[Tensor], own: list[Tensor]) -> Tensor:
        ours, theirs = self.fitted(self.ours, maps), self.fitted(self.theirs, own)
        weights = self.weights([level.detach() for level in ours], [level.detach() for level in theirs])
        apart = [torch.stack([mmd(one.flatten(1), other.flatten(1)) for other in theirs]) for one in ours]
        return (weights * torch.stack(apart)).sum()

    def fitted(self, convs: nn.ModuleList, maps: list[Tensor]) -> list[Tensor]:
        """The maps of each level, of the same size and number."""
        pairs = zip(convs, maps, strict=True)
        return [conv(F.adaptive_avg_pool2d(level, self.side)) for conv, level in pairs]  # type: ignore[arg-type]

    def weights(self, ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
        """How much of each of our levels goes to each of theirs: by alike channels, and by alike places."""
        asked = torch.stack([part(level.mean((2, 3))) for part, level in zip(self.query, ours, strict=True)])
        offered = torch.stack([part(level.mean((2, 3))) for part, level in zip(self.key, theirs, strict=True)])
        places, others = (torch.stack([level.mean(1).flatten(1) for level in levels]) for levels in (ours, theirs))
        pairs = ((asked, offered), (places, others))
        alike = [torch.einsum("anc,bnc->ab", one, other) / one.shape[1] for one, other in pairs]
        return (alike[0].softmax(1) + alike[1].softmax(1)) / 2


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two samples, summed over Gaussian kernels of several widths."""
    both, count = torch.cat((x, y)), len(x)
    squares = both.square().sum(1)
    distances = (squares[:, None] + squares - 2 * both @ both.T).clamp(min=0)
    scale = distances.detach().mean().clamp(min=1e-12)
    kernel = torch.stack([(-distances / (2 * wide * scale)).exp() for wide in KERNELS]).sum(0)
    return kernel[:count, :count].mean() + kernel[count:, count:].mean() - 2 * kernel[:count, count:].mean()
