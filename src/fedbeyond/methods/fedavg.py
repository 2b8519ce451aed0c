"""Communication-Efficient Learning of Deep Networks from Decentralized Data.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas; AISTATS 2017; https://arxiv.org/abs/1602.05629

Each site trains the received model on its own data. The server averages the trained models, weighted by the number of
training images of each site, or uniformly.
"""

from typing import Annotated, Literal

from .._method import Method
from ..client import training
from ..losses import cross_entropy
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, by_size, uniform

PRESETS = {"paper": {"weighting": "size"}, "official": {"weighting": "uniform"}}


def fedavg(
    weighting: Annotated[Literal["size", "uniform"], "weights of sites: number of training images, or equal"] = "size",
    optimizer: Optimizer = plain_sgd,
) -> Method:
    """Train at every site and average the models, weighted by training images or uniformly."""
    return Method(
        client=training(cross_entropy(), optimizer=optimizer),
        server=averaging,
        weighting=by_size if weighting == "size" else uniform,
        linear_aggregation=True,
        inputs_unchanged=True,
    )
