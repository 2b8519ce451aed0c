"""A run's trees in one safetensors file and back."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from .. import tree
from .._io import write
from ..errors import StorageError
from ..timer import part
from ..tree import Tree


def save(path: Path, state: Tree, **notes: Any) -> None:
    """Write a tree, and notes in plain JSON beside it in the same file."""
    write(path, content(state, **notes))


@contextmanager
def beside() -> Iterator[Callable[..., None]]:
    """A `save` that goes on while others compute; before it takes on another file, it is done with the last.

    So it is one round behind at the most. What goes wrong is raised by the next call or when the
    block is left: by then all is written.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Future[None]] = []

        def later(path: Path, state: Tree, **notes: Any) -> None:
            with part("checkpoint"):
                while waiting:
                    waiting.pop().result()
                waiting.append(pool.submit(save, path, state, **notes))

        yield later
        with part("checkpoint"):
            for future in waiting:
                future.result()


def content(state: Tree, **notes: Any) -> bytes:
    """What such a file holds."""
    return pack(state, {"notes": json.dumps(notes, sort_keys=True)})


def pack(state: Tree, notes: dict[str, str] | None = None) -> bytes:
    """A tree as the bytes of a safetensors file."""
    flat = {name: leaf.contiguous() for name, leaf in tree.flatten(state).items()}
    return to_bytes(_unshared(flat), metadata=notes)


def unpack(content: bytes) -> Tree:
    """The tree that was packed; ValueError if there is none in there."""
    try:
        return tree.unflatten(from_bytes(content))
    except SafetensorError as error:
        raise ValueError(f"no tree ({error})") from None


def load(path: Path, remedy: str = "delete it to begin again") -> tuple[Tree, dict[str, Any]]:
    """Read a tree and its notes; `remedy` is what to do if that cannot be done."""
    try:
        with safe_open(path, framework="pt") as file:
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise StorageError(f"{path} cannot be read ({error}); {remedy}") from None
    return tree.unflatten(flat), notes


def _unshared(flat: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors refuses tensors that share memory; a site's committed state may be the one it proposes."""
    seen: set[int] = set()
    out = {}
    for name, leaf in flat.items():
        memory = leaf.untyped_storage().data_ptr()
        out[name] = leaf.clone() if memory in seen else leaf
        seen.add(memory)
    return out
