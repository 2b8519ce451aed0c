"""The domain-mixing dial: clients that hold one domain each, an even mix of all, or anything between."""

import numpy as np

from ...site import derive

Array = np.ndarray


def mix(
    held: dict[str, Array], units: Array, domains: Array, labels: Array, share: float, seed: int
) -> dict[str, Array]:
    """Clients' rows after each has swapped a `share` of them with a common pool.

    Each client gives whole units (single images, or groups that stay together) and gets as many back. The pool is dealt
    by domain and class, so that what clients get is alike: with a share of 1 they differ by an image of each at most.
    """
    given, kept = {}, {}
    for name, rows in held.items():
        own, sizes = np.unique(units[rows], return_counts=True)
        order = np.random.default_rng(derive(seed, "mixing", name)).permutation(len(own))
        many = nearest(sizes[order], share * len(rows))
        given[name], kept[name] = own[order[:many]], own[order[many:]]
    dealt = deal(np.concatenate(list(given.values())), {name: len(gone) for name, gone in given.items()},
                 units, domains, labels, seed)  # fmt: skip
    every = np.sort(np.concatenate(list(held.values())))
    return {name: every[np.isin(units[every], np.concatenate((kept[name], dealt[name])))] for name in held}


def deal(
    pool: Array, wanted: dict[str, int], units: Array, domains: Array, labels: Array, seed: int
) -> dict[str, Array]:
    """A pool of units in parts of the `wanted` sizes that are as alike as can be."""
    pool = np.random.default_rng(derive(seed, "mixing")).permutation(np.sort(pool))
    _, first = np.unique(units, return_index=True)  # units are numbered 0, 1, ...: a unit's first row tells its kind
    pool = pool[np.lexsort((labels[first[pool]], domains[first[pool]]))]
    turns = np.concatenate([(np.arange(many) + 0.5) / max(many, 1) for many in wanted.values()])
    whose = np.repeat(np.arange(len(wanted)), list(wanted.values()))
    whose = whose[np.argsort(turns, kind="stable")]  # each client's turns are spread evenly over the pool
    return {name: pool[whose == place] for place, name in enumerate(wanted)}


def nearest(sizes: Array, wanted: float, least: int = 0) -> int:
    """How many of the first sizes come nearest to a sum, `least` at least."""
    sums = np.concatenate(([0], np.cumsum(sizes)))[least:]
    return least + int(np.abs(sums - wanted).argmin())
