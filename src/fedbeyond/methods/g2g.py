"""G2G: Generalized Learning by Cross-Domain Knowledge Transfer for Federated Domain Generalization.

Chen, Zhang, Gong; ICASSP 2024.

Each site has two models, a private one and a shared one (the meme). On every batch both learn from the labels and from
each other's predictions; only the meme is sent and averaged. In the cross-entropy, all logits of an image except the
largest few are replaced by their mean. The method is federated mutual learning with that smoothing.
"""

from typing import Annotated

from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional as F

from .._method import Method, Share
from ..batch import Batch
from ..classifier import classifiers
from ..client import Local, training
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, uniform
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}


def g2g(
    alpha: Annotated[Share, "weight of the labels for the private model, alpha"] = 0.5,
    beta: Annotated[Share, "weight of the labels for the shared model, beta"] = 0.5,
    top: Annotated[PositiveInt | None, "largest logits that are not replaced by a mean; none: all"] = 3,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train a private and a shared model that teach each other."""

    def mutual(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        meme, private = local.net(x), local.along["private"](x)
        return mutual_loss(private, y, meme, alpha, top) + mutual_loss(meme, y, private, beta, top)

    client = training(mutual, optimizer=optimizer, along=("private",))

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        return client.handlers["train"](site, received, private or {"private": received["model"]})

    return Method(
        client=client.also(train=train),
        server=averaging,
        weighting=uniform,
        keeps={"private"},
        networks=classifiers("model", "private"),
        linear_aggregation=True,
        inputs_unchanged=True,
    )


def mutual_loss(logits: Tensor, y: Tensor, other: Tensor, share: float, top: int | None) -> Tensor:
    """Compute the loss of one model: `share` of its cross-entropy, the rest its KL divergence from the other model."""
    error = F.cross_entropy(smoothed(logits, top), y)
    divergence = F.kl_div(logits.log_softmax(1), other.detach().softmax(1), reduction="batchmean")
    return share * error + (1 - share) * divergence


def smoothed(logits: Tensor, top: int | None) -> Tensor:
    """Replace all logits of an image except the `top` largest by their mean."""
    if top is None or top >= logits.shape[1]:
        return logits
    low = logits.argsort(dim=1, descending=True, stable=True)[:, top:]
    return logits.scatter(1, low, logits.gather(1, low).mean(1, keepdim=True).expand_as(low))
