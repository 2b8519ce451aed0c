"""Configurations and software versions of runs, read from the folders of the runs."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._io import read_json
from ..experiment.results import RESULTS
from ..spec import parse
from .layout import Cells

PER_RUN = ("method", "target", "seed")  # keys in which the runs of one report differ
Record = dict[str, Any]  # the content of a JSON file


def read_beside_results(folders: Sequence[Path], name: str) -> list[Record]:
    """Read the file `name`, such as config.json, of every run in folders."""
    files = [file.with_name(name) for folder in folders for file in sorted(folder.rglob(RESULTS))]
    return [read_json(file) for file in files if file.exists()]


def settings(configs: Sequence[Record]) -> Cells:
    """Return every configuration key with its value, or its values with their numbers of runs; without PER_RUN keys."""
    flat = [_flat({key: value for key, value in config.items() if key not in PER_RUN}) for config in configs]
    return [["key", "value"], *_counted(flat)]


def versions(machines: Sequence[Record]) -> Cells:
    """Return the software and hardware versions of runs."""
    return [["component", "version"], *_counted(machines)]


def names_of_classes(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of the classes of all runs in folders; none if the runs differ, or are old and do not say."""
    stored = [tuple(map(str, each.get("classes", ()))) for each in read_beside_results(folders, "classes.json")]
    configs = read_beside_results(folders, "config.json")
    if len(set(stored)) == 1 and len(stored) == len(configs):
        return stored[0]
    return class_names(configs)


def class_names(configs: Sequence[Record]) -> tuple[str, ...]:
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


def _flat(config: Record, prefix: str = "") -> Record:
    flat: Record = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _counted(records: Sequence[Record]) -> Cells:
    """Return each key of the records with its value, or with its values and the number of runs of each."""
    rows = []
    for key in dict.fromkeys(key for each in records for key in each):
        counts = Counter(str(each.get(key, "-")) for each in records)
        several = "; ".join(f"{value} ({count} runs)" for value, count in counts.items())
        rows.append([key, several if len(counts) > 1 else next(iter(counts))])
    return rows
