"""Auto-weighted Robust Federated Learning with Corrupted Data Sources.

Li, Ngai, Ye, Voigt; ACM TIST 2022; https://arxiv.org/abs/2101.05880

A site with a high loss under the received model is assumed to hold corrupted data and gets a small or zero weight. The
weights minimise  sum a_i L_i + lambda/2 sum a_i^2 / n_i  on the simplex, where L_i is the received model's loss on the
training images of site i. The larger lambda, the closer a_i is to n_i / n.
"""

from typing import Annotated

from pydantic import Field

from .._method import Method, also, loss, parameters
from ..client import Local, training, upload
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import Reply, Round, Weighting, averaging
from ..tree import Tree

PRESETS = {"paper": {"strength": 1.0}, "official": {"strength": 1.0}}


def arfl(
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False), "lambda per image; large: weights by size"] = 1.0,
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Average models with smaller weights for sites with high losses."""

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        losses = {reply.client: reply.body["loss"] for reply in replies}
        weights = robust([float(loss) for loss in losses.values()], [reply.weight for reply in replies], strength)
        return weights, {"diagnostics": {"losses": losses}}

    return Method(
        client=training(cross_entropy(), optimizer=optimizer, finish=upload_with_loss),
        server=averaging,
        weighting=Weighting(lambda clients: {"diagnostics": {"losses": {}}}, update),
        sends=also({}, "train", model=parameters("model"), loss=loss._replace(evaluates="train")),
        inputs_unchanged=True,
    )


def upload_with_loss(local: Local) -> tuple[Tree, Tree]:
    """Send the trained model, and the loss of the received model on the site's training images."""
    reply, private = upload(local)
    return reply | {"loss": local.site.loss(local.received["model"], "train")}, private


def robust(losses: list[float], sizes: list[float], strength: float) -> list[float]:
    """Return the weights that minimise the objective: n_i max(eta - L_i, 0) / lambda, with lambda = strength * n."""
    shares, lowest = [size / sum(sizes) for size in sizes], min(losses)
    excess = [loss - lowest for loss in losses]  # eta shifts with the losses, so only their differences matter
    eta, share_sum, loss_sum = float("inf"), 0.0, 0.0
    for i in sorted(range(len(excess)), key=excess.__getitem__):  # in ascending order, while the loss is below eta
        if excess[i] >= eta:
            break
        share_sum, loss_sum = share_sum + shares[i], loss_sum + shares[i] * excess[i]
        eta = (loss_sum + strength) / share_sum
    return [share * max(eta - loss, 0.0) / strength for share, loss in zip(shares, excess, strict=True)]
