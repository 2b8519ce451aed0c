"""Evaluate the global model: sites on their held-out samples, guests on all of theirs.

The simulator and remote sites use the same functions, so result lines are equal wherever the images are.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from ..images import Split
from ..server import Failure
from ..tree import Tree
from .metrics import evaluate_models

Models = Mapping[str, Tree]  # one model, or one per client: then the mean of their scores is reported


class Evaluation(NamedTuple):
    """The scores of the models by client or unseen domain, and who sent none: by failure, or by its policy."""

    scores: dict[str, Any]
    rejected: list[Failure]
    withheld: Mapping[str, str] = {}  # the reasons of sites whose policy lets no scores leave


Evaluator = Callable[[Models, int], Evaluation]  # (models, round) -> evaluation


def evaluate_at_site(net: nn.Module, models: Models, name: str, splits: Mapping[str, Split]) -> dict[str, Any]:
    """Evaluate models on a site's splits; the in-domain test uses only the site's own model, if there is one."""
    all_models, scores = list(models.values()), {}
    for part, split in splits.items():
        personal = part == "local_test" and name in models
        scores[part] = evaluate_models(net, [models[name]] if personal else all_models, split)
    return scores


def client_entry(scores: Mapping[str, Any], name: str, home: str, images: Mapping[str, int]) -> dict[str, Any]:
    """Return a client's entry of a result line: scores, number of validation images, and its domain if shared."""
    several = home != name
    entry = {"val": scores["val"], "images": images["val"]} | ({"domain": home} if several else {})
    if "local_test" in scores:
        entry |= {"local_test": scores["local_test"]}
        entry |= {"local_test_images": images["local_test"]} if several else {}
    return entry


Splits = Mapping[str, Mapping[str, Split]]  # client or unseen domain -> part -> split


def evaluation_splits(vals: Mapping[str, Split], tests: Mapping[str, Split], owns: Mapping[str, Split]) -> Splits:
    """Return the splits to evaluate models on, if all images are on this computer."""
    clients = {name: {"val": val} | ({"local_test": owns[name]} if name in owns else {}) for name, val in vals.items()}
    return clients | {name: {"test": test} for name, test in tests.items()}


def collect(scores: Mapping[str, dict[str, Any]], splits: Splits, client_domains: Mapping[str, str]) -> Evaluation:
    """Collect the scores of all clients and unseen domains as entries of a result line."""
    entries = {}
    for name, parts in splits.items():
        images = {part: len(split[1]) for part, split in parts.items()}
        is_client = "val" in parts
        entries[name] = client_entry(scores[name], name, client_domains[name], images) if is_client else scores[name]
    return Evaluation(entries, [])


def local_evaluator(net: nn.Module, splits: Splits, client_domains: Mapping[str, str]) -> Evaluator:
    """Return an evaluator for splits that are on this computer."""
    return lambda models, number: collect(
        {name: evaluate_at_site(net, models, name, parts) for name, parts in splits.items()}, splits, client_domains
    )
