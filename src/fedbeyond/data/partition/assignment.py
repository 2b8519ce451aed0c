"""A partition as row numbers: training, validation and test rows of each client, and the rows of unseen domains."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from ...images import Dataset, Split, View

Rows = Mapping[str, np.ndarray]  # row numbers by domain


class ClientRows(NamedTuple):
    """The rows of one client."""

    domain: str  # the domain that the client represents
    train: Rows
    val: Rows
    test: Mapping[str, np.ndarray] = {}  # used for neither training nor validation


class Partition(NamedTuple):
    """The rows of each client, and the rows of each unseen domain."""

    clients: Mapping[str, ClientRows]
    tests: Rows


def build_splits(domains: Dataset, partition: Partition) -> tuple[dict[str, dict[str, Split]], dict[str, Split]]:
    """Return the `train` and `val` split of each client, and the split of each unseen domain."""
    sites = {}
    for name, rows in partition.clients.items():
        train, val = select_rows(domains, rows.train), select_rows(domains, rows.val)
        sites[name] = {"train": preprocess_split(domains, train, train), "val": preprocess_split(domains, val, train)}
    unseen = {domain: select_rows(domains, {domain: rows}) for domain, rows in partition.tests.items()}
    return sites, {domain: preprocess_split(domains, split, split) for domain, split in unseen.items()}


def local_tests(domains: Dataset, partition: Partition) -> dict[str, Split]:
    """Return the local test split of each client that has one; it is used for neither training nor selection."""
    return {
        name: preprocess_split(domains, select_rows(domains, rows.test), select_rows(domains, rows.train))
        for name, rows in partition.clients.items()
        if rows.test
    }


def preprocess_split(domains: Dataset, split: Split, train: Split) -> Split:
    """Fill in missing values of a split from the site's training split; images are returned unchanged."""
    if domains.complete is None:
        return split
    (x, y), (train_x, train_y) = split, train
    return domains.complete((x[:], y), (train_x[:], train_y))


def select_rows(domains: Dataset, rows: Rows) -> Split:
    """Return a view of some rows of some domains, with their labels; images are not copied."""
    indices = {domain: torch.from_numpy(np.asarray(index, np.int64)) for domain, index in rows.items()}
    images = View([domains.images[domain][0] for domain in indices], list(indices.values()))
    return images, torch.cat([domains.images[domain][1][index] for domain, index in indices.items()])


def all_rows(domains: Dataset, domain: str) -> np.ndarray:
    """Return all row numbers of a domain."""
    return np.arange(len(domains.images[domain][1]))


def class_counts(domains: Dataset, rows: Rows) -> list[int]:
    """Count the samples of each class among some rows."""
    labels = select_rows(domains, rows)[1] if rows else torch.zeros(0, dtype=torch.int64)
    counts: list[int] = torch.bincount(labels, minlength=len(domains.classes)).tolist()
    return counts


def count_rows(rows: Rows) -> int:
    """Count rows over all domains."""
    return sum(len(index) for index in rows.values())
