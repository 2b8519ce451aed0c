"""Who holds what: some domains are left out and never looked at in training, the others are shared out to clients."""

from typing import Literal, NamedTuple

import numpy as np
import torch

from ...errors import ConfigError, DataError
from ...images import Domains
from ...site import derive
from ...spec import unseen_domains
from .assignment import Division, Holding, Rows, everything
from .mixing import mix, nearest

FEWEST = 4  # images that a client needs: some to train on, one to validate with

Array = np.ndarray


class Rules(NamedTuple):
    """How the images of the domains that take part are shared out, and which of the others are unseen."""

    validation: float | Literal["field"] = 0.1  # a share, or the field's own
    clients: int = 1  # of each domain
    skew: float | None = None  # Dirichlet's concentration; None: labels spread evenly
    mixing: float = 0.0  # share of each client's images that is swapped with the other clients'
    disjoint: Literal["groups"] | None = None  # what stays together
    target_part: Literal["whole", "test"] = "whole"
    test: float | Literal["field"] = 0.0  # of the clients' own images; a share, or the field's own


PLAIN = Rules()


def sources(names: list[str], target: str | None) -> list[str]:
    """The domains that take part when `target` (several with a plus between them) does not."""
    if len(names) < 2:
        raise DataError(
            f"{len(names)} domain found ({', '.join(names)}); one to leave out and one to train on are needed"
        )
    unseen = unseen_domains(target)
    wrong = [name for name in unseen if name not in names]
    if wrong or not unseen:
        given = f"no domain {wrong[0]!r}" if wrong else "no target given"
        raise ConfigError(f"{given}; choose the unseen domain among {', '.join(names)} (--target {names[0]})")
    if set(names) == set(unseen):
        raise ConfigError(f"target {target!r} leaves no domain to train on; leave out fewer of {', '.join(names)}")
    return [name for name in names if name not in unseen]


def divide(domains: Domains, target: str | None, seed: int, rules: Rules = PLAIN) -> Division:
    """Which rows each client trains and validates on, and which are unseen.

    A domain is one client, or several, among whom its labels are spread evenly or with a Dirichlet skew; then clients
    swap images as far as `mixing` says; then each keeps some apart for a test, and some for validation.
    """
    clients = holdings(domains, sources(sorted(domains.images), target), seed, rules)
    return Division(clients, {name: left_out(domains, name, rules) for name in unseen_domains(target)})


def left_out(domains: Domains, domain: str, rules: Rules) -> Array:
    """The rows of a domain that takes no part: all, or the field's own test part."""
    return everything(domains, domain) if rules.target_part == "whole" else fold(domains, domain, "test", WHOLE)


def holdings(domains: Domains, own: list[str], seed: int, rules: Rules) -> dict[str, Holding]:
    """What the clients of the domains `own` hold; without mixing it does not depend on other domains."""
    table = Table.of(domains, own, rules)
    held, homes = {}, {}
    for place, domain in enumerate(own):
        rows = np.flatnonzero((table.domain == place) & (table.fold != UNUSED))
        for name, some in shares(table.label[rows], rules.clients, rules.skew, domain, seed, table.unit[rows]).items():
            held[name], homes[name] = rows[some], domain
    if rules.mixing:
        held = mix(held, table.unit, table.domain, table.label, rules.mixing, seed)
    clients = {}
    for name, rows in held.items():
        rest, test = kept_apart(table, rows, rules, name, seed)
        if rules.validation == "field":
            train, val = by_field(table.fold[rest], name)
        else:
            train, val = cut(table.unit[rest], rules.validation, name, seed, of=len(rows))
        parts = (table.by_domain(own, some) for some in (rest[train], rest[val], test))
        clients[name] = Holding(homes[name], *parts)
    return clients


WHOLE = "train.target_part = 'whole'"
UNUSED, TRAIN, VAL, TEST = -1, 0, 1, 2


class Table(NamedTuple):
    """All images of the domains that take part, one after another, and what decides where each goes."""

    domain: Array  # place in the list of domains
    row: Array
    label: Array
    unit: Array  # images of one unit stay together
    fold: Array

    @classmethod
    def of(cls, domains: Domains, own: list[str], rules: Rules) -> "Table":
        """The images of the domains `own`."""
        columns: list[list[Array]] = [[], [], [], [], []]
        units = 0
        for place, domain in enumerate(own):
            row = everything(domains, domain)
            unit = row if rules.disjoint is None else grouped(domains, domain)
            part = np.full(len(row), TRAIN)
            if rules.validation == "field":
                part[:] = UNUSED
                part[fold(domains, domain, "train")], part[fold(domains, domain, "val")] = TRAIN, VAL
            if rules.test == "field":
                part[fold(domains, domain, "test", "a share, as in train.test = 0.1")] = TEST
            label = domains.images[domain][1].numpy()
            for column, more in zip(columns, (np.full(len(row), place), row, label, unit + units, part), strict=True):
                column.append(more)
            units += int(unit.max(initial=-1)) + 1
        return cls(*(np.concatenate(column) for column in columns))

    def by_domain(self, own: list[str], index: Array) -> Rows:
        """Some images as rows of their domains."""
        places = self.domain[index]
        return {own[place]: self.row[index[places == place]] for place in np.unique(places)}


def grouped(domains: Domains, domain: str) -> Array:
    """The number of each image's group."""
    groups = domains.note(domain).groups
    if not groups:
        raise DataError(
            f"train.disjoint = 'groups' keeps the images of a patient, case or slide together, and nothing says which "
            f"images of {domain!r} belong together; leave train.disjoint out, or use data that say it"
        )
    return np.unique(np.array(groups), return_inverse=True)[1]


def kept_apart(table: Table, rows: Array, rules: Rules, name: str, seed: int) -> tuple[Array, Array]:
    """A client's rows without, and those for, a test of its own; none by default."""
    if rules.test == "field":
        own = table.fold[rows] == TEST
        if not own.any():
            raise DataError(
                f"{name!r} holds no image of the field's 'test' part; lower train.clients_per_domain, or take a share, "
                "as in train.test = 0.2"
            )
        return rows[~own], rows[own]
    if not rules.test:
        return rows, rows[:0]
    rest, test = cut(table.unit[rows], rules.test, name, seed, "test")
    return rows[rest], rows[test]


def fold(domains: Domains, domain: str, part: str, instead: str = "a share, as in train.validation = 0.1") -> Array:
    """The rows of a part of the field's own split."""
    folds = domains.note(domain).folds
    if not len(folds.get(part, ())):
        has = f"its parts are {', '.join(folds)}" if folds else "it comes with no split"
        raise DataError(f"domain {domain!r} has no {part!r} part of the field's own: {has}; take {instead}")
    return np.asarray(folds[part])


def shares(
    labels: Array, clients: int, skew: float | None, domain: str, seed: int, units: Array | None = None
) -> dict[str, Array]:
    """A domain's rows shared out among clients; each class by proportions of its own if there is a `skew`.

    Rows of one unit go to one client; a unit counts for the class that most of its rows have.
    """
    if clients == 1:
        return {domain: np.arange(len(labels))}
    unit = np.arange(len(labels)) if units is None else np.unique(units, return_inverse=True)[1]
    common = majority(unit, labels)
    rng = np.random.default_rng(derive(seed, "shares", domain))
    for _ in range(1000):
        held: list[list[int]] = [[] for _ in range(clients)]
        for label in range(int(labels.max()) + 1):
            index = rng.permutation(np.flatnonzero(common == label))
            parts = np.full(clients, 1 / clients) if skew is None else rng.dirichlet(np.full(clients, skew))
            cuts = np.round(np.cumsum(parts)[:-1] * len(index)).astype(int)
            for mine, more in zip(held, np.split(index, cuts), strict=True):
                mine.extend(more.tolist())
        rows = [np.flatnonzero(np.isin(unit, mine)) for mine in held]
        if min(map(len, rows)) >= FEWEST and min(map(len, held)) > 1:  # two units: one for each side
            width = len(str(clients - 1))
            return {f"{domain}-{i:0{width}}": some for i, some in enumerate(rows)}
    raise DataError(
        f"domain {domain!r} has {len(labels)} images: too few for {clients} clients of at least {FEWEST} each "
        f"with label_skew {skew}; lower train.clients_per_domain or raise train.label_skew"
    )


def majority(units: Array, labels: Array) -> Array:
    """The label that most rows of each unit have."""
    classes = int(labels.max()) + 1
    kinds, counts = np.unique(units * classes + labels, return_counts=True)
    order = np.lexsort((counts, kinds // classes))  # the last of each unit is its most frequent
    common = np.empty(int(units.max()) + 1, np.int64)
    common[kinds[order] // classes] = kinds[order] % classes
    return common


def cut(
    units: Array, share: float, name: str, seed: int, what: str = "validation", of: int | None = None
) -> tuple[Array, Array]:
    """A client's rows shuffled and cut in two, the second for validation (or a test); a unit stays on one side.

    The share is that `of` so many rows, where some were taken away before.
    """
    held = max(1, round((of or len(units)) * share))
    _, unit, sizes = np.unique(units, return_inverse=True, return_counts=True)
    if held >= len(units) or len(sizes) < 2:
        raise DataError(
            f"{name!r} has {len(units)} images{f' in {len(sizes)} groups' if len(sizes) < len(units) else ''}: "
            f"too few to keep {share:.0%} for {what}"
        )
    stream = "split" if what == "validation" else what
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(derive(seed, stream, name))).numpy()
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    rows, first = np.argsort(place[unit], kind="stable"), nearest(sizes[order][:-1], held, least=1)
    ends = int(sizes[order][:first].sum())
    return rows[ends:], rows[:ends]


def by_field(folds: Array, name: str) -> tuple[Array, Array]:
    """A client's rows for training and validation as the field cuts them."""
    train, val = np.flatnonzero(folds == TRAIN), np.flatnonzero(folds == VAL)
    if not len(train) or not len(val):
        raise DataError(
            f"{name!r} holds {len(train)} images of the field's 'train' part and {len(val)} of 'val', and needs some "
            f"of both; lower train.clients_per_domain, or take a share, as in train.validation = 0.1"
        )
    return train, val
