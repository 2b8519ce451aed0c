"""The kinds of figures that need a run's model and data; listed here without importing torch."""

from typing import NamedTuple


class Kind(NamedTuple):
    """What a figure shows, and how many runs it needs."""

    about: str
    max_runs: int  # runs in one figure
    min_runs: int = 1
    seeds: bool = False  # whether further seeds are used if there are too few methods


KINDS = {
    "surface": Kind("loss and accuracy on the plane through three models", 3, 3, seeds=True),
    "tsne": Kind("features of a model, by class and by domain", 1),
    "cam": Kind("where models look in images of the unseen domain", 6),
    "generated": Kind("images that feddag, ndag, ddaig or ats generate", 1),
    "gap": Kind("how far the styles of domains are apart", 1),
}
