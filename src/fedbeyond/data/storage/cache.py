"""Decode once: each domain's images as one file of bytes, mapped into memory and shared by runs and processes.

A domain's file has a name made from what went into it. It grows under another name, block by block, the rows that are
safely there noted beside it, and gets its own name when it is whole; whoever finds it under its name may trust it.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._progress import track
from ...errors import DataError, StorageError
from ...images import Domains, Notes, mapped
from .decode import VERSION, decoded
from .listing import Files, Listing, Records

BLOCK = 32 * 2**20  # bytes that are written, made safe and noted together
SAMPLE = 16  # files whose contents count for the key, besides the size and time of all
PATIENCE = 2.0  # seconds of waiting before it is said


class Slot(NamedTuple):
    """Where a domain's bytes are, or will be."""

    domain: str
    path: Path
    rows: int
    size: int
    root: str

    def beside(self, ending: str) -> Path:
        """A file of the same name with another ending."""
        return self.path.with_name(self.path.stem + ending)

    @property
    def row(self) -> int:
        """Bytes of an image."""
        return 3 * self.size**2

    @property
    def whole(self) -> bool:
        """Whether all is there."""
        return self.path.is_file() and self.path.stat().st_size == self.rows * self.row

    @property
    def done(self) -> int:
        """Rows that an earlier process made and left."""
        try:
            noted = int(json.loads(self.beside(".json").read_text("utf-8"))["done"])
            return min(noted, self.beside(".partial").stat().st_size // self.row)
        except (OSError, ValueError, KeyError, TypeError):
            return 0


def load(listing: Listing, size: int) -> Domains:
    """A dataset that was found, at `size` pixels square: decoded when first used, read from the cache ever after."""
    place, slots, notes = home(), {}, {}
    for domain, records in listing.domains.items():
        key, contents = fingerprint(records.pixels)
        plain = re.sub(r"[^\w.-]+", "-", domain)
        name = f"{plain}-{size}-{digest(VERSION, size, key)[:20]}.pixels"
        root = str(records.pixels.root) if isinstance(records.pixels, Files) else "an array"
        slots[domain] = Slot(domain, place / name, len(records.labels), size, root)
        notes[domain] = Notes(names(records.pixels), records.folds, records.groups, contents)
    require_room(place, [slot for slot in slots.values() if not slot.whole])
    images = {}
    for domain, records in listing.domains.items():
        if not slots[domain].whole:
            fill(slots[domain], records)
        images[domain] = view(slots[domain]), torch.tensor(np.asarray(records.labels, np.int64))
    return Domains(listing.classes, images, notes)


def home() -> Path:
    """The folder of decoded images: FEDBEYOND_CACHE, or the user's cache."""
    given, user = os.environ.get("FEDBEYOND_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(given).expanduser() if given else Path(user or "~/.cache").expanduser() / "fedbeyond"


def digest(*parts: object) -> str:
    """What some small things have in common with nothing else."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def names(pixels: Files | np.ndarray) -> tuple[str, ...]:
    """What each image is called: its file, and the part of it that is meant."""
    if not isinstance(pixels, Files):
        return ()
    if not pixels.boxes:
        return pixels.names
    return tuple(f"{name}[{','.join(map(str, box))}]" for name, box in zip(pixels.names, pixels.boxes, strict=True))


def fingerprint(pixels: Files | np.ndarray) -> tuple[str, str]:
    """What changes when images do; and for arrays, whose rows have no names, the same as a digest of their contents.

    Reading every file would cost as much as decoding it, so files count by name, size and time; the contents of a few
    keep folders apart that were written in the same instant. Where the folder lies does not count: it may be moved.
    """
    seen = hashlib.sha256()
    if not isinstance(pixels, Files):
        seen.update(f"{pixels.dtype} {pixels.shape}".encode())
        for start in range(0, len(pixels), 256):
            seen.update(pixels[start : start + 256].tobytes())
        return seen.hexdigest(), seen.hexdigest()
    path = str(pixels.root)
    try:
        for file, name in zip(pixels.names, names(pixels), strict=True):
            path = os.path.join(pixels.root, file)
            found = os.stat(path)
            seen.update(f"{name}\0{found.st_size} {found.st_mtime_ns}\n".encode())
        for name in pixels.names[:: max(1, -(-len(pixels.names) // SAMPLE))]:
            path = os.path.join(pixels.root, name)
            seen.update(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); put it back, or see to the folder") from None
    return seen.hexdigest(), ""


def require_room(place: Path, lacking: list[Slot]) -> None:
    """Refuse to begin what the disk cannot hold."""
    needed = sum((slot.rows - slot.done) * slot.row for slot in lacking)
    if not needed:
        return
    with storing(place):
        place.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place).free
    if needed > free:
        what = ", ".join(slot.domain for slot in lacking)
        raise StorageError(
            f"decoding {what} needs {amount(needed)} in {place}, where {amount(free)} are free; make room, choose a "
            f"smaller size, or name a folder on another disk with FEDBEYOND_CACHE"
        )


def amount(size: float) -> str:
    """Bytes as people say them: 251 MB, 1.7 GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size:,.0f} bytes"


def fill(slot: Slot, records: Records) -> None:
    """Decode what is not yet decoded of a domain, unless another process does it meanwhile."""
    with storing(slot.path.parent), alone(slot):
        if slot.whole:
            return
        done, partial = slot.done, slot.beside(".partial")
        told = f" ({done:,} more are there)" if done else ""
        size = amount((slot.rows - done) * slot.row)
        say(f"decoding {slot.domain}: {slot.rows - done:,} images, {size} into {slot.path.parent}{told}")
        rows = track(range(done, slot.rows), f"decoding {slot.domain}")
        with open(partial, "r+b" if done else "wb") as file:
            file.truncate(done * slot.row)  # a block that was begun and not noted
            note(slot, done)  # an older note may speak of a whole file that is gone
            file.seek(0, os.SEEK_END)
            while block := [decoded(records.pixels, row, slot.size) for row in islice(rows, max(1, BLOCK // slot.row))]:
                file.write(np.stack(block).tobytes())
                file.flush()
                os.fsync(file.fileno())
                done += len(block)
                note(slot, done)
        partial.replace(slot.path)


def note(slot: Slot, done: int) -> None:
    """Write down what the bytes are and how many rows of them are there."""
    told: dict[str, Any] = {"domain": slot.domain, "from": slot.root, "shape": [slot.rows, 3, slot.size, slot.size]}
    told |= {"type": "uint8", "decoding": VERSION, "done": done}
    fresh = slot.beside(".json.new")
    fresh.write_text(json.dumps(told, indent=1), "utf-8")
    fresh.replace(slot.beside(".json"))


@contextmanager
def alone(slot: Slot) -> Iterator[None]:
    """No two processes decode the same: the second waits, and says so if that takes long."""
    began = time.monotonic()
    with open(slot.beside(".lock"), "w") as lock:
        while time.monotonic() - began < PATIENCE:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
        else:
            say(f"waiting for another process that is decoding {slot.domain} into {slot.path.parent}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def storing(place: Path) -> Iterator[None]:
    """Turn what the system says of the cache into one line for the user."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write decoded images into {place}: {error.strerror or error}; make room or make it writable, or "
            f"name another folder with FEDBEYOND_CACHE, then give the same command again: what was decoded is kept"
        ) from None


def say(line: str) -> None:
    """A line for whoever is waiting."""
    print(line, file=sys.stderr, flush=True)


def view(slot: Slot) -> Tensor:
    """The bytes of a domain, read from disk as they are asked for."""
    shape = (slot.rows, 3, slot.size, slot.size)
    if not slot.rows:
        return torch.empty(shape, dtype=torch.uint8)
    return mapped(np.memmap(slot.path, np.uint8, "r", shape=shape))
