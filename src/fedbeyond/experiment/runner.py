"""Run the rounds of an experiment, so that it can be stopped at any instant and resumed from its storage."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ..engine.rounds import participants, play, start
from ..errors import StorageError
from ..evaluation.selection import CRITERIA, Line, select_round
from ..networks.frozen import parameter_counts
from ..server import ModelStore, Round
from ..tree import Tree
from .prepare import Experiment
from .prepare import prepare as prepare
from .result_line import describe_round
from .results import RESULTS
from .run_folder import BEST, CHECKPOINT, LAST, ensure_same_frozen
from .storage import Folder, Save, Storage


def run(experiment: Experiment, place: Storage | Path, history: list[Line] | None = None) -> Iterator[Line]:
    """Run the rounds that are missing and yield the line of each; in a folder, `kill -9` loses no finished round.

    `place` is a folder, or another storage. `history` receives the lines of all rounds, also of those that
    were finished before.
    """
    engine, finished = experiment.engine, [] if history is None else history
    storage: Storage = Folder(place) if isinstance(place, Path) else place
    with storage.opened(experiment):
        state, first = resume(experiment, storage)
        finished[:] = storage.trim(first, experiment.config)
        if [line["round"] for line in finished] != list(range(first)):
            raise StorageError(f"{storage} lacks rounds that were run in its {RESULTS}; delete it to start again")
        # remote sites can go back one round only, so their checkpoints are written before the next round begins
        with closing(engine), storage.saving(in_background=engine.is_local) as save:
            yield from rounds(experiment, storage, state, finished, save)
        storage.finish()


def resume(experiment: Experiment, storage: Storage) -> tuple[Tree, int]:
    """Return the state to continue from, and the number of finished rounds."""
    engine, assembly = experiment.engine, experiment.assembly
    found = storage.saved(CHECKPOINT)
    models = assembly.initial_models() if found is None else {}
    assembly.trained = True  # from here on: a client's init may use the networks, too
    if found is None:
        engine.enrol()
        return start(experiment.method, engine.clients, models), 0
    saved, notes = found
    ensure_same_frozen(notes, assembly.frozen, storage)
    engine.restore(saved["clients"])
    return saved["state"], int(notes["rounds"])


def rounds(experiment: Experiment, storage: Storage, state: Tree, finished: list[Line], save: Save) -> Iterator[Line]:
    """Run the rounds after the `finished` ones; store each round's lines, then its checkpoint."""
    config, engine, total = experiment.config, experiment.engine, experiment.config.train.rounds
    store, frozen = ModelStore(storage.models), experiment.assembly.frozen
    named = {"frozen": frozen} if frozen else {}
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
        times: Line = {"round": number, "seconds": round(time.perf_counter() - began, 4)}
        if flops:
            parameters = sum(parameter_counts(experiment.nets["model"]))
            times |= {"parameters": parameters, "sent": sent, "flops": dict(sorted(flops.items()))}
        times = {key: line[key] for key in ("method", "target", "seed")} | times
        storage.append(line, times)  # before the checkpoint: a line without one is trimmed and made again
        finished.append(line)
        if "scores" in line and select_round(finished, CRITERIA[config.train.select]) is line:
            save(BEST, model, round=number, **named)
        if "scores" in line and experiment.levels:
            save(LAST, model, round=number, **named)  # the checkpoint holds it with averaged statistics
        save(CHECKPOINT, {"state": state, "clients": engine.state()}, rounds=number + 1, **named)
        yield line
