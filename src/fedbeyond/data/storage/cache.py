"""The cache of decoded images: one file of bytes for each domain, memory-mapped and shared by runs and processes.

The name of a file is a digest of what it was made from. A file is written under a temporary name, block by block, with
the number of rows on disk in a JSON file beside it. It is renamed when it is complete, so a file under its final name
is valid. Images may be of patients: only the user who decoded them can read the cache, whatever the umask is.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..._io import PRIVATE_FILE, PRIVATE_FOLDER, private_opener
from ..._progress import track
from ...errors import DataError, StorageError
from ...images import Dataset, Notes, mapped
from ..finding import printable
from .decode import VERSION, decoded
from .listing import Files, Listing, Records

BLOCK = 32 * 2**20  # bytes that are written, synced and recorded together
SAMPLE = 16  # files whose contents are part of the key, besides the size and time of all files
PATIENCE = 2.0  # seconds to wait before a message is printed
NAME = re.compile(r".+-\d+-[0-9a-f]{20}\.(pixels|partial|json|json\.new|lock)")  # of a file of the cache
PICTURES, FEATURES = "pictures", "features"  # folders in it

Size = Annotated[int, Field(gt=0), "side of the square images in pixels"]


class CacheFile(NamedTuple):
    """The cache file of a domain, complete or not."""

    domain: str
    path: Path
    rows: int
    size: int
    root: str

    def beside(self, ending: str) -> Path:
        """Return the path of the same name with another ending."""
        return self.path.with_name(self.path.stem + ending)

    @property
    def row(self) -> int:
        """Return the number of bytes of an image."""
        return 3 * self.size**2

    @property
    def complete(self) -> bool:
        """Return whether all rows are in the file."""
        return self.path.is_file() and self.path.stat().st_size == self.rows * self.row

    @property
    def done(self) -> int:
        """Return the number of rows that an earlier process has decoded."""
        try:
            recorded = int(json.loads(self.beside(".json").read_text("utf-8"))["done"])
            return min(recorded, self.beside(".partial").stat().st_size // self.row)
        except (OSError, ValueError, KeyError, TypeError):
            return 0


def load(listing: Listing, size: Size) -> Dataset:
    """Return the dataset of a listing at `size` pixels square; decode the images that are not in the cache."""
    folder, files, notes = home(), {}, {}
    for domain, records in listing.domains.items():
        key, contents = fingerprint(records.pixels)
        safe = re.sub(r"[^\w.-]+", "-", domain)
        name = f"{safe}-{size}-{digest(VERSION, size, key)[:20]}.pixels"
        root = str(records.pixels.root) if isinstance(records.pixels, Files) else "an array"
        files[domain] = CacheFile(domain, folder / name, len(records.labels), size, root)
        notes[domain] = Notes(names(records.pixels), records.folds, records.groups, contents)
    restrict(folder)
    require_space(folder, [file for file in files.values() if not file.complete])
    images = {}
    for domain, records in listing.domains.items():
        if not files[domain].complete:
            fill(files[domain], records)
        images[domain] = view(files[domain]), torch.tensor(np.asarray(records.labels, np.int64))
    return Dataset(listing.classes, images, notes)


def home() -> Path:
    """Return the cache folder: FEDBEYOND_CACHE, or fedbeyond in the user's cache folder."""
    given, user = os.environ.get("FEDBEYOND_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(given).expanduser() if given else Path(user or "~/.cache").expanduser() / "fedbeyond"


def restrict(folder: Path) -> None:
    """Make an existing cache readable for its owner only: its files, and the folder if nothing else is in it."""
    paths = list(folder.iterdir()) if folder.is_dir() else []
    modes = {path: PRIVATE_FILE for path in paths if NAME.fullmatch(path.name)}
    modes |= {path: PRIVATE_FOLDER for path in paths if path.name in (PICTURES, FEATURES)}
    if len(modes) == len(paths):  # not a folder that the user has for other things, too, such as /tmp
        modes[folder] = PRIVATE_FOLDER
    for path, mode in modes.items():
        with suppress(OSError):  # gone meanwhile, or of another user, who decides who reads it
            if path.stat().st_mode & 0o077:
                path.chmod(mode)


def digest(*parts: object) -> str:
    """Compute a digest of some small values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def names(pixels: Files | np.ndarray) -> tuple[str, ...]:
    """Return the name of each image: its file, and its crop box if it has one; an empty tuple for arrays."""
    if not isinstance(pixels, Files):
        return ()
    if not pixels.boxes:
        return pixels.names
    return tuple(f"{name}[{','.join(map(str, box))}]" for name, box in zip(pixels.names, pixels.boxes, strict=True))


def fingerprint(pixels: Files | np.ndarray) -> tuple[str, str]:
    """Return a key that changes when the images change, and for arrays, which have no names, a digest of the contents.

    Reading every file would cost as much as decoding it, so the key uses names, sizes and times. The contents of a few
    files distinguish folders that were written at the same instant. The path of the folder is not used: it may move.
    """
    hashed = hashlib.sha256()
    if not isinstance(pixels, Files):
        hashed.update(f"{pixels.dtype} {pixels.shape}".encode())
        for start in range(0, len(pixels), 256):
            hashed.update(pixels[start : start + 256].tobytes())
        return hashed.hexdigest(), hashed.hexdigest()
    path = str(pixels.root)
    try:
        for file, name in zip(pixels.names, names(pixels), strict=True):
            path = os.path.join(pixels.root, file)
            status = os.stat(path)
            hashed.update(f"{name}\0{status.st_size} {status.st_mtime_ns}\n".encode())
        for name in pixels.names[:: max(1, -(-len(pixels.names) // SAMPLE))]:
            path = os.path.join(pixels.root, name)
            hashed.update(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); restore the file or its permissions") from None
    except UnicodeEncodeError:
        raise DataError(f"{printable(path)}: the name is not UTF-8; rename the file or its folder") from None
    return hashed.hexdigest(), ""


def require_space(folder: Path, incomplete: list[CacheFile]) -> None:
    """Raise if the disk has too little space for the images that are not decoded yet."""
    needed = sum((file.rows - file.done) * file.row for file in incomplete)
    if not needed:
        return
    with storing(folder):
        folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    if needed > free:
        domains = ", ".join(file.domain for file in incomplete)
        raise StorageError(
            f"decoding {domains} needs {amount(needed)} in {folder}, where {amount(free)} are free; free some space, "
            f"choose a smaller size, or set FEDBEYOND_CACHE to a folder on another disk"
        )


def amount(size: float) -> str:
    """Format a number of bytes: 251 MB, 1.7 GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size:,.0f} bytes"


def fill(file: CacheFile, records: Records) -> None:
    """Decode the rows of a domain that are not decoded yet, unless another process does so meanwhile."""
    with storing(file.path.parent), exclusive(file.beside(".lock"), f"decoding {file.domain}"):
        if file.complete:
            return
        done, partial = file.done, file.beside(".partial")
        decoded_before = f" ({done:,} are decoded already)" if done else ""
        size = amount((file.rows - done) * file.row)
        report(f"decoding {file.domain}: {file.rows - done:,} images, {size} into {file.path.parent}{decoded_before}")
        rows = track(range(done, file.rows), f"decoding {file.domain}")
        with open(partial, "r+b" if done else "wb", opener=private_opener) as output:
            output.truncate(done * file.row)  # drop a block that was begun and not recorded
            record_progress(file, done)  # an older record may count the rows of a file that is gone
            output.seek(0, os.SEEK_END)
            while block := [decoded(records.pixels, row, file.size) for row in islice(rows, max(1, BLOCK // file.row))]:
                output.write(np.stack(block).tobytes())
                output.flush()
                os.fsync(output.fileno())
                done += len(block)
                record_progress(file, done)
        partial.replace(file.path)


def record_progress(file: CacheFile, done: int) -> None:
    """Write the shape, source and number of decoded rows of a cache file into the JSON file beside it."""
    record: dict[str, Any] = {"domain": file.domain, "from": file.root, "shape": [file.rows, 3, file.size, file.size]}
    record |= {"type": "uint8", "decoding": VERSION, "done": done}
    fresh = file.beside(".json.new")
    with open(fresh, "wb", opener=private_opener) as output:
        output.write(json.dumps(record, indent=1).encode())
    fresh.replace(file.beside(".json"))


@contextmanager
def exclusive(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock of a cache file; wait while another process holds it, and print a message if that takes long."""
    message = f"waiting for another process that is {doing} into {path.parent}"
    waiting = threading.Timer(PATIENCE, report, [message])
    with open(path, "wb", opener=private_opener) as lock:
        waiting.start()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        finally:
            waiting.cancel()
        yield


@contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Turn an OSError of the cache into a StorageError of one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write decoded images into {folder}: {error.strerror or error}; free some space, make the folder "
            f"writable, or set FEDBEYOND_CACHE to another folder; then run the command again: decoded images are kept"
        ) from None


def report(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)


def view(file: CacheFile) -> Tensor:
    """Return the images of a domain as a memory-mapped tensor."""
    shape = (file.rows, 3, file.size, file.size)
    if not file.rows:
        return torch.empty(shape, dtype=torch.uint8)
    return mapped(np.memmap(file.path, np.uint8, "r", shape=shape))
