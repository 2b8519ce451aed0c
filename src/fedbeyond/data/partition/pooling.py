"""Pool the data of all sites, which no federation can do: for reference methods that see all data."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...images import Split, View


def pool(
    sites: Mapping[str, Mapping[str, Split]], client_domains: Mapping[str, str] | None = None
) -> tuple[dict[str, Split], Tensor]:
    """Join the splits of all sites; also return the domain number of each training image.

    `client_domains` maps a site to its domain, where the site is not named after it.
    """
    splits = {part: join_splits([data[part] for data in sites.values()]) for part in ("train", "val")}
    domains = [(client_domains or {}).get(name, name) for name in sites]
    numbers = {domain: number for number, domain in enumerate(dict.fromkeys(domains))}
    sizes = torch.tensor([len(data["train"][1]) for data in sites.values()])
    return splits, torch.repeat_interleave(torch.tensor([numbers[domain] for domain in domains]), sizes)


def join_splits(splits: Sequence[Split]) -> Split:
    """Join several splits into one; images are not copied."""
    images = [x if isinstance(x, View) else View([x], [torch.arange(len(x))]) for x, _ in splits]
    sources, rows = zip(*(part for view in images for part in view.parts), strict=True)
    return View(sources, rows), torch.cat([labels for _, labels in splits])
