"""Auto-weighted Robust Federated Learning with Corrupted Data Sources.

Li, Ngai, Ye, Voigt; ACM TIST 2022; https://arxiv.org/abs/2101.05880

A site on which the received model does badly is taken to hold corrupted data, and counts less or not at all: weights
minimise  sum a_i L_i + lambda/2 sum a_i^2 / n_i  on the simplex, L_i being the received model's loss on the images that
site i trains on. The larger lambda, the closer a_i is to n_i / n.
"""

from typing import Annotated

from pydantic import Field

from ..client import Local, training, upload
from ..losses import cross_entropy
from ..method import Method, also, parameters, scalar
from ..optimizers import Optimizer, plain_sgd
from ..server import Reply, Round, Weighting, averaging
from ..tree import Tree

PRESETS = {"paper": {"strength": 1.0}, "official": {"strength": 1.0}}


def arfl(
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0, optimizer: Optimizer = plain_sgd
) -> Method:
    """Weights by how well the received model does at a site; `strength` is lambda for each image."""

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        losses = {reply.client: reply.body["loss"] for reply in replies}
        weights = robust([float(loss) for loss in losses.values()], [reply.weight for reply in replies], strength)
        return weights, {"told": {"losses": losses}}

    return Method(
        client=training(cross_entropy(), optimizer=optimizer, finish=telling),
        server=averaging,
        weighting=Weighting(lambda clients: {"told": {"losses": {}}}, update),
        sends=also({}, "train", model=parameters("model"), loss=scalar),
    )


def telling(local: Local) -> tuple[Tree, Tree]:
    """Send the model, and how the received one did on the images it was trained on."""
    reply, kept = upload(local)
    return reply | {"loss": local.site.loss(local.received["model"], "train")}, kept


def robust(losses: list[float], sizes: list[float], strength: float) -> list[float]:
    """The weights that minimise the objective: n_i max(eta - L_i, 0) / lambda, with lambda = strength * n."""
    shares, best = [size / sum(sizes) for size in sizes], min(losses)
    above = [loss - best for loss in losses]  # eta moves along with the losses, so that only differences matter
    level, held, lost = float("inf"), 0.0, 0.0
    for i in sorted(range(len(above)), key=above.__getitem__):  # from the lowest loss up, while eta is above the next
        if above[i] >= level:
            break
        held, lost = held + shares[i], lost + shares[i] * above[i]
        level = (lost + strength) / held
    return [share * max(level - loss, 0.0) / strength for share, loss in zip(shares, above, strict=True)]
