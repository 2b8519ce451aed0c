"""The kinds of figures that need a run's model and data; listed here without importing torch."""

from typing import NamedTuple


class Kind(NamedTuple):
    """What a figure shows, and how many runs it takes."""

    about: str
    most: int  # runs in one figure
    least: int = 1
    seeds: bool = False  # whether further seeds may stand in where methods are too few


KINDS = {
    "surface": Kind("loss and accuracy on the plane through three models", 3, 3, seeds=True),
    "tsne": Kind("what a model sees in images, by class and by domain", 1),
    "cam": Kind("where models look in images of the unseen domain", 6),
    "generated": Kind("images that feddag, ndag, ddaig or ats generate", 1),
    "gap": Kind("how far the styles of domains are apart", 1),
}
