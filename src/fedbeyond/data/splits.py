"""Who holds what: some domains are left out and never looked at in training, the others are shared out to sites."""

import numpy as np
import torch

from ..errors import ConfigError, DataError
from .domains import Domains
from .site import Split, derive

FEWEST = 4  # images that a client needs: some to train on, one to validate with


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


def unseen_domains(target: str | None) -> tuple[str, ...]:
    """The domains that a target names."""
    return tuple(target.split("+")) if target else ()


def leave_out(
    domains: Domains,
    target: str | None,
    validation: float,
    seed: int,
    clients: int = 1,
    skew: float | None = None,
) -> tuple[dict[str, dict[str, Split]], dict[str, Split]]:
    """The sites' data, each with a `train` and a `val` split; and the whole of each domain that is left out.

    A domain is one site, or `clients` of them, among whom its labels are spread evenly or with a Dirichlet `skew`.
    """
    sites = {}
    for domain in sources(sorted(domains.images), target):
        parts = shares(domains.images[domain], clients, skew, domain, seed)
        for name, split in parts.items():
            sites[name] = cut(split, validation, name, seed)
    unseen = {name: domains.images[name] for name in unseen_domains(target)}
    if domains.complete is None:
        return sites, unseen
    filled = {
        name: {kind: domains.complete(part, own["train"]) for kind, part in own.items()} for name, own in sites.items()
    }
    return filled, {name: domains.complete(split, split) for name, split in unseen.items()}


def shares(split: Split, clients: int, skew: float | None, domain: str, seed: int) -> dict[str, Split]:
    """A domain's images shared out among clients; each class by proportions of its own if there is a `skew`."""
    if clients == 1:
        return {domain: split}
    x, y = split
    rng = np.random.default_rng(derive(seed, "shares", domain))
    for _ in range(1000):
        held: list[list[int]] = [[] for _ in range(clients)]
        for label in range(int(y.max()) + 1):
            index = rng.permutation(torch.nonzero(y == label).flatten().numpy())
            parts = np.full(clients, 1 / clients) if skew is None else rng.dirichlet(np.full(clients, skew))
            cuts = np.round(np.cumsum(parts)[:-1] * len(index)).astype(int)
            for mine, more in zip(held, np.split(index, cuts), strict=True):
                mine.extend(more.tolist())
        if min(map(len, held)) >= FEWEST:
            width = len(str(clients - 1))
            picked = [torch.tensor(sorted(mine)) for mine in held]
            return {f"{domain}-{i:0{width}}": (x[index], y[index]) for i, index in enumerate(picked)}
    raise DataError(
        f"domain {domain!r} has {len(y)} images: too few for {clients} clients of at least {FEWEST} each "
        f"with label_skew {skew}; lower train.clients_per_domain or raise train.label_skew"
    )


def cut(split: Split, validation: float, name: str, seed: int) -> dict[str, Split]:
    """A site's images shuffled and cut in two."""
    x, y = split
    held = max(1, round(len(y) * validation))
    if held >= len(y):
        raise DataError(f"{name!r} has {len(y)} images: too few to keep {validation:.0%} for validation")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(derive(seed, "split", name)))
    train, val = order[held:], order[:held]
    return {"train": (x[train], y[train]), "val": (x[val], y[val])}
