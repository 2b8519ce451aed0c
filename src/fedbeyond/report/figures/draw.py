"""Draw figures of a kind from folders of runs, and write them."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import matplotlib

from ...errors import ConfigError, nearest
from ...experiment.figure_kinds import KINDS
from ..figure import STYLE, Figure, save
from .runs import Run, describe_runs, finished_runs, has_global_model, open_run


def draw(
    kind: str,
    folders: Sequence[Path],
    out: Path | None = None,
    target: str | None = None,
    seed: int | None = None,
    methods: Sequence[str] = (),
    device: str = "cpu",
) -> Iterator[tuple[Figure, list[Path]]]:
    """Draw the figures of a kind and write them, by default into figures/ in the first folder."""
    if kind not in KINDS:
        raise ConfigError(f"figure {kind!r} is not known; {nearest(kind, KINDS)}")
    module = import_module(f".{kind}", __package__)
    runs = finished_runs(folders, target, seed, methods)
    if not methods:  # skip methods without a global model, unless they are named
        runs = [run for run in runs if has_global_model(run)] or runs
    if fits := getattr(module, "fits", None):
        runs = [run for run in runs if fits(run.config)]
        if not runs:
            raise ConfigError(f"no run has a method that {kind} can draw ({KINDS[kind].about}); give other folders")
    for selected in group_runs(kind, runs, bool(methods)):
        with matplotlib.rc_context(STYLE):  # for everything drawn after the panels
            figure = module.draw([open_run(run, device) for run in selected])
        yield figure, save(figure, out or folders[0] / "figures")


def group_runs(kind: str, runs: list[Run], named: bool) -> list[list[Run]]:
    """Return the runs of each figure: single runs (each named one, or the first), or all runs of one comparison."""
    wanted = KINDS[kind]
    if not wanted.seeds:
        runs = [run for run in runs if run.config.seed == runs[0].config.seed]
    if len(runs) < wanted.min_runs:
        given = f"{len(runs)} ({describe_runs(runs)})"
        raise ConfigError(f"{kind} needs {wanted.min_runs} runs of one target, and got {given}; give more folders")
    if wanted.max_runs == 1:
        return [[run] for run in (runs if named else runs[:1])]
    return [runs[: wanted.max_runs]]
