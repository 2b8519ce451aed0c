"""The model store of a run on disk: earlier models that the server needs again but does not keep in its state.

The state holds their names only: checkpoints stay small, and a model is in memory only while it is used. A name belongs
to one content (`east/000003`: the site and the round), so a round that is run again writes the same entry again.
"""

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from .._io import storage_errors
from ..tree import Tree
from . import checkpoint

ENDING = ".safetensors"


class FileStore(MutableMapping[str, Tree]):
    """The entries of a `ModelStore` as files in a folder, which is created with the first entry."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, entry: str) -> Tree:
        remedy = f"restore it from a backup, or delete {self.path.parent} and run again"
        return checkpoint.load(self._file(entry), remedy)[0]

    def __setitem__(self, entry: str, tree: Tree) -> None:
        with storage_errors(self.path):
            self.path.mkdir(exist_ok=True)
        checkpoint.save(self._file(entry), tree)

    def __delitem__(self, entry: str) -> None:
        with storage_errors(self.path):
            self._file(entry).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(file.name.removesuffix(ENDING) for file in self.path.glob(f"*{ENDING}")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _file(self, entry: str) -> Path:
        return self.path / f"{entry}{ENDING}"
