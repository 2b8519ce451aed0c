"""Partition a dataset: leave domains out as unseen, and divide the others among clients."""

from difflib import get_close_matches
from typing import Literal, NamedTuple

import numpy as np
import torch

from ...errors import ConfigError, DataError
from ...images import Dataset
from ...site import derive
from ...spec import unseen_domains
from .assignment import ClientRows, Partition, Rows, all_rows
from .mixing import mix, nearest

MIN_IMAGES = 4  # of a client: some to train on, one to validate with

Array = np.ndarray


class Rules(NamedTuple):
    """Options of a partition: how source domains are divided among clients, and which target images are unseen."""

    validation: float | Literal["official"] = 0.1  # a share, or the dataset's official split
    clients: int = 1  # of each domain
    skew: float | None = None  # concentration of the Dirichlet distribution; None: labels are spread evenly
    mixing: float = 0.0  # share of each client's images that is exchanged with other clients
    disjoint: Literal["groups"] | None = None  # what stays together
    target_part: Literal["whole", "test"] = "whole"
    test: float | Literal["official"] = 0.0  # of each client's images; a share, or the dataset's official split


PLAIN = Rules()


def source_domains(names: list[str], target: str | None) -> list[str]:
    """Return the domains that remain when `target` (several are joined by a plus) is unseen."""
    if len(names) < 2:
        raise DataError(
            f"{len(names)} domain found ({', '.join(names)}); one to leave out and one to train on are needed"
        )
    unseen = unseen_domains(target)
    wrong = [name for name in unseen if name not in names]
    if wrong or not unseen:
        given = f"no domain {wrong[0]!r}" if wrong else "no target given"
        example = (get_close_matches(wrong[0], names, 1, 0.5) if wrong else []) or names
        raise ConfigError(f"{given}; choose the unseen domain among {', '.join(names)} (as in target = {example[0]})")
    if len(set(unseen)) < len(unseen):
        raise ConfigError(f"target {target!r} names a domain twice; name each unseen domain once")
    if set(names) == set(unseen):
        raise ConfigError(f"target {target!r} leaves no domain to train on; leave out fewer of {', '.join(names)}")
    return [name for name in names if name not in unseen]


def divide(domains: Dataset, target: str | None, seed: int, rules: Rules = PLAIN) -> Partition:
    """Return the training and validation rows of each client, and the unseen rows.

    A domain is one client, or several; its labels are spread evenly among them or with a Dirichlet skew. Then clients
    exchange images according to `mixing`. Then each client reserves images for its local test and for validation.
    """
    clients = assign_clients(domains, source_domains(sorted(domains.images), target), seed, rules)
    return Partition(clients, {name: unseen_rows(domains, name, rules) for name in unseen_domains(target)})


def unseen_rows(domains: Dataset, domain: str, rules: Rules) -> Array:
    """Return the rows of an unseen domain that are tested: all, or its official test part."""
    if rules.target_part == "whole":
        return all_rows(domains, domain)
    return official_rows(domains, domain, "test", "train.target_part = 'whole'")


def assign_clients(domains: Dataset, names: list[str], seed: int, rules: Rules) -> dict[str, ClientRows]:
    """Return the rows of the clients of the named domains; without mixing, other domains do not change them."""
    table = Table.of(domains, names, rules)
    client_rows, domain_of = {}, {}
    for number, domain in enumerate(names):
        rows = np.flatnonzero((table.domain == number) & (table.fold != UNUSED))
        units = table.unit[rows]
        for client, part in split_rows(table.label[rows], rules.clients, rules.skew, domain, seed, units).items():
            client_rows[client], domain_of[client] = rows[part], domain
    if rules.mixing:
        client_rows = mix(client_rows, table.unit, table.domain, table.label, rules.mixing, seed)
    clients = {}
    for client, rows in client_rows.items():
        rest, test = cut_test(table, rows, rules, client, seed)
        if rules.validation == "official":
            train, val = official_split(table.fold[rest], client)
        else:
            train, val = cut(table.unit[rest], rules.validation, client, seed, of=len(rows))
        parts = (table.by_domain(names, part) for part in (rest[train], rest[val], test))
        clients[client] = ClientRows(domain_of[client], *parts)
    return clients


UNUSED, TRAIN, VAL, TEST = -1, 0, 1, 2


class Table(NamedTuple):
    """All images of the source domains in one list: columns by which they are assigned to clients and splits."""

    domain: Array  # index in the list of domains
    row: Array
    label: Array
    unit: Array  # images of one unit stay together
    fold: Array

    @classmethod
    def of(cls, domains: Dataset, names: list[str], rules: Rules) -> "Table":
        """Build the table of the named domains."""
        parts, units = [], 0
        for number, domain in enumerate(names):
            row = all_rows(domains, domain)
            unit = row if rules.disjoint is None else group_numbers(domains, domain)
            fold = np.full(len(row), TRAIN)
            if rules.validation == "official":
                fold[:] = UNUSED
                fold[official_rows(domains, domain, "train")], fold[official_rows(domains, domain, "val")] = TRAIN, VAL
            if rules.test == "official":
                fold[official_rows(domains, domain, "test", "a share, such as train.test = 0.1")] = TEST
            label = domains.images[domain][1].numpy()
            parts.append((np.full(len(row), number), row, label, unit + units, fold))
            units += int(unit.max(initial=-1)) + 1
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def by_domain(self, names: list[str], index: Array) -> Rows:
        """Return some images as rows of their domains."""
        numbers = self.domain[index]
        return {names[number]: self.row[index[numbers == number]] for number in np.unique(numbers)}


def group_numbers(domains: Dataset, domain: str) -> Array:
    """Return the group number of each image of a domain."""
    groups = domains.note(domain).groups
    if not groups:
        raise DataError(
            f"train.disjoint = 'groups' keeps the images of a patient, case or slide together, but domain {domain!r} "
            f"has no groups; name them, as in table(groups=patient), folder(groups='^(\\w+)_'), npz(groups=patient) or "
            f"from_arrays(..., groups=...), use camelyon17 or midog, which have them, or leave train.disjoint out"
        )
    return np.unique(np.array(groups), return_inverse=True)[1]


def cut_test(table: Table, rows: Array, rules: Rules, name: str, seed: int) -> tuple[Array, Array]:
    """Divide a client's rows into the rest and its local test; by default the test is empty."""
    if rules.test == "official":
        is_test = table.fold[rows] == TEST
        if not is_test.any():
            raise DataError(
                f"{name!r} has no image of the official 'test' part; lower train.clients_per_domain, or use a share, "
                "such as train.test = 0.2"
            )
        return rows[~is_test], rows[is_test]
    if not rules.test:
        return rows, rows[:0]
    rest, test = cut(table.unit[rows], rules.test, name, seed, "test")
    return rows[rest], rows[test]


def official_rows(
    domains: Dataset, domain: str, part: str, instead: str = "a share, such as train.validation = 0.1"
) -> Array:
    """Return the rows of a part of a domain's official split."""
    folds = domains.note(domain).folds
    if not len(folds.get(part, ())):
        has = f"its parts are {', '.join(folds)}" if folds else "it has no official split"
        raise DataError(f"domain {domain!r} has no official {part!r} part: {has}; use {instead}")
    return np.asarray(folds[part])


def split_rows(
    labels: Array, clients: int, skew: float | None, domain: str, seed: int, units: Array | None = None
) -> dict[str, Array]:
    """Divide a domain's rows among clients; with a `skew`, each class by proportions drawn for it.

    Rows of one unit go to one client; a unit counts as the class that most of its rows have.
    """
    if clients == 1:
        return {domain: np.arange(len(labels))}
    unit = np.arange(len(labels)) if units is None else np.unique(units, return_inverse=True)[1]
    common = majority(unit, labels)
    rng = np.random.default_rng(derive(seed, "shares", domain))
    for _ in range(1000 if clients * MIN_IMAGES <= len(labels) else 0):
        client_units: list[list[int]] = [[] for _ in range(clients)]
        for label in range(int(labels.max()) + 1):
            index = rng.permutation(np.flatnonzero(common == label))
            parts = np.full(clients, 1 / clients) if skew is None else rng.dirichlet(np.full(clients, skew))
            cuts = np.round(np.cumsum(parts)[:-1] * len(index)).astype(int)
            for assigned, more in zip(client_units, np.split(index, cuts), strict=True):
                assigned.extend(more.tolist())
        rows = [np.flatnonzero(np.isin(unit, assigned)) for assigned in client_units]
        if min(map(len, rows)) >= MIN_IMAGES and min(map(len, client_units)) > 1:  # two units: to train and validate
            width = len(str(clients - 1))
            return {f"{domain}-{i:0{width}}": part for i, part in enumerate(rows)}
    raise DataError(
        f"domain {domain!r} has {len(labels)} images: too few for {clients} clients of at least {MIN_IMAGES} each "
        f"with label_skew {skew}; lower train.clients_per_domain or raise train.label_skew"
    )


def majority(units: Array, labels: Array) -> Array:
    """Return the most frequent label of each unit."""
    classes = int(labels.max()) + 1
    pairs, counts = np.unique(units * classes + labels, return_counts=True)
    order = np.lexsort((counts, pairs // classes))  # the last of each unit is its most frequent
    common = np.empty(int(units.max()) + 1, np.int64)
    common[pairs[order] // classes] = pairs[order] % classes
    return common


def cut(
    units: Array, share: float, name: str, seed: int, what: str = "validation", of: int | None = None
) -> tuple[Array, Array]:
    """Shuffle a client's rows and cut a share off for validation (or a test); a unit stays on one side.

    The share is of `of` rows, if some rows were cut off before.
    """
    wanted = max(1, round((of or len(units)) * share))
    _, unit, sizes = np.unique(units, return_inverse=True, return_counts=True)
    if wanted >= len(units) or len(sizes) < 2:
        raise DataError(
            f"{name!r} has {len(units)} images{f' in {len(sizes)} groups' if len(sizes) < len(units) else ''}: "
            f"too few to keep {share:.0%} for {what}; add images, or lower train.clients_per_domain or the share"
        )
    stream = "split" if what == "validation" else what
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(derive(seed, stream, name))).numpy()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    rows, first = np.argsort(rank[unit], kind="stable"), nearest(sizes[order][:-1], wanted, least=1)
    end = int(sizes[order][:first].sum())
    return rows[end:], rows[:end]


def official_split(folds: Array, name: str) -> tuple[Array, Array]:
    """Return a client's training and validation rows according to the official split."""
    train, val = np.flatnonzero(folds == TRAIN), np.flatnonzero(folds == VAL)
    if not len(train) or not len(val):
        raise DataError(
            f"{name!r} has {len(train)} images of the official 'train' part and {len(val)} of 'val', and needs some "
            f"of both; lower train.clients_per_domain, or use a share, such as train.validation = 0.1"
        )
    return train, val
