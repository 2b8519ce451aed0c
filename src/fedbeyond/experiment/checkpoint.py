"""Save trees as safetensors files with a checksum, and load them; pack them as bytes for messages."""

import json
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from .. import timer, tree
from .._io import write
from ..errors import StorageError
from ..tree import Tree


def save(path: Path, state: Tree, **notes: Any) -> None:
    """Write a tree, with notes as JSON in the metadata of the same file."""
    write(path, content(state, **notes))


@contextmanager
def background_save() -> Iterator[Callable[..., None]]:
    """Yield a `save` that writes in a background thread, one file at a time.

    A checkpoint is therefore at most one round behind. An error is raised by the next call, or at the end of the block;
    when the block ends, everything is written.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # start the thread now: a pool does not wait for one that Ctrl-C hits while it starts
        waiting: list[Future[None]] = []

        def later(path: Path, state: Tree, **notes: Any) -> None:
            with timer.section("checkpoint"):
                while waiting:
                    waiting.pop().result()
                waiting.append(pool.submit(save, path, state, **notes))

        yield later
        with timer.section("checkpoint"):
            for future in waiting:
                future.result()


def content(state: Tree, **notes: Any) -> bytes:
    """Return the bytes of a file that `save` would write."""
    noted = notes | {"checksum": checksum(tree.flatten(state), notes)}
    return pack(state, {"notes": json.dumps(noted, sort_keys=True)})  # one entry: safetensors keeps no order of several


def checksum(flat: dict[str, Tensor], notes: dict[str, Any]) -> str:
    """Compute the checksum of a flat tree and its notes: it reveals damage by accident, not a forgery.

    CRC-32 takes 13 ms for ResNet-18 (45 MB), and no memory; SHA-256 takes twice as long, or ten times on an older CPU.
    """
    crc = zlib.crc32(json.dumps(notes, sort_keys=True).encode())
    for name, leaf in sorted(flat.items()):
        crc = zlib.crc32(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode(), crc)
        crc = zlib.crc32(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def pack(state: Tree, notes: dict[str, str] | None = None) -> bytes:
    """Return a tree as the bytes of a safetensors file."""
    flat, seen = {name: leaf.contiguous() for name, leaf in tree.flatten(state).items()}, set()
    for name, leaf in flat.items():
        memory = leaf.untyped_storage().data_ptr()
        if memory in seen:  # safetensors refuses shared memory; a site's pending state may equal its committed one
            flat[name] = leaf.clone()
        seen.add(memory)
    return to_bytes(flat, metadata=notes)


def unpack(content: bytes) -> Tree:
    """Return the tree that was packed; `ValueError` if the bytes hold none."""
    try:
        return tree.unflatten(from_bytes(content))
    except SafetensorError as error:
        raise ValueError(f"not a tree in safetensors format ({error})") from None


def load(path: Path, remedy: str = "") -> tuple[Tree, dict[str, Any]]:
    """Read a tree and its notes, and verify the checksum; `remedy` says what to do if that fails."""
    remedy = remedy or f"restore it from a backup, or delete {path.parent} and run again"
    try:
        with safe_open(path, framework="pt") as file:
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            notes = dict(json.loads((file.metadata() or {}).get("notes", "{}")))
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error}); {remedy}") from None
    except (SafetensorError, ValueError, TypeError) as error:
        raise StorageError(f"{path} is damaged ({error}); {remedy}") from None
    if (stored := notes.pop("checksum", None)) is None:
        raise StorageError(f"{path} has no checksum: it is damaged, or of an older fedbeyond; {remedy}")
    if stored != checksum(flat, notes):
        raise StorageError(f"{path} is damaged: its content does not match its checksum; {remedy}")
    return tree.unflatten(flat), notes
