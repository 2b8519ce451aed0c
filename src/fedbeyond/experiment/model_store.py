"""A shelf: where a run's server puts trees that it will want again, but does not want to carry along in its state.

What is there is named by the state, and is no part of it: a checkpoint stays small, and a tree is in memory only while
it is looked at. A name is given once, to one content (`east/000003`: whose it is, and of which round), so that a round
that is played again puts the same thing there again.
"""

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from .._io import storing
from ..tree import Tree
from . import checkpoint

ENDING = ".safetensors"


class Folder(MutableMapping[str, Tree]):
    """The entries of a shelf as files in a folder, one each, which is made when there is something to put there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, entry: str) -> Tree:
        return checkpoint.load(self._file(entry), f"bring it back, or delete {self.path.parent} to begin again")[0]

    def __setitem__(self, entry: str, tree: Tree) -> None:
        with storing(self.path):
            self.path.mkdir(exist_ok=True)
        checkpoint.save(self._file(entry), tree)

    def __delitem__(self, entry: str) -> None:
        with storing(self.path):
            self._file(entry).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(file.name.removesuffix(ENDING) for file in self.path.glob(f"*{ENDING}")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _file(self, entry: str) -> Path:
        return self.path / f"{entry}{ENDING}"
