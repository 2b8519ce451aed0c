"""Loss terms: functions `(local, batch) -> loss` that `training` adds up."""

from torch import Tensor
from torch.nn import functional as F

from . import tree
from .batch import Batch
from .client import Local, Term


def cross_entropy(smoothing: float = 0.0) -> Term:
    """Return the mean cross-entropy over a batch and its views, with label smoothing `smoothing`."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        return F.cross_entropy(local.net(x), y, label_smoothing=smoothing)

    return term


def proximal(mu: float) -> Term:
    """Return the proximal term: mu/2 times the squared distance from the starting parameters."""

    def term(local: Local, batch: Batch) -> Tensor:
        drift = tree.sub(local.params, local.start)
        return mu / 2 * tree.dot(drift, drift)

    return term
