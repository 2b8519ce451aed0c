"""A network for tables: each row a vector of numbers."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from ..classifier import Classifier, Task
from ..errors import ConfigError


class Perceptron(Classifier):
    """Linear layers with ReLU between them, and a linear head on the last."""

    attentive = False  # there are no maps to weigh

    def maps(self, x: Tensor) -> Tensor:
        """A table has no places that a network could look at."""
        raise ConfigError("mlp is for tables, which have no feature maps; take a method that does not ask for them")

    def features(self, x: Tensor) -> Tensor:
        """What the head sees."""
        return self.body(x)  # type: ignore[no-any-return]


def mlp(
    hidden: Sequence[Annotated[int, Field(gt=0)]] = (64, 64), dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
) -> Callable[[Task], Classifier]:
    """Linear layers of the widths `hidden`, for tables."""
    if not hidden:
        raise ValueError("hidden=[] leaves no layer; give the widths of one or more, as in hidden=[64, 64]")
    return partial(_mlp, tuple(hidden), dropout)


def _mlp(hidden: tuple[int, ...], dropout: float, task: Task) -> Classifier:
    if len(task.shape) != 1:
        given = " x ".join(map(str, task.shape))
        raise ConfigError(f"mlp is for tables, these data are images of {given}; take convnet for them")
    body = nn.Sequential()
    for wide, out in pairwise((task.shape[0], *hidden)):
        body.append(nn.Linear(wide, out))
        body.append(nn.ReLU(inplace=True))
        if dropout:
            body.append(nn.Dropout(dropout))
    return Perceptron(body, hidden[-1], len(task.classes))
