"""The data of all sites in one place, as no federation has them: for references that may see everything."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...images import Split, View


def pool(
    sites: Mapping[str, Mapping[str, Split]], homes: Mapping[str, str] | None = None
) -> tuple[dict[str, Split], Tensor]:
    """The splits of all sites as those of one, and the number of the domain that each training image is of.

    `homes` says which domain a site stands for, where it is not its name.
    """
    splits = {part: together([data[part] for data in sites.values()]) for part in ("train", "val")}
    domains = [(homes or {}).get(name, name) for name in sites]
    numbers = {domain: place for place, domain in enumerate(dict.fromkeys(domains))}
    sizes = torch.tensor([len(data["train"][1]) for data in sites.values()])
    return splits, torch.repeat_interleave(torch.tensor([numbers[domain] for domain in domains]), sizes)


def together(splits: Sequence[Split]) -> Split:
    """Several splits as one; images stay where they are."""
    images = [x if isinstance(x, View) else View([x], [torch.arange(len(x))]) for x, _ in splits]
    sources, rows = zip(*(part for view in images for part in view.parts), strict=True)
    return View(sources, rows), torch.cat([labels for _, labels in splits])
