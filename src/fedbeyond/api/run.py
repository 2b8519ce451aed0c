"""`run` and `compare`: train methods on the data of several sites, and test them on a domain that took no part."""

import re
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._factory import spec_of
from ..errors import ConfigError, FedbeyondError, FederationError
from ..evaluation.selection import Line
from ..experiment import bench, config, run_folder
from ..experiment.build import dataset
from ..experiment.config import Config
from ..experiment.run_state import format_run
from ..experiment.storage import Folder, Memory
from ..images import Dataset
from .comparison import Comparison
from .objects import Own, Spelled, own_name, spelled
from .results import Run
from .running import (
    Computing,
    Progress,
    announced,
    as_sequence,
    followed,
    forked,
    interactive,
    require_count,
    run_rounds,
    torch_settings,
)


def run(
    method: Any,
    data: Any,
    *,
    target: str | Sequence[str],
    rounds: int = 20,
    network: Any = "convnet",
    optimizer: Any = None,
    seed: int = 0,
    out: str | Path | None = None,
    name: str = "",
    public: Any = None,
    device: str = "auto",
    threads: int = 1,
    workers: int = 1,
    progress: Progress = True,
    **train: Any,
) -> Run:
    """Train a method on all domains but the target, and return the result.

    The run is in memory, and leaves no files. In a notebook, an interrupted run returns what is done, and `resume()`
    continues it.

    Args:
        method: a `Method`, as in `fedavg()`; a function that returns one, with the run's `optimizer` as an argument; or
            text, as in "fedavg+ga".
        data: a `Dataset`, as in `datasets.styles()` or `datasets.from_arrays(...)`, or text.
        target: the domain that takes no part; several as a list.
        rounds: number of rounds.
        network: a network of `networks`, a torch module, a function that returns one, or text.
        optimizer: of the sites, as in `sgd(lr=0.05)`, or text; the default is that of the command line.
        seed: of everything that is random.
        out: a folder. The run is stored below it, as by the command line, and is resumed by the same call.
        name: of a method that is an object without a spec.
        public: unlabelled data for the methods that need them.
        device: cpu, cuda, cuda:1; auto: cuda if there is one.
        threads: of torch, while the run is running.
        workers: processes that train the sites of a round.
        progress: show a line on a terminal or in a notebook; or a function that is called with the line of each round.
        train: other keys of the [train] table, as in `epochs=2`, `batch_size=64`, `clients_per_round=10`.
    """
    parts = _spelled(data, network, optimizer, public, bool(out))
    parts["method"] = spelled("method", method, name, bool(out))
    _warn_of_groups(data, train)
    one = _config(parts, train, rounds=rounds, target=target, seed=seed)
    storage = Folder(run_folder.path(Path(out), one)) if out else Memory()
    result = Run(one, storage, Computing(device, threads, workers, progress), Own.of([one], parts.values()))
    if isinstance(storage, Folder):
        run_folder.ensure_same_run(storage.path, one)
        if run_folder.is_finished(storage.path, one):
            return result
    return result.resume()


def compare(
    methods: Any,
    data: Any,
    *,
    targets: str | Sequence[str | Sequence[str]] = "each",
    seeds: int | Sequence[int] = 3,
    rounds: int = 20,
    network: Any = "convnet",
    optimizer: Any = None,
    out: str | Path | None = None,
    baseline: str | None = None,
    public: Any = None,
    device: str = "auto",
    threads: int = 1,
    jobs: int = 1,
    progress: Progress = True,
    **train: Any,
) -> Comparison:
    """Run methods with every target unseen in turn and every seed, and return a table of their scores.

    Args:
        methods: a dict of names and methods; or a list of methods with specs.
        data: as in `run`.
        targets: "each" domain in turn, or a list of domains; a list of lists leaves several out together.
        seeds: a number of seeds (0, 1, 2, ...), or a list.
        rounds: number of rounds.
        network: as in `run`.
        optimizer: of the sites, the same for all methods.
        out: a folder for the runs; the same call skips those that are finished.
        baseline: the method that others are compared with; by default fedavg, or else the first.
        public: unlabelled data for the methods that need them.
        device: as in `run`.
        threads: of torch, while runs are running.
        jobs: runs at a time, each in a process with one thread.
        progress: as in `run`.
        train: other keys of the [train] table.
    """
    named = _named(methods)
    _warn_of_groups(data, train)
    shared = _spelled(data, network, optimizer, public, bool(out))
    texts = {label: spelled("method", method, _as_name(label), bool(out)) for label, method in named.items()}
    if len({part.text for part in texts.values()}) < len(texts):
        raise ConfigError("methods: two of them are the same; leave one out, or give them different options")
    if isinstance(seeds, bool) or (isinstance(seeds, int) and seeds < 1):
        raise ConfigError(f"seeds: got {seeds!r}; give a number of seeds, at least 1, or a list of seeds")
    require_count("jobs", jobs)
    numbers = range(seeds) if isinstance(seeds, int) else as_sequence(seeds, "seeds")
    domains = dataset(shared["data"].text).domains if targets == "each" else as_sequence(targets, "targets")
    cells = [
        _config(shared | {"method": part}, train, rounds=rounds, target=target, seed=seed)
        for seed in numbers
        for target in domains
        for part in texts.values()
    ]
    cells = list({(cell.method, frozenset(str(cell.target).split("+")), cell.seed): cell for cell in cells}.values())
    if baseline is not None and baseline not in texts:
        raise ConfigError(f"baseline: got {baseline!r}; give one of {', '.join(texts)}")
    labels = {config.parse({"method": part.text}).method: label for label, part in texts.items()}
    own = Own.of(cells, (*shared.values(), *texts.values()))
    computing = Computing(device, threads, 1, progress)
    return Grid(cells, labels, computing, own, Path(out) if out else None, jobs, baseline).run()


def load(folder: str | Path) -> Run:
    """Return the run in a folder that `run(..., out=...)` or the command line wrote, as in runs/fedavg/photo/seed-0."""
    config = run_folder.read_config(Path(folder))
    return Run(config, Folder(Path(folder)), Computing(), Own.of([config], []))


@dataclass(eq=False)
class Grid:
    """The runs of a comparison, and how they are run."""

    cells: list[Config]
    labels: dict[str, str]  # spec of a method -> the name that the user gave it
    computing: Computing
    own: Own
    out: Path | None
    jobs: int
    baseline: str | None
    memories: dict[int, Memory] = field(default_factory=dict)
    temporary: Path | None = None

    def run(self) -> Comparison:
        """Run what is missing; in a notebook, an interrupt ends with what is done."""
        failures: dict[str, str] = {}
        errors: list[Exception] = []
        with (
            self.own.restored(),
            torch_settings(self.computing) as device,
            announced(self.computing.progress, len(self.cells)) as show,
        ):
            runs = [Run(cell, storage, self.computing, self.own) for cell, storage in self.storages()]
            try:
                if self.jobs > 1:
                    self._run_in_processes(runs, device, show)
                for one in runs:
                    if not one.finished:
                        try:
                            run_rounds(one.config, one._storage, device, 1, show)
                        except Exception as error:  # one method that fails does not stop the others
                            if isinstance(error, FedbeyondError) and not isinstance(error, FederationError):
                                raise
                            failures[self._title(one)] = f"{self._title(one)}: {bench.reason_of(error)}"
                            errors.append(error)
            except KeyboardInterrupt:
                if not interactive():
                    raise
        if errors and not any(one.lines for one in runs):
            raise errors[0]  # with the traceback of the user's code
        return Comparison(self, runs, failures, self.baseline)

    def storages(self) -> list[tuple[Config, Memory | Folder]]:
        """Return where each run is kept: several processes need a folder, if only a temporary one."""
        if self.out is None and self.jobs > 1 and self.temporary is None:
            self.temporary = Path(tempfile.mkdtemp(prefix="fedbeyond-"))
            weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        place = self.out or self.temporary
        if place is None:
            return [(cell, self.memories.setdefault(number, Memory())) for number, cell in enumerate(self.cells)]
        folders = [(cell, run_folder.path(place, cell)) for cell in self.cells]
        for cell, folder in folders:
            run_folder.ensure_same_run(folder, cell)
        return [(cell, Folder(folder)) for cell, folder in folders]

    def _run_in_processes(self, runs: Sequence[Run], device: str, show: Callable[[Line], None]) -> None:
        """Run what is missing, this process included; runs that fail are left for the caller."""
        todo = [(run.config, run.folder) for run in runs if run.folder and not run.finished]
        helpers = forked(min(self.jobs, len(todo)) - 1, lambda: bench.work(todo, device, keep_on=True))
        with helpers as wait, followed([folder for _, folder in todo], show):
            bench.work(todo, device, keep_on=True)
            wait()

    def _title(self, one: Run) -> str:
        method = self.labels.get(one.config.method, one.config.method)
        return format_run(method, one.config.target, one.config.seed)


def _spelled(data: Any, network: Any, optimizer: Any, public: Any, stored: bool) -> dict[str, Spelled]:
    """Return the specs of everything that the runs of a comparison share."""
    given = {"data": data, "network": network, "optimizer": optimizer, "public": public}
    return {key: spelled(key, thing, stored=stored) for key, thing in given.items() if thing is not None}


def _warn_of_groups(data: Any, train: Mapping[str, Any]) -> None:
    """Warn if own data have groups, and splits would not keep them together."""
    own = isinstance(data, Dataset) and not spec_of(data)
    if own and not {"disjoint", "split"} & train.keys() and any(note.groups for note in data.notes.values()):
        warnings.warn(
            "these data have groups, and training and validation may share samples of one; pass disjoint='groups' to "
            "keep them apart, or disjoint=None if that is intended",
            stacklevel=3,
        )


def _named(methods: Any) -> dict[str, Any]:
    """Return methods by the names that tables show."""
    named = dict(methods) if isinstance(methods, Mapping) else {}
    for method in [] if named else as_sequence(methods, "methods"):
        label = method if isinstance(method, str) else spec_of(method) or own_name(method)
        if not label:
            raise ConfigError('methods: an object without a spec needs a name; give a dict, as in {"ours": method}')
        named[label] = method
    if not named:
        raise ConfigError("methods: got none; give a dict of names and methods, or a list")
    return named


def _as_name(label: Any) -> str:
    """Return a label of a table as a name under which an object can be registered."""
    return re.sub(r"[^\w.-]+", "-", str(label)).strip("-.")


def _config(parts: Mapping[str, Spelled], train: Mapping[str, Any], **given: Any) -> Config:
    """Return the configuration of a run."""
    table = {key: part.text for key, part in parts.items()} | {key: given[key] for key in ("target", "seed")}
    return config.parse(table | {"train": {"rounds": given["rounds"], **train}}, "run")
