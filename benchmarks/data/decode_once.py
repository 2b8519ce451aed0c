"""What decoding once saves: an epoch from the cache against an epoch of reading the files.

    python benchmarks/data/decode_once.py

Noise as JPEG files of 96 pixels, used at 64. One side reads them as most code does, with PIL and a torch DataLoader
without workers; the other takes an epoch of batches from the cache. Both sides give the same bytes. They take turns,
and the ratio is that of the medians; the first epoch, which decodes, is told apart.
"""

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from fedbeyond.data.datasets._folder import folder
from fedbeyond.data.partition.assignment import all_rows, select_rows

IMAGES, FILE, SIZE, BATCH, TURNS = 2000, 96, 64, 32, 3


class Files(Dataset[tuple[torch.Tensor, int]]):
    """The files as they are usually read."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            small = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(small).transpose(2, 0, 1)), index


def make(root: Path) -> Path:
    """Smooth noise: files of the size that photos of so many pixels have."""
    rng = np.random.default_rng(0)
    (root / "domain" / "class").mkdir(parents=True)
    for place in range(IMAGES):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        coarse.resize((FILE, FILE), Image.Resampling.BICUBIC).save(root / "domain" / "class" / f"{place:05}.jpg")
    return root


def timed(batches: Iterable[torch.Tensor]) -> tuple[float, int]:
    """Seconds of an epoch, and a sum of all bytes that does not depend on their order."""
    began, total = time.perf_counter(), 0
    for batch in batches:
        total += int(batch.sum())
    return time.perf_counter() - began, total


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.environ["FEDBEYOND_CACHE"] = f"{place}/cache"
        root = make(Path(place) / "data")
        began = time.perf_counter()
        domains = folder(str(root), size=SIZE)
        print(f"first use, decoding {IMAGES:,} images: {time.perf_counter() - began:.2f} s")
        x, _ = select_rows(domains, {"domain": all_rows(domains, "domain")})
        slow, fast, sums = [], [], set()
        for _ in range(TURNS):
            loader = DataLoader(Files(root), batch_size=BATCH, shuffle=True, num_workers=0)
            seconds, total = timed(images for images, _ in loader)
            slow.append(seconds)
            sums.add(total)
            seconds, total = timed(x[index] for index in torch.randperm(len(x)).split(BATCH))
            fast.append(seconds)
            sums.add(total)
    same = "the same bytes" if len(sums) == 1 else "OTHER BYTES"
    print(f"an epoch of files: {median(slow):.3f} s; of the cache: {median(fast):.4f} s; {same}")
    print(f"ratio {median(slow) / median(fast):.1f}")


if __name__ == "__main__":
    main()
