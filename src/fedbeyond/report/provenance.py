"""Configurations and software versions of runs, read from the folders of the runs."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._io import read_json
from ..experiment.results import RESULTS
from ..spec import parse
from .layout import Cells

PER_RUN = ("method", "target", "seed")  # keys in which the runs of one report differ


class Provenance(NamedTuple):
    """The configuration of every run, and the software and hardware that it ran on."""

    configs: tuple[dict[str, Any], ...] = ()
    machines: tuple[dict[str, Any], ...] = ()


def read_provenance(folders: Sequence[Path]) -> Provenance:
    """Read config.json and machine.json of every run in folders."""
    run_folders = [file.parent for folder in folders for file in sorted(folder.rglob(RESULTS))]
    configs, machines = (
        tuple(read_json(run / name) for run in run_folders if (run / name).exists())
        for name in ("config.json", "machine.json")
    )
    return Provenance(configs, machines)


def settings(configs: Sequence[dict[str, Any]]) -> Cells:
    """Return every configuration key with its value, or its values with their numbers of runs; without PER_RUN keys."""
    flat = [_flat({key: value for key, value in config.items() if key not in PER_RUN}) for config in configs]
    keys = dict.fromkeys(key for each in flat for key in each)
    return [["key", "value"], *([key, _counted([each.get(key, "-") for each in flat])] for key in keys)]


def versions(machines: Sequence[dict[str, Any]]) -> Cells:
    """Return the software and hardware versions of runs."""
    keys = dict.fromkeys(key for machine in machines for key in machine)
    return [["component", "version"], *([key, _counted([str(m.get(key, "-")) for m in machines])] for key in keys)]


def class_names(configs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the names of the classes if the dataset's spelling gives them; otherwise none, as no data is read."""
    spellings = {str(config.get("data", "")) for config in configs}
    if len(spellings) != 1 or not (name := spellings.pop()):
        return ()
    part, *_ = parse(name)
    given = part.options.get("classes")
    if isinstance(given, list):
        return tuple(map(str, given))
    if part.name == "styles":
        from ..data.datasets.drawing import CLASSES

        return CLASSES
    from ..data.datasets._benchmarks import outline  # imports torch, which other reports do not need

    known = outline(name)
    return known.classes if known else ()


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": _text(value)}
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _counted(values: Sequence[str]) -> str:
    counts = Counter(values)
    return values[0] if len(counts) == 1 else "; ".join(f"{value} ({count} runs)" for value, count in counts.items())
