"""The command line: parse, call, print; no logic. Heavy modules are imported inside the commands that need them."""

import errno
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .. import _plugins
from ..errors import FedbeyondError
from ..experiment.figure_kinds import KINDS
from ..experiment.helpers import follow_lead
from . import federation
from .data import data
from .options import ConfigFile, Out, Settings

app = typer.Typer(
    help="Federated domain generalization: train on several sites, evaluate on a domain that took no part.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto: cuda if available.")]
Events = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard event files to each run's folder.")]
Threads = Annotated[int, typer.Option(help="Number of compute threads; 0: one per core.", min=0)]
FIGURES = "\n".join(f"{name + ':':12}{kind.about}" for name, kind in KINDS.items())


def main() -> None:
    """Run a command; an error that the user can fix is printed as one line, with exit code 2."""
    try:
        app(standalone_mode=True)
    except FedbeyondError as error:
        if _plugins.traceback_wanted():
            raise
        sys.exit(_print_error(str(error)))
    except PermissionError as error:
        sys.exit(_print_error(f"{error.filename}: no permission; give the user that runs fedbeyond access to it"))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            sys.exit(
                _print_error(f"{str(error.filename)[:60]}...: a name in this path is too long; choose a shorter one")
            )
        if _plugins.traceback_wanted() or not _plugins.place(error):
            raise
        sys.exit(_print_error(_plugins.describe(error)))


def _print_error(message: str) -> int:
    if re.search(r"\.py, line \d+: ", message):  # an exception in a plugin
        message += f" ({_plugins.VARIABLE}=1 in the environment shows the whole traceback)"
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2


@contextmanager
def _interruptible() -> Iterator[None]:
    """End a command in order, with its display and its processes, on Ctrl-C and on SIGTERM."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as stopped:
        print("\nstopped; finished rounds are kept: give the same command again to resume", file=sys.stderr)
        raise typer.Exit(128 + (signal.SIGTERM if stopped.args == (signal.SIGTERM,) else signal.SIGINT)) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command()
def run(
    config: ConfigFile = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="A method, with wrappers after a plus: fedavg+ga.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="The unseen domain: it takes no part in training.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    settings: Settings = [],  # noqa: B006 (typer reads the default)
    out: Out = Path("runs"),
    device: Device = "auto",
    threads: Threads = 1,
    tensorboard: Events = False,
    workers: Annotated[int, typer.Option(help="Processes that train the sites, each on a core or GPU.", min=1)] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="Print the time spent in each part of the run.")] = False,
    flame: Annotated[Path | None, typer.Option(help="Write a flame graph of the run as an HTML page.")] = None,
) -> None:
    """Train one method with one domain unseen; resume the run if it was stopped."""
    from ..experiment.bench import run_one
    from ..experiment.config import ensure_used, load
    from ..monitor.profiling import profiled

    loaded = load(config, settings, method=method, target=target, seed=seed)
    ensure_used(loaded, settings, grid=False)
    with _interruptible(), profiled(profile, flame, workers):
        run_one(loaded, out, device, threads, tensorboard, workers)


@app.command()
def bench(
    config: ConfigFile = None,
    settings: Settings = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="The folder of all runs; default: runs/NAME for NAME.toml.")] = None,
    device: Device = "auto",
    threads: Threads = 1,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; default: one per core.", min=1)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes for the sites of each run; default: by free cores.", min=1)
    ] = None,
    tensorboard: Events = False,
    on: Annotated[
        str, typer.Option(metavar="ray|HOST:PORT", help="Run on a Ray cluster: on this machine, or at an address.")
    ] = "",
    helper: Annotated[bool, typer.Option("--helper", hidden=True)] = False,
) -> None:
    """Compare methods: run each one with every domain left out in turn and every seed; skip finished runs."""
    if helper:
        follow_lead()
    from ..experiment.bench import run_all, run_as_helper
    from ..experiment.config import ensure_used, load
    from ..report.bench import report_bench

    folder = out or Path("runs") / (config.stem if config else "bench")
    with _interruptible():
        loaded = load(config, settings)
        ensure_used(loaded, settings, grid=True)
        if helper:
            run_as_helper(loaded, folder, device, threads, tensorboard, workers or 1)
        else:
            outcome = run_all(loaded, folder, device, threads, jobs, tensorboard, workers, on)
            report_bench(loaded, folder, outcome)
            outcome.ensure_complete()


@app.command()
def watch(
    runs: Annotated[Path, typer.Argument(help="The folder that 'bench' or 'run' writes to; it may be missing yet.")],
    port: Annotated[int, typer.Option(help="Port of the page; 0: any free port.", min=0, max=65535)] = 0,
) -> None:
    """Show runs live in a browser on this machine: progress, time left, curves, failures."""
    from ..monitor.watch.serve import watch as serve

    serve(runs, port)


@app.command()
def check(config: ConfigFile = None, settings: Settings = []) -> None:  # noqa: B006
    """Print the runs, the model size and what each site would send; train nothing."""
    from ..experiment.config import load
    from ..experiment.plan import plan

    print(plan(load(config, settings)), end="")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or result files.")],
    select: Annotated[
        str | None,
        typer.Option(
            help="How to choose the round of each run: source-validation, source-validation-balanced, last, or oracle "
            "(uses the unseen domain: not a fair result); default: the runs' train.select."
        ),
    ] = None,
    style: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or html.")] = "text",
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default: the terminal (html: report.html).")
    ] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="PAPER[/TABLE]", help="Add a paper's numbers, for example ga.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="accuracy, balanced_accuracy, f1, f1_weighted, auc, auc_weighted or calibration_error.")
    ] = "accuracy",
    baseline: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Add differences to this method, with p-values.")
    ] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Add bytes, operations and seconds per round.")] = False,
    where: Annotated[str, typer.Option("--on", help="unseen, or own: the sites' in-domain tests.")] = "unseen",
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write figures to this folder: SVG, PNG, CSV.")
    ] = None,
    batchnorm: Annotated[
        str | None, typer.Option(metavar="average", help="Use the scores with averaged statistics, of runs with both.")
    ] = None,
) -> None:
    """Write a table of methods and unseen domains, or an HTML page, from the results of runs."""
    from ..report.write import write_report

    write_report(runs, select, style, out, beside, metric, baseline, cost, where, figures, batchnorm)


@app.command(help=f"Draw a figure that needs a run's model and data, and write its numbers as CSV.\n\n\b\n{FIGURES}")
def figure(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.")],
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write to; default: RUNS/figures.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="The unseen domain of the runs; default: the first.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the runs; default: the lowest.")] = None,
    method: Annotated[
        list[str], typer.Option("--method", "-m", help="A method of the runs; may be repeated; default: all.")
    ] = [],  # noqa: B006
    device: Device = "auto",
    threads: Threads = 1,
) -> None:
    from ..experiment.bench import configure_torch
    from ..report.figures.draw import draw

    for drawn, paths in draw(kind, runs, out, target, seed, method, configure_torch(device, threads)):
        print(f"{drawn.title}. {drawn.caption}\nfigure: {', '.join(map(str, paths))}")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, for example runs/fedavg/photo/seed-0.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("model"),
    select: Annotated[
        str | None, typer.Option(help="'last' exports the last round; default: the one that train.select chose.")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx, to predict without torch.")] = False,
) -> None:
    """Export the model of a run for other sites: its parameters, and a model card that describes it."""
    from .._io import read_json
    from ..evaluation.cautions import wrap_warnings
    from ..export.export import CARD
    from ..export.export import export as write_model

    folder = write_model(run, out, select, onnx)
    card = read_json(folder / CARD)
    written = ", ".join(str(path) for path in sorted(folder.glob("model.*")) if path.name != CARD)
    print(f"model: {written}; model card: {folder / CARD}")
    print(f"use it with: fedbeyond predict {folder} {'TABLE.csv' if 'columns' in card else 'IMAGES_OR_FOLDERS'}")
    for line in wrap_warnings(card["warnings"]):
        print(line)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A folder that 'fedbeyond export' wrote.")],
    given: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT...", help="Images, folders of images (searched recursively), or one CSV file."),
    ],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
) -> None:
    """Predict a class and a calibrated probability for each image, or each row of a table; score them, if labelled."""
    from ..export.predict import predict as predict_all
    from ..export.score import counted

    count, what, remarks, scores = predict_all(model, given, out, overwrite)
    for remark in remarks:
        print(remark, file=sys.stderr)
    print("\n".join([f"{counted(count, what)}: {out}", *scores]))


@app.command("list")
def list_names(
    word: Annotated[
        str,
        typer.Argument(
            metavar="[GROUP|NAME]",
            help="methods, wrappers, datasets, networks, optimizers, schedules or transforms; or a name: fedprox.",
        ),
    ] = "",
    style: Annotated[str, typer.Option("--format", help="Format of the table of methods: text or markdown.")] = "text",
) -> None:
    """Print the names of a group (methods as a table), or one name with its paper, options and presets."""
    from .catalogue import listing

    for line in listing(word, style):
        print(line)


app.add_typer(data, name="data")
federation.add(app)
