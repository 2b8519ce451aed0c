"""Results of runs: their history, scores, model, plots and files."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from .._io import read_json
from ..errors import ConfigError, StorageError
from ..evaluation import cautions
from ..evaluation.rules import RULES, unseen
from ..evaluation.selection import Line, evaluated, selection_score
from ..experiment import more_rounds, run_folder
from ..experiment.config import Config
from ..experiment.prepare import prepare
from ..experiment.run_state import format_run
from ..experiment.storage import Folder, Memory
from ..export.export import ensure_global_model, temperature
from ..export.export import export as write_export
from ..report import curves, layout
from ..report.table import METRICS, tabulate
from ..spec import unseen_domains
from .model import Model
from .objects import Own
from .page import write_page
from .rows import Rows, notes_html
from .running import Computing, announced, interactive, require_count, run_rounds, torch_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {
    "val": "validation",
    "test": "unseen",
    "local_test": "in-domain test",
}  # of a line's scores


class Run:
    """The result of a run, finished or not: history, scores, model, plots, report and export."""

    def __init__(self, config: Config, storage: Memory | Folder, computing: Computing, own: Own) -> None:
        self.config, self._storage, self._computing, self._own = config, storage, computing, own
        self._model: tuple[int, Model] | None = None

    @property
    def lines(self) -> list[Line]:
        """The result line of each finished round, as in results.jsonl."""
        return self._storage.lines if isinstance(self._storage, Memory) else run_folder.lines(self._storage.path)

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return len(self.lines) == self.config.train.rounds

    @property
    def folder(self) -> Path | None:
        """The folder of a run that was given `out`; None for a run in memory."""
        return self._storage.path if isinstance(self._storage, Folder) else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of labels."""
        if isinstance(self._storage, Memory):
            return self._storage.classes
        stored = self._storage.path / run_folder.CLASSES
        return tuple(read_json(stored)["classes"]) if stored.exists() else ()

    @property
    def history(self) -> Rows:
        """One row for each evaluated round and domain: metrics on its validation samples, or as the unseen domain."""
        return Rows(
            [
                {"round": line["round"] + 1, "domain": domain, "split": PARTS[part]}
                | {name: scores[part].get(name) for name in METRICS}
                for line in evaluated(self.lines)
                for domain, scores in line["scores"].items()
                for part in PARTS
                if part in scores
            ]
        )

    def score(self, metric: str = "accuracy", select: str | None = None, domain: str = "") -> float:
        """Return a metric on the unseen domain (of several: their mean) in the round that a selection rule chooses.

        Args:
            metric: accuracy, balanced_accuracy, f1, f1_weighted, auc, auc_weighted or calibration_error.
            select: source-validation, source-validation-balanced, last, or oracle, which looks at the unseen domain and
                is not a fair result; by default the rule of the run.
            domain: one of several unseen domains.
        """
        if metric not in METRICS:
            raise ConfigError(f"metric: got {metric!r}; give one of {', '.join(METRICS)}")
        if domain and domain not in (known := unseen_domains(self.config.target)):
            raise ConfigError(f"domain: got {domain!r}, which is not unseen; give one of {', '.join(known)}")
        return unseen(self.selected(select), domain, metric)

    def selected(self, select: str | None = None) -> Line:
        """Return the line of the round that a selection rule chooses."""
        select = select or self.config.train.select
        if select not in RULES:
            raise ConfigError(f"select: got {select!r}; give one of {', '.join(RULES)}")
        if not evaluated(self.lines):
            raise StorageError("no round of this run is evaluated yet; resume() runs the missing rounds")
        return RULES[select](evaluated(self.lines))

    @property
    def model(self) -> Model:
        """The model of the round that the run's selection rule chose, as a torch module."""
        rounds = len(self.lines)
        if self._model is None or self._model[0] != rounds:
            self.selected()  # raises if no round is evaluated
            saved = self._storage.saved(run_folder.BEST)
            assert saved is not None
            with self._own_code(), torch_settings(self._computing):
                experiment = prepare(self.config, cached=False)
                ensure_global_model(experiment)
                run_folder.ensure_same_frozen(saved[1], experiment.assembly.frozen, self._storage)
                net = experiment.assembly.whole_network(saved[0])
                calibrated = temperature(net, list(experiment.validation.values()))
            self._model = rounds, Model(net, experiment.assembly.task.classes, calibrated)
        return self._model[1]

    def resume(self, rounds: int | None = None) -> "Run":
        """Run the rounds that are missing, or more: `rounds` is the new total. Return this run."""
        with self._own_code():
            if rounds is not None and rounds != self.config.train.rounds:
                require_count("rounds", rounds)
                config = replace(self.config, train=replace(self.config.train, rounds=rounds))
                done = len(self.lines)
                if reason := more_rounds.why_different(config, self.config.train.rounds, done) if done else "":
                    raise ConfigError(f"this run cannot continue with {rounds} rounds: {reason}")
                self.config = config
            if not self.finished:
                try:
                    with torch_settings(self._computing) as device, announced(self._computing.progress, 1) as show:
                        run_rounds(self.config, self._storage, device, self._computing.workers, show)
                except KeyboardInterrupt:
                    if not interactive():
                        raise
        return self

    def plot(self, metric: str = "accuracy") -> "Figure":
        """Draw a metric on the unseen domains over rounds."""
        lines = [line | {"rounds": len(self.lines)} for line in self.lines]
        drawn = curves.over_rounds(tabulate(lines, self.config.train.select, metric), self.config.method)
        if drawn is None:
            raise ConfigError("a plot needs two evaluated rounds; run more of them")
        return drawn.picture

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the page of this run."""
        return write_page([self], Path(path))

    def export(self, folder: str | Path, onnx: bool = False) -> Path:
        """Write the model and its card, for `fedbeyond predict`."""
        with self._own_code(), self._in_folder() as run, torch_settings(self._computing):
            return write_export(run, Path(folder), onnx=onnx)

    def save(self, out: str | Path) -> "Run":
        """Write a run in memory to a folder, where it can be reported, exported and resumed; return it from there."""
        folder = run_folder.path(Path(out), self.config)
        if isinstance(self._storage, Memory):
            with self._own_code():
                self._storage.write(folder, self.config, self.finished)
            self._storage = Folder(folder)
        elif self._storage.path != folder:
            raise ConfigError(f"this run is in {self._storage.path} already; copy that folder")
        return self

    @contextmanager
    def _own_code(self) -> Iterator[None]:
        """While the block runs, names stand for what this run was made with; raise if a stored run had other code."""
        with self._own.restored():
            if isinstance(self._storage, Folder) and self.lines:
                run_folder.ensure_own_code(self._storage.path, self.config)
            yield

    @contextmanager
    def _in_folder(self) -> Iterator[Path]:
        """Yield the folder of the run; a run in memory is written to a temporary one."""
        if isinstance(self._storage, Folder):
            yield self._storage.path
            return
        with tempfile.TemporaryDirectory(prefix="fedbeyond-") as place:
            folder = run_folder.path(Path(place), self.config)
            self._storage.write(folder, self.config, self.finished)
            yield folder

    def _title(self) -> str:
        return format_run(self.config.method, self.config.target, self.config.seed)

    def _summary(self) -> Rows:
        if not evaluated(self.lines):
            return Rows([])
        rows = []
        for rule in (self.config.train.select, "last", "oracle"):
            line = self.selected(rule)
            row = {"selection": rule, "round": line["round"] + 1}
            rows.append(row | {"own domains": selection_score(line), "unseen": unseen(line)})
        return Rows(rows)

    def _notes(self) -> list[str]:
        key = self.config.method, str(self.config.target), self.config.seed
        return cautions.run_warnings({key: self.selected()}, self.classes) if evaluated(self.lines) else []

    def _state(self) -> str:
        done, total = len(self.lines), self.config.train.rounds
        return f"{total} rounds" if done == total else f"stopped after round {done} of {total}; .resume() continues"

    def __repr__(self) -> str:
        rows = self._summary()
        notes = "".join(f"{line}\n" for line in cautions.wrap_warnings(self._notes()))
        return layout.text(rows._cells(), f"{self._title()}: {self._state()}") + notes if len(rows) else self._state()

    def _repr_html_(self) -> str:
        notes = notes_html(self._notes())
        return f"<p>{escape(self._title())}: {escape(self._state())}</p>{self._summary()._repr_html_()}{notes}"
