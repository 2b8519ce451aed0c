"""Who holds what, as rows: what each client trains, validates and is tested on, and what is unseen."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from ...images import Domains, Split, View

Rows = Mapping[str, np.ndarray]  # rows by the domain that they are of


class Holding(NamedTuple):
    """The rows of one client."""

    domain: str  # that it stands for
    train: Rows
    val: Rows
    test: Mapping[str, np.ndarray] = {}  # kept apart from both


class Division(NamedTuple):
    """The clients by name, and the rows of each domain that is left out."""

    clients: Mapping[str, Holding]
    tests: Rows


def hand_out(domains: Domains, division: Division) -> tuple[dict[str, dict[str, Split]], dict[str, Split]]:
    """The clients' images, each a `train` and a `val` split; and those of each domain that is left out."""
    sites = {}
    for name, holding in division.clients.items():
        train, val = taken(domains, holding.train), taken(domains, holding.val)
        sites[name] = {"train": completed(domains, train, train), "val": completed(domains, val, train)}
    unseen = {domain: taken(domains, {domain: rows}) for domain, rows in division.tests.items()}
    return sites, {domain: completed(domains, split, split) for domain, split in unseen.items()}


def own_tests(domains: Domains, division: Division) -> dict[str, Split]:
    """What each client kept apart: images of its own domain that nobody trains on or chooses by."""
    return {
        name: completed(domains, taken(domains, holding.test), taken(domains, holding.train))
        for name, holding in division.clients.items()
        if holding.test
    }


def completed(domains: Domains, split: Split, own: Split) -> Split:
    """A split with its gaps filled by what the site knows of its `own` training rows; images have none."""
    if domains.complete is None:
        return split
    (x, y), (mine, labels) = split, own
    return domains.complete((x[:], y), (mine[:], labels))


def taken(domains: Domains, rows: Rows) -> Split:
    """Some rows of some domains; the images themselves stay where they are."""
    picked = {domain: torch.from_numpy(np.asarray(some, np.int64)) for domain, some in rows.items()}
    images = View([domains.images[domain][0] for domain in picked], list(picked.values()))
    return images, torch.cat([domains.images[domain][1][some] for domain, some in picked.items()])


def everything(domains: Domains, domain: str) -> np.ndarray:
    """All rows of a domain."""
    return np.arange(len(domains.images[domain][1]))


def by_class(domains: Domains, rows: Rows) -> list[int]:
    """Count the samples of each class among some rows."""
    labels = [domains.images[domain][1][torch.from_numpy(np.asarray(some, np.int64))] for domain, some in rows.items()]
    every = torch.cat(labels) if labels else torch.zeros(0, dtype=torch.int64)
    counts: list[int] = torch.bincount(every, minlength=len(domains.classes)).tolist()
    return counts


def count(rows: Rows) -> int:
    """How many rows there are."""
    return sum(len(some) for some in rows.values())
