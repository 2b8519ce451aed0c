"""The cache of what a frozen network computes for images, beside the cache of decoded images.

A file has one row for each image of a domain. Rows are computed in batches of one size, of which the last is filled up,
so that a row does not depend on how many images there are beside it. The name of a file is a digest of the images, the
frozen network and this machine's arithmetic. What an interrupted process has computed is used by the next one. Images
can be guessed from rows: as with the images themselves, only the user who computed rows can read them.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._io import PRIVATE_FOLDER, create_private, private_opener
from ..._progress import track
from ...errors import StorageError
from ...images import Images, Split, View, mapped, pixels, tensor_digest
from .cache import FEATURES, amount, digest, exclusive, home, report, restrict, storing

VERSION = 1  # of the computation
BATCH = 128  # images
RESERVE = 2**28  # bytes that stay free on the disk: whoever chose the features, a site can still write its logs


class Features(NamedTuple):
    """What turns images into rows, and its name."""

    compute: Callable[[Tensor, int], Tensor]  # from images as networks get them, and the number of the first one
    shape: tuple[int, ...]  # of a row
    name: str  # of the frozen network and the function that it computes
    device: str = "cpu"

    @property
    def row(self) -> int:
        """The number of bytes of a row."""
        return 4 * int(np.prod(self.shape))

    def of(self, split: Split) -> Split:
        """Return a split with rows instead of images; they are computed if they are not in the cache."""
        images, labels = split
        return self._rows(images), labels

    def _rows(self, images: Images) -> Images:
        if isinstance(images, View):
            return View([self.whole(source) for source in images.sources], [rows for _, rows in images.parts])
        return self.whole(images)

    def whole(self, images: Tensor) -> Tensor:
        """Return the rows of all images of a domain as a memory-mapped tensor."""
        shape = (len(images), *self.shape)
        if not len(images):
            return torch.empty(shape)
        file = self.file(images)
        if not _is_complete(file, len(images) * self.row):
            with storing(file.parent):
                create_folder()
                with exclusive(file.with_suffix(".lock"), "computing features"):
                    if not _is_complete(file, len(images) * self.row):
                        self._fill(file, images)
        return mapped(np.memmap(file, np.float32, "r", shape=shape))

    def file(self, images: Tensor) -> Path:
        """Return the file of the images' rows."""
        machine = [torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.device(self.device).type]
        key = digest(VERSION, BATCH, self.name, list(self.shape), tensor_digest(images), machine)
        return home() / FEATURES / f"{key[:32]}.rows"

    def missing(self, splits: Sequence[Split]) -> int:
        """Return how many bytes the cache lacks for some splits."""
        every = {id(s): s for x, _ in splits for s in (x.sources if isinstance(x, View) else (x,))}
        files = {self.file(source): len(source) * self.row for source in every.values()}
        return sum(size for file, size in files.items() if not _is_complete(file, size))

    def require_space(self, splits: Sequence[Split], besides: int = 0) -> int:
        """Report how many bytes are computed and stored, and return them; raise if the disk has too little space.

        `besides`: bytes that are going to be stored as well.
        """
        needed, folder = self.missing(splits), home() / FEATURES
        if not needed:
            return 0
        with storing(folder):
            create_folder()
            free = shutil.disk_usage(folder).free
        if needed + besides + RESERVE > free:
            raise StorageError(
                f"the features of these images need {amount(needed + besides)} in {folder}, where {amount(free)} are "
                f"free, of which {amount(RESERVE)} must stay free; free some space, set FEDBEYOND_CACHE to a folder on "
                "another disk, or do not cache them: train.part = 'head(cache=false)'"
            )
        report(f"computing features once: {needed // self.row:,} images, {amount(needed)} into {folder}")
        return needed

    def _fill(self, file: Path, images: Tensor) -> None:
        """Compute the rows that are not computed yet, batch by batch."""
        partial, block = file.with_suffix(".partial"), BATCH * self.row
        done = partial.stat().st_size // block if partial.exists() else 0  # whole batches
        with open(partial, "r+b" if done else "wb", opener=private_opener) as output:
            output.truncate(done * block)
            output.seek(0, os.SEEK_END)
            for start in track(range(done * BATCH, len(images), BATCH), "computing features"):
                output.write(self._batch(images[start : start + BATCH], start).numpy().tobytes())
                output.flush()
                os.fsync(output.fileno())
        partial.replace(file)

    @torch.no_grad()
    def _batch(self, images: Tensor, start: int) -> Tensor:
        """Return the rows of at most one batch of images, computed as a full one."""
        full = images[torch.arange(BATCH) % len(images)]
        return self.compute(pixels(full.to(self.device)), start)[: len(images)].float().cpu().contiguous()


def create_folder() -> None:
    """Create the folder of rows, and the cache if there is none, so that only their owner can enter them."""
    home().mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    create_private(home() / FEATURES)
    restrict(home())


def _is_complete(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size
