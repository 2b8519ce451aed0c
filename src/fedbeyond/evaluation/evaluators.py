"""Who judges the global model, and what a line says of it: sites on what they keep apart, guests on all they have.

The same functions measure here and on machines elsewhere, so that lines are equal wherever images are.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from ..images import Split
from ..server import Failure
from ..tree import Tree
from .metrics import on_average

Models = Mapping[str, Tree]  # one, or one of each client: then the mean of their measures is meant


class Judgement(NamedTuple):
    """How good the models are wherever somebody looked, and who should have looked but did not."""

    scores: dict[str, Any]
    aside: list[Failure]


Judges = Callable[[Models, int], Judgement]  # of models after a round


def measured(net: nn.Module, models: Models, name: str, splits: Mapping[str, Split]) -> dict[str, Any]:
    """What a site measures on its splits; its in-domain test is of its own model alone, where it has one."""
    every, scores = list(models.values()), {}
    for part, split in splits.items():
        own = part == "own_test" and name in models
        scores[part] = on_average(net, [models[name]] if own else every, split)
    return scores


def of_a_client(found: Mapping[str, Any], name: str, home: str, images: Mapping[str, int]) -> dict[str, Any]:
    """Describe a client in a result line: its scores and number of validation images; its domain if it shares one."""
    several = home != name
    scores = {"val": found["val"], "images": images["val"]} | ({"domain": home} if several else {})
    if "own_test" in found:
        scores |= {"own_test": found["own_test"]} | ({"own_images": images["own_test"]} if several else {})
    return scores


Splits = Mapping[str, Mapping[str, Split]]  # by who judges, by part


def judged(vals: Mapping[str, Split], tests: Mapping[str, Split], owns: Mapping[str, Split]) -> Splits:
    """What there is to judge models on, where everybody's images are here."""
    clients = {name: {"val": val} | ({"own_test": owns[name]} if name in owns else {}) for name, val in vals.items()}
    return clients | {name: {"test": test} for name, test in tests.items()}


def together(found: Mapping[str, dict[str, Any]], splits: Splits, homes: Mapping[str, str]) -> Judgement:
    """What all have found, as a line says it."""
    scores = {}
    for name, parts in splits.items():
        images = {part: len(split[1]) for part, split in parts.items()}
        own = "val" in parts
        scores[name] = of_a_client(found[name], name, homes[name], images) if own else found[name]
    return Judgement(scores, [])


def judges_here(net: nn.Module, splits: Splits, homes: Mapping[str, str]) -> Judges:
    """Judges that have everybody's images before them."""
    return lambda models, number: together(
        {name: measured(net, models, name, parts) for name, parts in splits.items()}, splits, homes
    )
