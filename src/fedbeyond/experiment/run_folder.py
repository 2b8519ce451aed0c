"""The folder of one run: where it is, which run it holds, and whether that run is finished."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .. import NUMERICS, __version__, _io
from ..errors import ConfigError, StorageError
from ..evaluation.selection import Line
from . import results
from .config import Config, from_identity
from .results import RESULTS

CONFIG, MACHINE, DONE = "config.json", "machine.json", "done"
CHECKPOINT = "checkpoint.safetensors"  # the state after the last finished round, to resume from
BEST = "best.safetensors"  # the model of the round that train.select chose
LAST = "last.safetensors"  # the model that was evaluated last, if it is not the one in the checkpoint
MODELS = "models"  # earlier models that the server stored; deleted when the run is finished


def path(out: Path, config: Config) -> Path:
    """Return the folder of a run: out/method/target/seed."""
    method = re.sub(r"[^\w.+=-]+", "-", config.method).strip("-")
    return out / method / str(config.target) / f"seed-{config.seed}"


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder has run all its rounds and has the line of each."""
    if not ((folder / DONE).exists() and (folder / RESULTS).exists()):
        return False
    written = (folder / RESULTS).read_bytes().splitlines()
    try:
        return bool(written) and len(written) == json.loads(written[-1])["rounds"]
    except (ValueError, KeyError, TypeError):
        return False


def lines(folder: Path) -> list[Line]:
    """Read the result lines that a run has written so far."""
    return list(results.read(folder / RESULTS)) if (folder / RESULTS).exists() else []


def read_config(folder: Path) -> Config:
    """Read the configuration of the run in a folder."""
    if not (folder / CONFIG).exists():
        raise StorageError(f"{folder} is not a run: it has no {CONFIG}; give a folder such as runs/fedavg/photo/seed-0")
    return from_identity(_io.read_json(folder / CONFIG), str(folder / CONFIG))


def ensure_same_run(folder: Path, config: Config) -> None:
    """Raise `ConfigError` if a folder holds rounds of another run."""
    if not ((folder / CHECKPOINT).exists() or (folder / DONE).exists()):
        return
    wanted, held = _flat(json.loads(json.dumps(config.identity()))), _flat(_io.read_json(folder / CONFIG))
    differing = [key for key in wanted if wanted[key] != held.get(key)]
    differences = [f"{key} is {held.get(key)} there, {wanted[key]} here" for key in differing]
    if differences:
        raise ConfigError(
            f"{folder} holds another run: {'; '.join(differences)}; choose another --out or delete that folder"
        )


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
    _io.write(folder / MACHINE, json.dumps({"fedbeyond": __version__} | _machine(device), indent=1).encode())


@contextmanager
def locked(folder: Path, config: Config) -> Iterator[None]:
    """Hold the lock of a run's folder, created if needed; `ConfigError` if the folder holds another run."""
    with _io.locked(folder):
        ensure_same_run(folder, config)
        _io.write(folder / CONFIG, json.dumps(config.identity(), indent=1).encode())
        yield


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    """Return an identity with dotted keys, as in train.rounds."""
    train = {f"train.{key}": value for key, value in dict(identity.get("train", {})).items()}
    return {key: value for key, value in identity.items() if key != "train"} | train


def _machine(device: str) -> dict[str, object]:
    """Return what the bits of a result depend on besides the configuration."""
    return {"numerics": NUMERICS, "torch": torch.__version__, "device": device, "threads": torch.get_num_threads()}
