"""A shelf: where a run's server puts trees that it will want again, but does not want to carry along in its state.

What is there is named by the state, and is no part of it: a checkpoint stays small, and a tree is in memory only while
it is looked at. A name is given once, to one content (`east/000003`: whose it is, and of which round), so that a round
that is played again puts the same thing there again.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, MutableMapping
from hashlib import sha256
from pathlib import Path

from . import checkpoint
from .errors import StorageError
from .files import storing
from .tree import Tree

ENDING = ".safetensors"
LATELY = 3  # rounds whose names count: this one, the last, whose checkpoint may be on its way, and the one before


class Shelf:
    """Trees by owner (the method or wrapper that put them there) and name; in memory, if nothing else is given."""

    def __init__(self, entries: MutableMapping[str, Tree] | None = None) -> None:
        self.entries: MutableMapping[str, Tree] = {} if entries is None else entries
        self._named: dict[str, deque[set[str]]] = defaultdict(lambda: deque(maxlen=LATELY))

    def put(self, owner: str, name: str, tree: Tree) -> None:
        """Put a tree there, for good before this returns."""
        self.entries[label(owner, name)] = tree

    def get(self, owner: str, name: str) -> Tree:
        """The tree that was put there."""
        try:
            return self.entries[label(owner, name)]
        except KeyError:
            raise StorageError(
                f"{owner} looks for {name} on a shelf that never held it; give all rounds of a run the same one, as in "
                "Round(..., shelf=shelf)"
            ) from None

    def keep(self, owner: str, names: Iterable[str]) -> None:
        """Say at the end of a round what of the owner's is named by the state before it or the state after it.

        The rest may go, but for what was so named in the two rounds before: a stopped run may go on from there.
        """
        lately = self._named[owner]
        lately.append({label(owner, name) for name in names})
        for entry in [entry for entry in self.entries if entry.startswith(f"{owner}.")]:
            if not any(entry in named for named in lately):
                del self.entries[entry]


def label(owner: str, name: str) -> str:
    """One name for both that any file system takes, however long or strange they are, and that is nobody else's."""
    plain = re.sub(r"[^\w-]+", "-", name, flags=re.ASCII)[:80]
    return f"{owner}.{plain}-{sha256(name.encode()).hexdigest()[:16]}"


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
