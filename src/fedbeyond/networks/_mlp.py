"""A multilayer perceptron for table data."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from pydantic import PositiveInt
from torch import Tensor, nn

from ..classifier import Classifier, Task
from ..errors import ConfigError
from ..method import BelowOne


class Perceptron(Classifier):
    """Linear layers with ReLU, and a linear head."""

    attentive = False  # there are no feature maps

    def maps(self, x: Tensor) -> Tensor:
        """Raise `ConfigError`: table rows have no feature maps."""
        raise ConfigError("mlp is for tables, which have no feature maps; use a method that does not need them")

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the head receives."""
        return self.body(x)  # type: ignore[no-any-return]


def mlp(hidden: Sequence[PositiveInt] = (64, 64), dropout: BelowOne = 0.0) -> Callable[[Task], Classifier]:
    """Build a multilayer perceptron for tables, with hidden layers of the widths `hidden`."""
    if not hidden:
        raise ValueError(
            "hidden=[] leaves no layer; give the widths of one or more layers, for example hidden=[64, 64]"
        )
    return partial(_mlp, tuple(hidden), dropout)


def _mlp(hidden: tuple[int, ...], dropout: float, task: Task) -> Classifier:
    if len(task.shape) != 1:
        given = " x ".join(map(str, task.shape))
        raise ConfigError(f"mlp is for tables, these data are images of {given}; use convnet")
    body = nn.Sequential()
    for inputs, outputs in pairwise((task.shape[0], *hidden)):
        body.append(nn.Linear(inputs, outputs))
        body.append(nn.ReLU(inplace=True))
        if dropout:
            body.append(nn.Dropout(dropout))
    return Perceptron(body, hidden[-1], len(task.classes))
