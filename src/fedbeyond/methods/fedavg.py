"""Communication-Efficient Learning of Deep Networks from Decentralized Data.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas; AISTATS 2017; https://arxiv.org/abs/1602.05629

Every site trains the model it received on its own data; the server takes the mean of what comes back,
weighted by the number of images a site trained on, or of equal weight for all.
"""

from typing import Literal

from ..client import training
from ..losses import cross_entropy
from ..method import Method
from ..optimizers import Optimizer, plain_sgd
from ..server import averaging, by_size, uniform

PRESETS = {"paper": {"weighting": "size"}, "official": {"weighting": "uniform"}}


def fedavg(weighting: Literal["size", "uniform"] = "size", optimizer: Optimizer = plain_sgd) -> Method:
    """Federated averaging."""
    return Method(
        client=training(cross_entropy(), optimizer=optimizer),
        server=averaging,
        weighting=by_size if weighting == "size" else uniform,
        sums=True,
    )
