"""The report page of runs, in memory or in folders."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._io import write
from ..evaluation.selection import Line
from ..experiment import results, run_folder
from ..experiment.storage import Memory
from ..report.write import write_report

if TYPE_CHECKING:
    from .results import Run


def write_page(runs: Sequence["Run"], path: Path, labels: Mapping[str, str] | None = None, **options: Any) -> Path:
    """Write the report page of runs; `labels` replace methods by the names that the user gave them."""
    with tempfile.TemporaryDirectory(prefix="fedbeyond-") as place:
        for run in runs:
            copy_results(run, run_folder.path(Path(place), run.config), labels or {})
        write_report([Path(place)], options.pop("select", None), "html", path, quiet=True, **options)
    return path


def copy_results(run: "Run", folder: Path, labels: Mapping[str, str]) -> None:
    """Write what a report reads of a run: lines, times, configuration, machine and classes."""
    folder.mkdir(parents=True)
    if isinstance(run._storage, Memory):
        times, machine, classes = run._storage.times, run._storage.machine, list(run._storage.classes)
        run_folder.write_json(folder / run_folder.MACHINE, machine)
        run_folder.write_json(folder / run_folder.CLASSES, {"classes": classes})
        with run._own.restored():
            run_folder.write_json(folder / run_folder.CONFIG, run.config.identity())
    else:
        times = list(results.read(run._storage.path / results.TIMES))
        for name in (run_folder.MACHINE, run_folder.CLASSES, run_folder.CONFIG):
            write(folder / name, (run._storage.path / name).read_bytes())
    for name, lines in ((results.RESULTS, labelled(run.lines, labels)), (results.TIMES, labelled(times, labels))):
        write(folder / name, "".join(json.dumps(line) + "\n" for line in lines).encode())


def labelled(lines: Sequence[Line], labels: Mapping[str, str]) -> Iterator[Line]:
    """Yield lines with the names that the user gave to methods."""
    return (line | {"method": labels.get(line["method"], line["method"])} for line in lines)
