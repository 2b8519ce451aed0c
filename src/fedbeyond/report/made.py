"""How runs were made: their configurations and versions, as they lie beside the results in folders of runs."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._io import note
from ..experiment.results import RESULTS
from ..spec import parse
from .layout import Cells

OWN = ("method", "target", "seed")  # in which runs of one report are meant to differ


class Made(NamedTuple):
    """The configuration of every run, and what it was computed with."""

    configs: tuple[dict[str, Any], ...] = ()
    machines: tuple[dict[str, Any], ...] = ()


def made(folders: Sequence[Path]) -> Made:
    """What lies beside the results in folders of runs."""
    places = [file.parent for folder in folders for file in sorted(folder.rglob(RESULTS))]
    configs, machines = (
        tuple(note(place / name) for place in places if (place / name).exists())
        for name in ("config.json", "machine.json")
    )
    return Made(configs, machines)


def settings(configs: Sequence[dict[str, Any]]) -> Cells:
    """Every key of configurations with its value, or its values and how many runs have each; those of runs apart."""
    flat = [_flat({key: value for key, value in config.items() if key not in OWN}) for config in configs]
    keys = dict.fromkeys(key for each in flat for key in each)
    return [["key", "value"], *([key, _counted([each.get(key, "-") for each in flat])] for key in keys)]


def versions(machines: Sequence[dict[str, Any]]) -> Cells:
    """What runs were computed with."""
    keys = dict.fromkeys(key for machine in machines for key in machine)
    return [["what", "version"], *([key, _counted([str(m.get(key, "-")) for m in machines])] for key in keys)]


def class_names(configs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The names of the classes, where the dataset is known to have them without being read; none otherwise."""
    spelled = {str(config.get("data", "")) for config in configs}
    if len(spelled) != 1 or not (name := spelled.pop()):
        return ()
    part, *_ = parse(name)
    given = part.options.get("classes")
    if isinstance(given, list):
        return tuple(map(str, given))
    if part.name == "styles":
        from ..data.datasets.drawing import CLASSES

        return CLASSES
    from ..data.datasets._benchmarks import outline  # needs torch, which a report can do without

    known = outline(name)
    return known.classes if known else ()


def _flat(config: dict[str, Any], above: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in config.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": _told(value)}
    return found


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _counted(values: Sequence[str]) -> str:
    many = Counter(values)
    return values[0] if len(many) == 1 else "; ".join(f"{value} ({count} runs)" for value, count in many.items())
