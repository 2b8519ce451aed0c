"""One run from a configuration: data, sites, federation, and the loop that can be stopped at any instant."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import NUMERICS, __version__, _io, tree
from .._io import note
from ..classifier import Networks, Task
from ..data.partition.assignment import hand_out, own_tests
from ..data.partition.pooling import pool
from ..data.partition.splits import sources as left
from ..engine.flops import Counting
from ..engine.gate import Gate, Left
from ..engine.protocol import Engine
from ..engine.reestimation import Outcome, levels_of, reestimated
from ..engine.rounds import participants, play, start
from ..engine.simulator import Simulator
from ..engine.workers import Workers
from ..errors import ConfigError, StorageError
from ..evaluation.evaluators import Judges, Models, judged, judges_here
from ..evaluation.selection import CRITERIA, DEFAULT, Line, chosen
from ..images import Split
from ..method import Method
from ..networks.moments import Levels
from ..server import Failure, Round, Shelf
from ..site import Site
from ..spec import POOLED
from ..timer import part
from ..tree import Tree
from ..wrappers.privacy import spent
from . import checkpoint, registry, results
from .build import beginnings, dataset, division, method_of, networks, of_a_site, outlines, public, require, sources
from .build import domains as known
from .config import Config, parse
from .model_store import Folder
from .results import RESULTS, TIMES
from .scoring import Evaluation, evaluated

LAST = "last.safetensors"  # the model that was evaluated last, where it is not that of the checkpoint


class Experiment(NamedTuple):
    """Everything a run needs, made from its configuration."""

    config: Config
    method: Method
    nets: Networks
    federation: Engine
    gate: Gate
    judges: Judges
    vals: dict[str, Split]  # what each client validates on; none if it is not here
    tests: dict[str, Split]  # the unseen domains, likewise
    homes: dict[str, str]  # the domain that each client stands for
    owns: Mapping[str, Split] = {}  # what each client keeps apart for an in-domain test
    device: str = "cpu"
    begin: Callable[[], Tree] = dict  # the networks that the server holds, as they are before the first round
    levels: Levels = ()  # BatchNorm layers whose statistics are re-estimated before models are evaluated


def prepare(config: Config, device: str = "cpu", workers: int = 1) -> Experiment:
    """Put a run together without training anything; with `workers`, processes that answer for sites."""
    method = method_of(config)
    network = registry.make_one("networks", config.network)
    left(sorted(known(config.data)), config.target)  # a target that is not there is said before data are drawn
    with part("data"):
        domains = dataset(config.data)
        divided = division(config, domains)
        data, tests = hand_out(domains, divided)
    homes = {name: holding.domain for name, holding in divided.clients.items()}
    many = sources(method, divided)
    require(method, config, many)
    shape = tuple(next(iter(tests.values()))[0].shape[1:])
    own = "cpu" if workers > 1 else device  # workers have devices of their own, which this process must not touch
    task = Task(domains.classes, shape, network, many)
    nets = networks(method, task, config.seed, own)
    settings = of_a_site(config, method, own)
    vals = {name: splits["val"] for name, splits in data.items()}
    if method.pooled:
        pooled, origin = pool(data, homes)
        data, settings = {POOLED: pooled}, settings | {"origin": origin}
    if method.public:
        shown = public(config, shape)
        data = {name: splits | {"public": shown} for name, splits in data.items()}
    sites = [Site(name, splits, nets, **settings) for name, splits in data.items()]
    gate = Gate(method.sends, outlines(method, nets), {site.name: site.size for site in sites}, config.train.quorum)
    owns = own_tests(domains, divided)
    engine: Simulator | Workers = Simulator(method.client, sites)
    splits = judged(vals, tests, owns)
    judges = judges_here(nets["model"], splits, homes)
    if workers > 1:
        engine = Workers(method.client, sites, workers, splits, device)
        judges = engine.judges(homes)
    begin = partial(beginnings, method, task, config.seed)
    measured = levels_of(method, nets["model"], shape)
    return Experiment(config, method, nets, engine, gate, judges, vals, tests, homes, owns, device, begin, measured)


def place(out: Path, config: Config) -> Path:
    """Where a run lives: out/method/target/seed."""
    method = re.sub(r"[^\w.+=-]+", "-", config.method).strip("-")
    return out / method / str(config.target) / f"seed-{config.seed}"


def finished(folder: Path, config: Config) -> bool:
    """Whether this run, and no other, lives there and is over."""
    belongs(folder, config)
    return (folder / "done").exists() and len(lines(folder)) == config.train.rounds


def belongs(folder: Path, config: Config) -> None:
    """Refuse a folder in which another run has played rounds."""
    if (folder / "checkpoint.safetensors").exists():
        wanted, found = json.loads(json.dumps(config.identity())), note(folder / "config.json")
        differing = [key for key in wanted if wanted[key] != found.get(key)]
        if differing:
            told = "; ".join(f"{key} is {found.get(key)} there, {wanted[key]} here" for key in differing)
            raise ConfigError(f"{folder} holds another run: {told}; choose another --out or delete that folder")


def same_machine(folder: Path, device: str) -> None:
    """Refuse to resume a run whose remaining rounds would be computed differently; write down what computes it here."""
    here = {"numerics": NUMERICS, "torch": torch.__version__, "device": device, "threads": torch.get_num_threads()}
    path = folder / "machine.json"
    if (folder / "checkpoint.safetensors").exists() and path.exists():
        began = note(path)
        differing = [f"{key} {began.get(key)} (now {value})" for key, value in here.items() if began.get(key) != value]
        if differing:
            raise ConfigError(
                f"{folder} began with {', '.join(differing)}; resume it with the same, or delete {path} to mix them"
            )
    _io.write(path, json.dumps({"fedbeyond": __version__} | here, indent=1).encode())


def run(experiment: Experiment, folder: Path) -> Iterator[Line]:
    """Play the rounds that are not yet played, and yield the line of each; `kill -9` at any instant loses nothing."""
    with claimed(folder, experiment.config):
        same_machine(folder, experiment.device)
        state, first = resume(experiment, folder / "checkpoint.safetensors")
        for name in (RESULTS, TIMES):
            results.trim(folder / name, first)
        if [line["round"] for line in lines(folder)] != list(range(first)):
            raise StorageError(f"{folder / RESULTS} lacks rounds that were played; delete {folder} to begin again")
        here = isinstance(experiment.federation, Simulator | Workers)
        saving = checkpoint.beside() if here else nullcontext(checkpoint.save)  # sites elsewhere go back but one round
        with closing(experiment.federation), saving as save:
            yield from rounds(experiment, folder, state, first, save)
        _io.write(folder / "done", b"")
        shutil.rmtree(folder / "shelf", ignore_errors=True)  # nobody goes on from here


def rounds(experiment: Experiment, folder: Path, state: Tree, first: int, save: Callable[..., None]) -> Iterator[Line]:
    """The rounds from `first` on, each with its lines and, once these are written, its checkpoint."""
    config, total = experiment.config, experiment.config.train.rounds
    played = lines(folder)
    clients, federation = experiment.federation.clients, experiment.federation
    shelf = Shelf(Folder(folder / "shelf"))
    for number in range(first, total):
        began = time.perf_counter()
        asked = participants(clients, config.train.clients_per_round, config.seed, number)
        now = Round(number, total, asked, clients, config.seed, config.digest(), shelf)
        # in the last round, when warm-ups are over; elsewhere than here, nobody sees what an answer takes
        last = number + 1 == total
        counting = Counting(federation) if last and isinstance(federation, Simulator | Workers) else None
        state, minutes = play(experiment.method, state, now, counting or federation, experiment.gate)
        line, model = describe(experiment, now, state, minutes)
        results.append(folder / RESULTS, line)  # before the checkpoint: what has none is trimmed and redone
        spent: Line = {"round": number, "seconds": round(time.perf_counter() - began, 4)}
        if counting:
            size = sum(param.numel() for param in experiment.nets["model"].parameters())
            spent |= {"parameters": size, "sent": dict(counting.sent), "flops": dict(counting.flops)}
        results.append(folder / TIMES, {key: line[key] for key in ("method", "target", "seed")} | spent)
        played.append(line)
        if "scores" in line and chosen(played, CRITERIA[config.train.select]) is line:
            save(folder / "best.safetensors", model, round=number)
        if "scores" in line and experiment.levels:
            save(folder / LAST, model, round=number)  # the checkpoint holds it as it is trained on
        save(folder / "checkpoint.safetensors", {"state": state, "slots": federation.state()}, rounds=number + 1)
        yield line


def lines(folder: Path) -> list[Line]:
    """The lines that a run has written so far."""
    return list(results.read(folder / RESULTS)) if (folder / RESULTS).exists() else []


def resume(experiment: Experiment, path: Path) -> tuple[Tree, int]:
    """The state to go on from, and the next round's number."""
    federation = experiment.federation
    if not path.exists():
        federation.enrol()
        return start(experiment.method, federation.clients, experiment.begin()), 0
    saved, notes = checkpoint.load(path)
    federation.restore(saved["slots"])
    return saved["state"], int(notes["rounds"])


@contextmanager
def claimed(folder: Path, config: Config) -> Iterator[None]:
    """The folder, made if need be, ours alone, and holding no other run."""
    with _io.locked(folder):
        belongs(folder, config)
        _io.write(folder / "config.json", json.dumps(config.identity(), indent=1).encode())
        yield


def describe(experiment: Experiment, now: Round, state: Tree, minutes: dict[str, Any]) -> tuple[Line, Tree]:
    """The line of a round: how good the global model is everywhere, if it is time to judge, and what happened.

    With it the model as it was evaluated.
    """
    config, train, number = experiment.config, experiment.config.train, now.number
    found = Evaluation({}, {}, [])
    if (number + 1) % train.evaluate_every == 0 or number + 1 == train.rounds:
        with part("evaluation"):
            models = experiment.method.judged(state["server"])
            found = evaluated(models, number, experiment.judges, reestimator(experiment, now, minutes))
    if found.outcome:
        minutes["left"] += found.outcome.left
        minutes["down"].update(found.outcome.received)
        minutes["aside"] += _named("statistics", found.outcome.rejected)
    numbers = told(state["weighting"]) | told(state["server"])
    numbers |= spent(experiment.method, state["post"], experiment.federation.answered)
    line = {
        "method": config.method,
        "target": config.target,
        "seed": config.seed,
        "setting": config.setting(),
        "round": number,
        "rounds": config.train.rounds,
        **({"select": train.select} if train.select != DEFAULT else {}),
        **found.scores,
        "weights": minutes["weights"] or numbers.get("weights", {}),
        "told": numbers,
        "aside": minutes["aside"] + _named("evaluate", found.absent),
        "left": _ledger(minutes["left"]),
        "down": dict(minutes["down"]),
        "kept": dict(experiment.federation.kept),
    }
    return line, found.models.get("model", state["server"]["model"])


def reestimator(experiment: Experiment, now: Round, minutes: dict[str, Any]) -> Callable[[Models, int], Outcome] | None:
    """How the statistics of this round's models are re-estimated, if they are: sites count as they did in training."""
    if not experiment.levels:
        return None
    federation = experiment.federation
    weights = minutes["weights"] or {name: float(federation.sizes[name]) for name in now.clients}
    return lambda models, number: reestimated(
        models, experiment.levels, weights, federation.measure, experiment.gate, number
    )


def _named(request: str, failures: Iterable[Failure]) -> list[dict[str, str]]:
    return [{"site": failure.client, "request": request, "reason": failure.reason} for failure in failures]


def told(state: Tree) -> dict[str, Any]:
    """The small numbers that a method keeps under "told", for whoever reads the results."""
    return tree.map(lambda leaf: leaf.item(), state.get("told", {}))  # type: ignore[no-any-return]


def _ledger(left: list[Left]) -> dict[str, dict[str, dict[str, int]]]:
    """Bytes that left, by site, by kind, by name."""
    book: dict[str, dict[str, dict[str, int]]] = {}
    for entry in left:
        names = book.setdefault(entry.client, {}).setdefault(entry.kind, {})
        names[entry.name] = names.get(entry.name, 0) + entry.bytes
    return book


def configuration(run: Path) -> Config:
    """The configuration that a run's folder holds."""
    if not (run / "config.json").exists():
        raise StorageError(f"{run} is no run: it has no config.json; give a folder as runs/fedavg/photo/seed-0")
    held = _io.note(run / "config.json")
    if held.get("train", {}).get("split"):  # its digest stands behind the name
        held["train"]["split"] = held["train"]["split"].rpartition(" ")[0]
    held["plugins"] = [name.partition(" ")[0] for name in held.get("plugins", [])]
    return parse(held, str(run / "config.json"))
