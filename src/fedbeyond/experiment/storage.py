"""Where a run keeps its result lines, its checkpoint and its models: in a folder, or in memory."""

import json
import shutil
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from .. import _io
from ..evaluation.selection import Line
from ..tree import Tree
from . import checkpoint, results, run_folder
from .config import Config
from .model_store import FileStore
from .prepare import Experiment
from .results import RESULTS, TIMES
from .run_folder import CHECKPOINT, DONE, MODELS

COUNTS = ("parameters", "sent", "flops")  # in the times of the last round
Save = Callable[..., None]  # name of the file, tree, notes


class Storage(Protocol):
    """What a run needs to be resumed: finished rounds, the state after them, and the models of some rounds."""

    @property
    def models(self) -> MutableMapping[str, Tree]:
        """The entries of the run's model store."""
        ...

    def opened(self, experiment: Experiment) -> AbstractContextManager[None]:
        """Return a context in which no other process runs this run; raise if another run is stored here."""
        ...

    def saved(self, name: str) -> tuple[Tree, dict[str, Any]] | None:
        """Return a saved tree and its notes; None if there is none."""
        ...

    def trim(self, rounds: int, config: Config) -> list[Line]:
        """Drop the lines after the first `rounds` rounds, and return the others."""
        ...

    def append(self, line: Line, times: Line) -> None:
        """Add the lines of a finished round."""
        ...

    def saving(self, in_background: bool) -> AbstractContextManager[Save]:
        """Return a context that yields a function to save trees; at its end all are saved."""
        ...

    def finish(self) -> None:
        """Mark the run as finished, and drop what only its next round would need."""
        ...


class Folder:
    """A run in a folder: `kill -9` at any instant loses no finished round."""

    def __init__(self, path: Path) -> None:
        self.path, self.models = path, FileStore(path / MODELS)

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def opened(self, experiment: Experiment) -> Iterator[None]:
        with run_folder.locked(self.path, experiment.config):
            run_folder.ensure_same_machine(self.path, experiment.device)
            run_folder.write_machine(self.path, experiment.device)
            run_folder.write_classes(self.path, experiment.assembly.task.classes)
            yield

    def saved(self, name: str) -> tuple[Tree, dict[str, Any]] | None:
        return checkpoint.load(self.path / name) if (self.path / name).exists() else None

    def trim(self, rounds: int, config: Config) -> list[Line]:
        results.trim(self.path / TIMES, rounds, lambda line: without_counts(line, config.train.rounds))
        return results.trim(self.path / RESULTS, rounds, lambda line: with_totals(line, config))

    def append(self, line: Line, times: Line) -> None:
        results.append(self.path / RESULTS, line)
        results.append(self.path / TIMES, times)

    @contextmanager
    def saving(self, in_background: bool) -> Iterator[Save]:
        with checkpoint.background_save() if in_background else nullcontext(checkpoint.save) as save:
            yield lambda name, state, **notes: save(self.path / name, state, **notes)

    def finish(self) -> None:
        _io.write(self.path / DONE, MODELS.encode() if self.models.path.exists() else b"")  # what is deleted
        shutil.rmtree(self.models.path, ignore_errors=True)


class Memory:
    """A run in memory. It holds what a folder would hold, and can be written to one."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.times: list[Line] = []
        self.trees: dict[str, tuple[Tree, dict[str, Any]]] = {}
        self.models: dict[str, Tree] = {}
        self.machine: dict[str, object] = {}
        self.classes: tuple[str, ...] = ()

    @contextmanager
    def opened(self, experiment: Experiment) -> Iterator[None]:
        self.machine = run_folder.machine(experiment.device)
        self.classes = experiment.assembly.task.classes
        yield

    def saved(self, name: str) -> tuple[Tree, dict[str, Any]] | None:
        return self.trees.get(name)

    def trim(self, rounds: int, config: Config) -> list[Line]:
        self.times = [without_counts(line, config.train.rounds) for line in self.times[:rounds]]
        self.lines = [with_totals(line, config) for line in self.lines[:rounds]]
        return list(self.lines)

    def append(self, line: Line, times: Line) -> None:
        self.lines.append(json.loads(json.dumps(line)))  # as it would be read from a file
        self.times.append(json.loads(json.dumps(times)))

    def saving(self, in_background: bool) -> AbstractContextManager[Save]:
        return nullcontext(self._save)

    def _save(self, name: str, state: Tree, **notes: Any) -> None:
        self.trees[name] = state, notes  # trees are never changed

    def finish(self) -> None:
        """Keep everything: the run may get more rounds."""

    def write(self, folder: Path, config: Config, finished: bool) -> None:
        """Write everything to a folder, as if the run had run there."""
        with run_folder.locked(folder, config):
            run_folder.write_json(folder / run_folder.MACHINE, self.machine)
            run_folder.write_classes(folder, self.classes)
            for name, lines in ((RESULTS, self.lines), (TIMES, self.times)):
                _io.write(folder / name, "".join(json.dumps(line) + "\n" for line in lines).encode())
            for entry, model in self.models.items():
                Folder(folder).models[entry] = model
            for name, (state, notes) in sorted(self.trees.items(), key=lambda item: item[0] == CHECKPOINT):
                checkpoint.save(folder / name, state, **notes)
            if finished:
                _io.write(folder / DONE, b"")


def with_totals(line: Line, config: Config) -> Line:
    """Return a result line as written for a run of this configuration: the run may have got more rounds."""
    return line | {"setting": config.setting(), "rounds": config.train.rounds}


def without_counts(line: Line, total: int) -> Line:
    """Return the times of a round as written for a run of `total` rounds: only the last round has counts."""
    return line if line["round"] + 1 == total else {key: line[key] for key in line if key not in COUNTS}
