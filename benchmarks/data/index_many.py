"""How long it takes to list a hundred thousand images, and how many files are open meanwhile at most.

    python benchmarks/data/index_many.py [IMAGES]

Small files in four domains of ten classes. Listing is what happens before any image is opened; the key is what the
cache adds to know whether it has them.
"""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from PIL import Image

from fedbeyond.data.datasets._folder import list_folder
from fedbeyond.data.storage.cache import fingerprint

DOMAINS, CLASSES = 4, 10


def make(root: Path, images: int) -> None:
    """The same small picture many times."""
    Image.new("RGB", (8, 8), "red").save(root.parent / "one.png")
    content = (root.parent / "one.png").read_bytes()
    for domain in range(DOMAINS):
        for name in range(CLASSES):
            place = root / f"domain_{domain}" / f"class_{name}"
            place.mkdir(parents=True)
            for number in range(images // (DOMAINS * CLASSES)):
                (place / f"{number:06}.png").write_bytes(content)


def main() -> None:
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    most, over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.01):
            most = max(most, len(os.listdir("/dev/fd")))

    with tempfile.TemporaryDirectory() as place:
        make(Path(place) / "data", images)
        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.perf_counter()
        listing = list_folder(f"{place}/data")
        listed = time.perf_counter()
        for records in listing.domains.values():
            fingerprint(records.pixels)
        ended = time.perf_counter()
        over.set()
        watcher.join()
    total = sum(len(records.labels) for records in listing.domains.values())
    print(f"{total:,} images: listed in {listed - began:.1f} s, the cache's keys in {ended - listed:.1f} s")
    print(f"together {ended - began:.1f} s; files open at most: {most}")


if __name__ == "__main__":
    main()
