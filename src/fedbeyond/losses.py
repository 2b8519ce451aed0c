"""Loss terms: functions of what a training site can see and a batch, to be added up by `training`."""

from torch import Tensor
from torch.nn import functional as F

from . import tree
from .batch import Batch
from .client import SEPARABLE, Local, Term


def cross_entropy(smoothing: float = 0.0) -> Term:
    """Mean cross-entropy over a batch and its views; `smoothing` of the label is spread over all classes."""

    def term(local: Local, batch: Batch) -> Tensor:
        x, y = batch.merged
        return F.cross_entropy(local.net(x), y, label_smoothing=smoothing)

    SEPARABLE.add(term)
    return term


def proximal(mu: float) -> Term:
    """mu/2 times the squared distance from the received parameters."""

    def term(local: Local, batch: Batch) -> Tensor:
        drift = tree.sub(local.params, local.start)
        return mu / 2 * tree.dot(drift, drift)

    SEPARABLE.add(term)
    return term
