"""Who judges the global model, and what a line says of it: sites on what they keep apart, guests on all they have.

The same functions measure here and on machines elsewhere, so that lines are equal wherever images are.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from .data.images import Split
from .evaluate import on_average
from .gate import Failure
from .tree import Tree

Models = Mapping[str, Tree]  # one, or one of each client: then the mean of their measures is meant


class Judgement(NamedTuple):
    """How good the models are wherever somebody looked, and who should have looked but did not."""

    scores: dict[str, Any]
    aside: list[Failure]


Judges = Callable[[Models], Judgement]


def measured(net: nn.Module, models: Models, name: str, splits: Mapping[str, Split]) -> dict[str, Any]:
    """What a site measures on its splits; its in-domain test is of its own model alone, where it has one."""
    every, scores = list(models.values()), {}
    for part, split in splits.items():
        own = part == "own_test" and name in models
        scores[part] = on_average(net, [models[name]] if own else every, split)
    return scores


def of_a_client(found: Mapping[str, Any], name: str, home: str, images: Mapping[str, int]) -> dict[str, Any]:
    """What a line says of a client: with its domain and numbers of images if it is one of several."""
    several = home != name
    scores = {"val": found["val"]} | ({"domain": home, "images": images["val"]} if several else {})
    if "own_test" in found:
        scores |= {"own_test": found["own_test"]} | ({"own_images": images["own_test"]} if several else {})
    return scores


def judges_here(
    net: nn.Module,
    vals: Mapping[str, Split],
    tests: Mapping[str, Split],
    homes: Mapping[str, str],
    owns: Mapping[str, Split],
) -> Judges:
    """Judges that have everybody's images before them."""

    def judge(models: Models) -> Judgement:
        scores: dict[str, Any] = {}
        for name, val in vals.items():
            splits = {"val": val} | ({"own_test": owns[name]} if name in owns else {})
            images = {part: len(split[1]) for part, split in splits.items()}
            scores[name] = of_a_client(measured(net, models, name, splits), name, homes[name], images)
        return Judgement(scores | {name: measured(net, models, name, {"test": tests[name]}) for name in tests}, [])

    return judge
