"""Domain mixing: clients with one domain each, with an even mix of all domains, or anything between."""

import numpy as np

from ...site import derive

Array = np.ndarray


def mix(
    clients: dict[str, Array], units: Array, domains: Array, labels: Array, share: float, seed: int
) -> dict[str, Array]:
    """Return the rows of each client after it exchanges a `share` of its rows with a common pool.

    Each client gives whole units (single images, or groups that stay together) and receives as many. The pool is dealt
    by domain and class, so that clients receive similar units: with a share of 1 they differ by at most one image each.
    """
    given, kept = {}, {}
    for name, rows in clients.items():
        client_units, sizes = np.unique(units[rows], return_counts=True)
        order = np.random.default_rng(derive(seed, "mixing", name)).permutation(len(client_units))
        giving = nearest(sizes[order], share * len(rows))
        given[name], kept[name] = client_units[order[:giving]], client_units[order[giving:]]
    dealt = deal(np.concatenate(list(given.values())), {name: len(pooled) for name, pooled in given.items()},
                 units, domains, labels, seed)  # fmt: skip
    all_rows = np.sort(np.concatenate(list(clients.values())))
    return {name: all_rows[np.isin(units[all_rows], np.concatenate((kept[name], dealt[name])))] for name in clients}


def deal(
    pool: Array, wanted: dict[str, int], units: Array, domains: Array, labels: Array, seed: int
) -> dict[str, Array]:
    """Divide a pool of units into parts of the `wanted` sizes that have similar domains and classes."""
    pool = np.random.default_rng(derive(seed, "mixing")).permutation(np.sort(pool))
    _, first = np.unique(units, return_index=True)  # units are numbered 0, 1, ...: the first row of each
    pool = pool[np.lexsort((labels[first[pool]], domains[first[pool]]))]
    positions = np.concatenate([(np.arange(size) + 0.5) / max(size, 1) for size in wanted.values()])
    clients = np.repeat(np.arange(len(wanted)), list(wanted.values()))
    clients = clients[np.argsort(positions, kind="stable")]  # each client's positions are spread evenly over the pool
    return {name: pool[clients == index] for index, name in enumerate(wanted)}


def nearest(sizes: Array, wanted: float, least: int = 0) -> int:
    """Return how many of the first sizes, at least `least`, have the sum nearest to `wanted`."""
    sums = np.concatenate(([0], np.cumsum(sizes)))[least:]
    return least + int(np.abs(sums - wanted).argmin())
