"""One figure of a kind, or several, from folders of runs to files."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import matplotlib

from ...errors import ConfigError, nearest
from ...experiment.figure_kinds import KINDS
from ..figure import STYLE, Figure, save
from .runs import Run, found, hold, of_one_model, together


def draw(
    kind: str,
    folders: Sequence[Path],
    out: Path | None = None,
    target: str | None = None,
    seed: int | None = None,
    methods: Sequence[str] = (),
    device: str = "cpu",
) -> Iterator[tuple[Figure, list[Path]]]:
    """Make the figures of a kind and write them, by default into figures/ in the first folder."""
    if kind not in KINDS:
        raise ConfigError(f"figure {kind!r} is not known; {nearest(kind, KINDS)}")
    module = import_module(f".{kind}", __package__)
    runs = found(folders, target, seed, methods)
    if not methods:  # nobody asked for those of a reference that has no one model
        runs = [run for run in runs if of_one_model(run)] or runs
    if fits := getattr(module, "fits", None):
        runs = [run for run in runs if fits(run.config)]
        if not runs:
            raise ConfigError(f"no run there is of a method that a {kind} figure is for: {KINDS[kind].about}")
    for some in taken(kind, runs, bool(methods)):
        with matplotlib.rc_context(STYLE):  # for whatever is drawn after the panels
            figure = module.draw([hold(run, device) for run in some])
        yield figure, save(figure, out or folders[0] / "figures")


def taken(kind: str, runs: list[Run], named: bool) -> list[list[Run]]:
    """The runs of each figure: one alone (of several that were named, each), or those that are compared in one."""
    wanted = KINDS[kind]
    if not wanted.seeds:
        runs = [run for run in runs if run.config.seed == runs[0].config.seed]
    if len(runs) < wanted.least:
        given = f"{len(runs)} ({together(runs)})"
        raise ConfigError(f"{kind} takes {wanted.least} runs of one target, and there are {given}; give more folders")
    if wanted.most == 1:
        return [[run] for run in (runs if named else runs[:1])]
    return [runs[: wanted.most]]
