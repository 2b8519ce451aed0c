"""A multilayer perceptron for table data."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated

from pydantic import PositiveInt
from torch import Tensor, nn

from .._method import BelowOne
from ..classifier import Classifier, Task
from ..errors import ConfigError


class Perceptron(Classifier):
    """Linear layers with ReLU, and a linear head."""

    attentive = False  # there are no feature maps
    provides = frozenset({"features"})

    @property
    def cuts(self) -> tuple[str, ...]:
        """Names of the activations after each hidden layer but the last."""
        return tuple(name for name, layer in self.named_modules() if isinstance(layer, nn.ReLU))[:-1]

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the head receives."""
        return self.body(x)  # type: ignore[no-any-return]


def mlp(
    hidden: Annotated[Sequence[PositiveInt], "widths of the hidden layers"] = (64, 64),
    dropout: Annotated[BelowOne, "probability of dropping a feature in training"] = 0.0,
) -> Callable[[Task], Classifier]:
    """Build a multilayer perceptron for tables."""
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
