"""G2G: Generalized Learning by Cross-Domain Knowledge Transfer for Federated Domain Generalization.

Chen, Zhang, Gong; ICASSP 2024.

Each site has two models, a private one and one that travels (the meme); on every batch both learn from the labels and
from each other's predictions, and only the meme is averaged. Labels are compared with scores of which the largest few
stay and the rest are made equal. It is federated mutual learning with that smoothing.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ..batch import Batch
from ..classifier import Networks, Task
from ..client import Local, training
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, uniform
from ..site import Site
from ..tree import Tree

PRESETS: dict[str, Tree] = {"paper": {}}

Share = Annotated[float, Field(ge=0, le=1)]


def g2g(
    alpha: Share = 0.5,
    beta: Share = 0.5,
    top: Annotated[int, Field(gt=0)] | None = 3,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """A private model and a travelling one that teach each other; alpha and beta are how much each goes by labels."""

    def mutual(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        meme, own = local.net(x), local.along["private"](x)
        return learn(own, y, meme, alpha, top) + learn(meme, y, own, beta, top)

    client = training(mutual, optimizer=optimizer, along=("private",))

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        return client.handlers["train"](site, received, private or {"private": received["model"]})

    return Method(
        client=client._replace(handlers={"train": train}),
        server=averaging,
        weighting=uniform,
        networks=twins,
        sums=True,
    )


def twins(task: Task) -> Networks:
    return {"model": task.network(task), "private": task.network(task)}


def learn(scores: Tensor, y: Tensor, other: Tensor, share: float, top: int | None) -> Tensor:
    """What one of the two lowers: by `share` the error, for the rest the divergence from what the other predicts."""
    error = F.cross_entropy(smoothed(scores, top), y)
    apart = F.kl_div(scores.log_softmax(1), other.detach().softmax(1), reduction="batchmean")
    return share * error + (1 - share) * apart


def smoothed(scores: Tensor, top: int | None) -> Tensor:
    """The scores of each image, all but the `top` largest replaced by their mean."""
    if top is None or top >= scores.shape[1]:
        return scores
    low = scores.argsort(dim=1, descending=True, stable=True)[:, top:]
    return scores.scatter(1, low, scores.gather(1, low).mean(1, keepdim=True).expand_as(low))
