"""The outputs of a network's frozen layers instead of images, if they are computed once for each image."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import timer
from .._method import Method
from ..batch import Batch, CachedCopies
from ..data.storage.features import Features
from ..images import Split
from ..networks.part import why_images
from ..networks.prefix import tail_in
from ..site import COPIES, derive
from . import registry
from .build import Assembly

Splits = dict[str, dict[str, Split]]  # of each client, by part


class Outputs(NamedTuple):
    """What computes and caches outputs: of images, and of augmented copies of training images."""

    plain: Features
    copies: Features | None = None

    def of_site(self, splits: Mapping[str, Split]) -> dict[str, Split]:
        """Return the splits of a site with outputs instead of images; with copies, if they are cached."""
        with timer.section("data"):
            found = {part: self.plain.of(split) for part, split in splits.items()}
            return found | ({COPIES: self.copies.of(splits["train"])} if self.copies and "train" in splits else {})

    def require_space(self, *splits: Mapping[str, Split]) -> None:
        """Report how much is computed, and raise if the disk has too little space."""
        needed = self.plain.require_space([split for parts in splits for split in parts.values()])
        if self.copies:
            self.copies.require_space([parts["train"] for parts in splits if "train" in parts], needed)

    def of_all(
        self, splits: Splits, unseen: Mapping[str, Split], tests: Mapping[str, Split]
    ) -> tuple[Splits, dict[str, Split], dict[str, Split]]:
        """Return the splits of all sites, of the unseen domains and of the local tests with outputs."""
        self.require_space(*splits.values(), unseen, tests)
        sites = {name: self.of_site(parts) for name, parts in splits.items()}
        return sites, self._of(unseen), self._of(tests)

    def _of(self, splits: Mapping[str, Split]) -> dict[str, Split]:
        return {name: self.plain.of(split) for name, split in splits.items()}


def outputs_of(method: Method, net: nn.Module, frozen: str, device: str) -> Outputs | None:
    """Return what computes the inputs of networks, whose frozen part has a digest; None if they get images."""
    tail = tail_in(net)
    if tail is None:
        return None
    shape, name, prefix = tail.cut.shape, f"{frozen} {tail.cut.prefix}", tail.prefix
    plain = Features(lambda x, start: prefix(x), shape, name, device)
    augment = method.augment
    if not isinstance(augment, CachedCopies):
        return Outputs(plain)

    def copies(x: Tensor, start: int) -> Tensor:
        rng = torch.Generator().manual_seed(derive("copies", augment.name, start))  # the same in all runs
        labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return torch.stack([prefix(augment.make(Batch(x, labels), rng).x) for _ in range(augment.number)], 1)

    return Outputs(plain, Features(copies, (augment.number, *shape), f"{augment.name} {name}", device))


def why_uncached(assembly: Assembly) -> str:
    """Return why frozen layers are computed in every round though `train.part` allows once; empty if they are not."""
    part = registry.make_one("parts", assembly.config.train.part)
    if not part.cache or tail_in(assembly.nets["model"]):
        return ""
    return why_images(assembly.method) or "the network cannot be cut between frozen and trained layers"
