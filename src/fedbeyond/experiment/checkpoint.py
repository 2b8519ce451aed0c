"""Save trees as safetensors files and load them; pack them as bytes for messages."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

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
    return pack(state, {"notes": json.dumps(notes, sort_keys=True)})


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


def read_notes(path: Path) -> dict[str, Any]:
    """Read the notes of a file without its tree."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(json.loads((file.metadata() or {}).get("notes", "{}")))
    except (OSError, SafetensorError, ValueError) as error:
        raise StorageError(f"{path} cannot be read ({error}); delete it to start again") from None


def load(path: Path, remedy: str = "delete it to start again") -> tuple[Tree, dict[str, Any]]:
    """Read a tree and its notes; `remedy` ends the error message and says what to do."""
    try:
        with safe_open(path, framework="pt") as file:
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise StorageError(f"{path} cannot be read ({error}); {remedy}") from None
    return tree.unflatten(flat), notes
