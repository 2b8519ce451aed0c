"""Collaborative Semantic Aggregation and Calibration for Federated Domain Generalization.

Yuan, Ma, Chen, Wu, Lin, Kuang; TKDE 2023; https://arxiv.org/abs/2110.06736

Each site first trains its own model. The server fuses the sites' models layer by layer: the further a site's layer is
from the mean, the larger its weight. Each site then trains the fused model, and its features at each level are aligned
with those of the site's own model by multi-kernel MMD; an attention module weights the pairs of levels.
"""

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from .. import tree
from .._method import Method, Share, parameters
from ..batch import Batch
from ..classifier import Networks, Task, at_stages, attached, classifier, for_images, read
from ..client import Local, Term, training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Conversation, Reply, Request, Round, Server
from ..site import Site
from ..tree import Tree

PRESETS = {"paper": {"pretrain": 30}, "official": {"pretrain": 30, "smoothing": 0.0}}

KERNELS = tuple(3.0**k for k in range(-3, 2))  # kernel widths, in units of the mean squared distance
ALL = 99  # more stages than any network has

Fusion = Literal["distance", "uniform"]


def csac(
    weight: Annotated[NonNegativeFloat, "weight of the calibration, lambda; 0: none"] = 0.6,
    fusion: Annotated[Fusion, "weights of the layers of sites: by distance from the mean, or equal"] = "distance",
    pretrain: Annotated[NonNegativeInt, "epochs of a site's own model before its first round"] = 5,
    smoothing: Annotated[Share, "label smoothing in these epochs"] = 0.1,
    width: Annotated[PositiveInt, "channels of the projected feature maps"] = 32,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Fuse models layer by layer by distance from the mean; align features with each site's own model."""
    pretraining = training(cross_entropy(smoothing), optimizer=optimizer, epochs=pretrain)
    if weight:
        local_training = training(calibrated(weight), optimizer=optimizer, init=new_attention, along=("attention",))
    else:
        local_training = training(cross_entropy(), optimizer=optimizer)

    def teach(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        """Train the site's own model from the received one, send it and keep it."""
        reply, _ = pretraining.handlers["train"](site, received, {})
        return reply, private | {"own": reply["model"]}

    def round(state: Tree, now: Round) -> Conversation:
        model, taught = state["model"], state["taught"]
        new = tuple(client for client in now.clients if client not in taught)
        if new:
            others = len(new) < len(now.clients)  # then the round can continue without the new clients
            replies = yield Request("teach", {"model": model}, new, quorum=0 if others else 1)
            model = model if taught else fuse(replies, fusion)[0]
            taught = taught | {reply.client: torch.ones(()) for reply in replies}
        ready = tuple(client for client in now.clients if client in taught)
        replies = yield Request("train", {"model": model}, ready)
        model, shares = fuse(replies, fusion)
        return {"model": model, "taught": taught, "diagnostics": {"weights": shares}}

    def networks(task: Task) -> Networks:
        model, own = task.network(task), task.network(task)
        maps, _ = stages_and_logits(model.eval(), torch.zeros(1, *task.shape))
        return {"model": model.train(), "own": own, "attention": Attention([m.shape[1:] for m in maps], width)}

    return Method(
        client=local_training.also(teach=teach),
        server=Server(lambda nets: nets | {"taught": {}, "diagnostics": {"weights": {}}}, round),
        weighting=None,
        sends={kind: {"model": parameters("model")} for kind in ("teach", "train")},
        keeps={"own", "attention"} if weight else {"own"},
        networks=for_images("csac", networks) if weight else classifier,
        needs={"stages"} if weight else set(),
    )


def fuse(replies: list[Reply], fusion: Fusion) -> tuple[Tree, Tree]:
    """Return the mean of the sites' models, weighted per layer, and each site's weight averaged over the layers."""
    models = [reply.body["model"] for reply in replies]
    equal = [1 / len(models)] * len(models)
    centre = tree.mean([model["params"] for model in models], equal)
    gaps = [layer_norms(tree.sub(model["params"], centre)) for model in models]
    shares = {layer: equal for layer in gaps[0]}
    for layer in shares:
        distances = [gap[layer] for gap in gaps]
        if fusion == "distance" and sum(distances) > 0:
            shares[layer] = [distance / sum(distances) for distance in distances]

    def mean(kind: str, name: str) -> Any:  # running statistics have the weights of their layer's scales and shifts
        return tree.mean([model[kind][name] for model in models], shares.get(layer_of(name), equal))

    fused = {kind: {name: mean(kind, name) for name in models[0][kind]} for kind in models[0]}
    by_site = zip(replies, zip(*shares.values(), strict=True), strict=True)
    return fused, {reply.client: torch.tensor(sum(weights) / len(shares)) for reply, weights in by_site}


def layer_norms(params: Tree) -> dict[str, float]:
    """Return the l2 norm of each layer."""
    squares: dict[str, float] = {}
    for name, leaf in params.items():
        squares[layer_of(name)] = squares.get(layer_of(name), 0.0) + float(leaf.double().square().sum())
    return {layer: math.sqrt(square) for layer, square in squares.items()}


def layer_of(name: str) -> str:
    """Return the layer's name from the name of its parameter or buffer."""
    return name.rpartition(".")[0]


def calibrated(weight: float) -> Term:
    """Return the loss term: cross-entropy, plus the MMD of features and logits to those of the site's own model."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        maps, logits = stages_and_logits(local.net, x)
        with torch.no_grad():
            own_maps, own_logits = stages_and_logits(local.frozen("own", local.private["own"]), x)
        level_loss: Tensor = local.along["attention"](maps, own_maps)
        return F.cross_entropy(logits, y) + weight * (level_loss + mmd(logits, own_logits))

    return term


def stages_and_logits(net: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the feature maps of all stages of a network, and its logits."""
    maps: list[Tensor] = []
    with attached(at_stages(net, "csac", maps.append, ALL)):
        return maps, net(x)


def new_attention(site: Site) -> Tree:
    """Return a new attention module for one site, initialised from the site's own random stream."""
    attention = site.nets["attention"]
    for layer in attention.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.reset_parameters()
    return {"attention": read(attention)}


class Attention(nn.Module):
    """Projection of all levels to one size, and weights for the MMD of each pair of levels."""

    def __init__(self, shapes: list[torch.Size], width: int) -> None:
        super().__init__()
        self.side = tuple(shapes[-1][1:])  # height and width of the deepest level
        self.ours, self.theirs = (nn.ModuleList(nn.Conv2d(shape[0], width, 1) for shape in shapes) for _ in range(2))
        self.query, self.key = (nn.ModuleList(nn.Linear(width, width) for _ in shapes) for _ in range(2))

    def forward(self, maps: list[Tensor], own: list[Tensor]) -> Tensor:
        """Return the weighted sum of the MMDs of all pairs of levels, of the fused model and the site's own."""
        ours, theirs = self.project(self.ours, maps), self.project(self.theirs, own)
        weights = self.weights([level.detach() for level in ours], [level.detach() for level in theirs])
        distances = [torch.stack([mmd(a.flatten(1), b.flatten(1)) for b in theirs]) for a in ours]
        return (weights * torch.stack(distances)).sum()

    def project(self, convs: nn.ModuleList, maps: list[Tensor]) -> list[Tensor]:
        """Return the maps of each level with the same size and number of channels."""
        pairs = zip(convs, maps, strict=True)
        return [conv(F.adaptive_avg_pool2d(level, self.side)) for conv, level in pairs]  # type: ignore[arg-type]

    def weights(self, ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
        """Return the weight of each pair of levels: the mean of channel-wise and spatial attention."""
        queries = torch.stack([layer(level.mean((2, 3))) for layer, level in zip(self.query, ours, strict=True)])
        keys = torch.stack([layer(level.mean((2, 3))) for layer, level in zip(self.key, theirs, strict=True)])
        space, other = (torch.stack([level.mean(1).flatten(1) for level in levels]) for levels in (ours, theirs))
        pairs = ((queries, keys), (space, other))
        similar = [torch.einsum("anc,bnc->ab", a, b) / a.shape[1] for a, b in pairs]
        return (similar[0].softmax(1) + similar[1].softmax(1)) / 2


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Compute the squared maximum mean discrepancy of two samples, summed over Gaussian kernels of several widths."""
    both, count = torch.cat((x, y)), len(x)
    squares = both.square().sum(1)
    distances = (squares[:, None] + squares - 2 * both @ both.T).clamp(min=0)
    scale = distances.detach().mean().clamp(min=1e-12)
    kernel = torch.stack([(-distances / (2 * width * scale)).exp() for width in KERNELS]).sum(0)
    return kernel[:count, :count].mean() + kernel[count:, count:].mean() - 2 * kernel[:count, count:].mean()
