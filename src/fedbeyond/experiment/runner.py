"""Run the rounds of an experiment in a folder, so that it can be stopped at any instant and resumed."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

from .. import _io
from ..engine.rounds import participants, play, start
from ..errors import StorageError
from ..evaluation.selection import CRITERIA, Line, select_round
from ..server import ModelStore, Round
from ..tree import Tree
from . import checkpoint, results, run_folder
from .model_store import FileStore
from .prepare import Experiment
from .prepare import prepare as prepare
from .result_line import describe_round
from .results import RESULTS, TIMES
from .run_folder import BEST, CHECKPOINT, DONE, LAST, MODELS

COUNTS = ("parameters", "sent", "flops")  # in the times of the last round


def run(experiment: Experiment, folder: Path, history: list[Line] | None = None) -> Iterator[Line]:
    """Run the rounds that are missing and yield the line of each; `kill -9` at any instant loses no finished round.

    `history` receives the lines of all rounds, also of those that were finished before.
    """
    engine, finished = experiment.engine, [] if history is None else history
    with run_folder.locked(folder, experiment.config):
        run_folder.ensure_same_machine(folder, experiment.device)
        run_folder.write_machine(folder, experiment.device)
        run_folder.write_classes(folder, experiment.assembly.task.classes)
        state, first = resume(experiment, folder / CHECKPOINT)
        totals = {"setting": experiment.config.setting(), "rounds": experiment.config.train.rounds}
        results.trim(folder / TIMES, first, lambda line: without_counts(line, experiment.config.train.rounds))
        finished[:] = results.trim(folder / RESULTS, first, lambda line: line | totals)  # the run may have more rounds
        if [line["round"] for line in finished] != list(range(first)):
            raise StorageError(f"{folder / RESULTS} lacks rounds that were run; delete {folder} to start again")
        # remote sites can go back one round only, so their checkpoints are written before the next round begins
        saving = checkpoint.background_save() if engine.is_local else nullcontext(checkpoint.save)
        with closing(engine), saving as save:
            yield from rounds(experiment, folder, state, finished, save)
        _io.write(folder / DONE, MODELS.encode() if (folder / MODELS).exists() else b"")  # what is deleted
        shutil.rmtree(folder / MODELS, ignore_errors=True)


def resume(experiment: Experiment, path: Path) -> tuple[Tree, int]:
    """Return the state to continue from, and the number of finished rounds."""
    engine, assembly = experiment.engine, experiment.assembly
    models = None if path.exists() else assembly.initial_models()
    assembly.trained = True  # from here on: a client's init may use the networks, too
    if models is not None:
        engine.enrol()
        return start(experiment.method, engine.clients, models), 0
    saved, notes = checkpoint.load(path)
    engine.restore(saved["clients"])
    return saved["state"], int(notes["rounds"])


def without_counts(line: Line, total: int) -> Line:
    """Return the times of a round as written for a run of `total` rounds: only the last round has counts."""
    return line if line["round"] + 1 == total else {key: line[key] for key in line if key not in COUNTS}


def rounds(
    experiment: Experiment, folder: Path, state: Tree, finished: list[Line], save: Callable[..., None]
) -> Iterator[Line]:
    """Run the rounds after the `finished` ones; write each round's lines, then its checkpoint."""
    config, engine, total = experiment.config, experiment.engine, experiment.config.train.rounds
    store = ModelStore(FileStore(folder / MODELS))
    for number in range(len(finished), total):
        began = time.perf_counter()
        clients = participants(engine.clients, config.train.clients_per_round, config.seed, number)
        now = Round(number, total, clients, engine.clients, config.seed, config.digest(), store)
        # operations are counted in the last round, when warm-ups are over; remote sites do not report theirs
        flops = engine.count_flops() if number + 1 == total else {}
        state, round_log = play(experiment.method, state, now, engine, experiment.gate)
        sent = Counter[str]()  # numbers in replies
        for entry in round_log["ledger"]:
            sent[entry.client] += entry.numbers
        line, model = describe_round(experiment, now, state, round_log)
        results.append(folder / RESULTS, line)  # before the checkpoint: a line without one is trimmed and made again
        times: Line = {"round": number, "seconds": round(time.perf_counter() - began, 4)}
        if flops:
            parameters = sum(param.numel() for param in experiment.nets["model"].parameters())
            times |= {"parameters": parameters, "sent": sent, "flops": dict(sorted(flops.items()))}
        results.append(folder / TIMES, {key: line[key] for key in ("method", "target", "seed")} | times)
        finished.append(line)
        if "scores" in line and select_round(finished, CRITERIA[config.train.select]) is line:
            save(folder / BEST, model, round=number)
        if "scores" in line and experiment.levels:
            save(folder / LAST, model, round=number)  # the checkpoint holds it with averaged statistics
        save(folder / CHECKPOINT, {"state": state, "clients": engine.state()}, rounds=number + 1)
        yield line
