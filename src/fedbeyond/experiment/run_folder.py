"""The folder of one run: where it is, which run it holds, and whether that run is finished."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .. import NUMERICS, __version__, _io
from ..errors import ConfigError, StorageError
from ..evaluation.selection import Line
from . import checkpoint, more_rounds, results
from .config import Config, Train, from_identity
from .results import RESULTS

CONFIG, MACHINE, DONE = "config.json", "machine.json", "done"
CLASSES = "classes.json"  # the names of the classes, in the order of labels: reports are made without the data
CHECKPOINT = "checkpoint.safetensors"  # the state after the last finished round, to resume from
BEST = "best.safetensors"  # the model of the round that train.select chose
LAST = "last.safetensors"  # the model that was evaluated last, if it is not the one in the checkpoint
ENROLLED = "enrolled.json"  # what each site reported, in a run whose sites are on other machines
MODELS = "models"  # earlier models that the server stored; deleted when the run is finished

MAX_NAME = 255  # bytes of a file name


def path(out: Path, config: Config) -> Path:
    """Return the folder of a run: out/method/target/seed."""
    method = re.sub(r"[^\w.+=-]+", "-", config.method).strip("-")
    for name, remedy in (
        *((part, "choose a shorter out folder") for part in out.parts),
        (method, "give the method fewer options, or put them into a preset of a plugin"),
        (str(config.target), "leave out fewer domains, or give them shorter names"),
    ):
        if len(os.fsencode(name)) > MAX_NAME:
            raise ConfigError(
                f"the folder name {name[:40]}... has {len(os.fsencode(name))} bytes, and a file system allows "
                f"{MAX_NAME}; {remedy}"
            )
    return out / method / str(config.target) / f"seed-{config.seed}"


def is_finished(folder: Path, config: Config) -> bool:
    """Return whether a run is finished: its folder has the line of each of its rounds."""
    return bool(finished_lines(folder, config))


def finished_lines(folder: Path, config: Config) -> list[Line]:
    """Read the result lines of a finished run; return none if it is not finished."""
    if not (folder / DONE).exists():
        return []
    try:
        written = lines(folder)
    except StorageError:  # a torn file: the run reads it again, and raises
        return []
    complete = len(written) == config.train.rounds and written[-1].get("rounds") == config.train.rounds
    return written if complete else []


def lines(folder: Path) -> list[Line]:
    """Read the result lines that a run has written so far."""
    return list(results.read(folder / RESULTS)) if (folder / RESULTS).exists() else []


def read_config(folder: Path) -> Config:
    """Read the configuration of the run in a folder."""
    if not (folder / CONFIG).exists():
        raise StorageError(f"{folder} is not a run: it has no {CONFIG}; give a folder such as runs/fedavg/photo/seed-0")
    return from_identity(_io.read_json(folder / CONFIG), str(folder / CONFIG))


def ensure_same_run(folder: Path, config: Config) -> None:
    """Raise `ConfigError` if a folder holds rounds of another run; only the number of rounds may differ."""
    if not ((folder / CHECKPOINT).exists() or (folder / DONE).exists()):
        return
    wanted, held = _flat(json.loads(json.dumps(config.identity()))), _flat(_io.read_json(folder / CONFIG))
    keys = dict.fromkeys([*wanted, *(key for key in held if key.startswith("code."))])
    differing = [key for key in keys if wanted.get(key) != held.get(key)]
    differences = "; ".join(f"{key} is {held.get(key)} there, {wanted.get(key)} here" for key in differing)
    if differing == ["train.rounds"]:
        reason = _why_not_continued(folder, config, held["train.rounds"])
        if reason:
            raise ConfigError(
                f"{folder} cannot be continued: {differences}, and {reason}; choose another out folder or delete it"
            )
    elif differing:
        raise ConfigError(f"{folder} holds another run: {differences}; choose another out folder or delete it")


def ensure_same_frozen(notes: Mapping[str, Any], digest: str, place: object) -> None:
    """Raise `StorageError` if a model was trained on another frozen part of the network than the one of this digest."""
    stored = str(notes.get("frozen", ""))
    if stored != digest:
        raise StorageError(
            f"{place} was trained on the frozen part {stored[:12] or '(none)'} of its network, and here it is "
            f"{digest[:12] or '(none)'}; give the weights file that the run began with, or start the run again"
        )


def ensure_own_code(folder: Path, config: Config) -> None:
    """Raise `ConfigError` if a stored run used objects or code of a Python program that are not the same here."""
    stored, here = _io.read_json(folder / CONFIG).get("code", {}), config.code()
    if lost := [name for name in stored if stored[name] != here.get(name)]:
        state = "has changed since" if lost[0] in here else "is unknown here"
        raise ConfigError(
            f"{folder} was run by a Python program with its own {lost[0]}, which {state}; call fedbeyond.run there "
            "with the same objects and the same out, and use its result"
        )


def _why_not_continued(folder: Path, config: Config, before: int) -> str:
    """Return why a run of `before` rounds cannot continue with another number of rounds; empty if it can."""
    if not (folder / CHECKPOINT).exists():
        return f"its {CHECKPOINT} is missing"
    done = int(checkpoint.load(folder / CHECKPOINT)[1]["rounds"])
    if reason := more_rounds.why_different(config, before, done):
        return reason
    if (folder / ENROLLED).exists():
        return "sites on other machines store their private state under the run's configuration"
    if (folder / DONE).exists() and (folder / DONE).read_bytes() and not (folder / MODELS).exists():
        return f"the earlier models that {config.method} needs ({MODELS}/) were deleted when the run was finished"
    return ""


def ensure_same_machine(folder: Path, device: str) -> None:
    """Raise `ConfigError` if the remaining rounds of a run would be computed differently from its first ones."""
    file = folder / MACHINE
    if not ((folder / CHECKPOINT).exists() and file.exists()):
        return
    began, here = _io.read_json(file), _machine(device)
    differing = [f"{key} {began.get(key)} (now {here[key]})" for key in here if began.get(key) != here[key]]
    if differing:
        raise ConfigError(
            f"{folder} began with {', '.join(differing)}; resume it with the same, or delete {file} to mix them"
        )


def write_machine(folder: Path, device: str) -> None:
    """Write which versions and device compute a run."""
    write_json(folder / MACHINE, machine(device))


def write_classes(folder: Path, classes: Sequence[str]) -> None:
    """Write the names of the classes of a run."""
    write_json(folder / CLASSES, {"classes": list(classes)})


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Write a record as JSON that people can read."""
    _io.write(path, json.dumps(record, indent=1, ensure_ascii=False).encode())


@contextmanager
def locked(folder: Path, config: Config) -> Iterator[None]:
    """Hold the lock of a run's folder, created if needed; `ConfigError` if the folder holds another run."""
    with _io.locked(folder):
        ensure_same_run(folder, config)
        if not is_finished(folder, config):  # a finished run may get more rounds
            with _io.storage_errors(folder):
                (folder / DONE).unlink(missing_ok=True)
        _io.write(folder / CONFIG, json.dumps(config.identity(), indent=1).encode())
        yield


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    """Return an identity with dotted keys, as in train.rounds and code.methods.mine; if all is trained, says so."""
    tables = ("train", "code")
    inner = {f"{table}.{key}": value for table in tables for key, value in dict(identity.get(table, {})).items()}
    return {key: value for key, value in identity.items() if key not in tables} | {"train.part": Train.part} | inner


def machine(device: str) -> dict[str, object]:
    """Return what computes a run, to compare and to store it."""
    return {"fedbeyond": __version__} | _machine(device)


def _machine(device: str) -> dict[str, object]:
    """Return what the bits of a result depend on besides the configuration."""
    return {"numerics": NUMERICS, "torch": torch.__version__, "device": device, "threads": torch.get_num_threads()}
