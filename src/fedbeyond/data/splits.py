"""Who holds what: one domain is left out and never looked at in training, each other one is a site."""

import torch

from ..errors import ConfigError, DataError
from .domains import Domains
from .site import Split, derive


def leave_one_out(
    domains: Domains, target: str | None, validation: float, seed: int
) -> tuple[dict[str, dict[str, Split]], Split]:
    """The sites' data, each with a `train` and a `val` split; and the whole of the target domain."""
    names = sorted(domains.images)
    if len(names) < 2:
        raise DataError(
            f"{len(names)} domain found ({', '.join(names)}); one to leave out and one to train on are needed"
        )
    if target not in domains.images:
        given = "no target given" if target is None else f"no domain {target!r}"
        raise ConfigError(f"{given}; choose the unseen domain among {', '.join(names)} (--target {names[0]})")
    sources = {name: domains.images[name] for name in names if name != target}
    return {name: cut(split, validation, name, seed) for name, split in sources.items()}, domains.images[target]


def cut(split: Split, validation: float, name: str, seed: int) -> dict[str, Split]:
    """A domain's images shuffled and cut in two."""
    x, y = split
    held = max(1, round(len(y) * validation))
    if held >= len(y):
        raise DataError(f"domain {name!r} has {len(y)} images: too few to keep {validation:.0%} for validation")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(derive(seed, "split", name)))
    train, val = order[held:], order[:held]
    return {"train": (x[train], y[train]), "val": (x[val], y[val])}
