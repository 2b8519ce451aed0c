"""The command line: parse, call, print; no logic. Heavy modules are imported inside the commands that need them."""

import errno
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import NUMERICS, WIRE, __version__, _plugins
from ..errors import FedbeyondError
from ..experiment.figure_kinds import KINDS
from ..experiment.helper_processes import follow_lead
from . import federation, options
from .data import data
from .group import Commands

app = typer.Typer(
    cls=Commands,
    help="Federated domain generalization: train on several sites, evaluate on a domain that took no part.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

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


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedbeyond {__version__} (results {NUMERICS}, messages {WIRE})")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: options.ConfigFile = None,
    method: options.MethodName = None,
    target: options.Target = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    settings: options.Settings = [],  # noqa: B006 (typer reads the default)
    out: options.Out = Path("runs"),
    device: options.Device = "auto",
    threads: options.Threads = 1,
    tensorboard: options.Events = False,
    workers: Annotated[int, typer.Option(help="Processes that train the sites, each on a core or GPU.", min=1)] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="Print the time spent in each part of the run.")] = False,
    flame: Annotated[Path | None, typer.Option(help="Write a flame graph of the run as an HTML page.")] = None,
) -> None:
    """Train one method with one domain unseen; resume the run if it was stopped."""
    from ..experiment.bench import run_one
    from ..experiment.config import load
    from ..monitor.profiling import profiled

    loaded = load(config, settings, grid=False, method=method, target=target, seed=seed)
    with profiled(profile, flame, workers):
        run_one(loaded, out, device, threads, tensorboard, workers)


@app.command()
def bench(
    config: options.ConfigFile = None,
    settings: options.Settings = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="The folder of all runs; default: runs/NAME for NAME.toml.")] = None,
    device: options.Device = "auto",
    threads: options.Threads = 1,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; default: one per core.", min=1)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes for the sites of each run; default: by free cores.", min=1)
    ] = None,
    tensorboard: options.Events = False,
    on: Annotated[
        str, typer.Option(metavar="ray|HOST:PORT", help="Run on a Ray cluster: on this machine, or at an address.")
    ] = "",
    helper: Annotated[bool, typer.Option("--helper", hidden=True)] = False,
) -> None:
    """Compare methods: run each one with every domain left out in turn and every seed; skip finished runs."""
    if helper:
        follow_lead()
    from ..experiment.bench import run_all, run_as_helper
    from ..experiment.config import load
    from ..report.bench import report_bench

    folder = out or Path("runs") / (config.stem if config else "bench")
    loaded = load(config, settings, grid=True)
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
def check(config: options.ConfigFile = None, settings: options.Settings = []) -> None:  # noqa: B006
    """Print the runs, the model size and what each site would send; train nothing."""
    from ..experiment.config import load
    from ..experiment.plan import plan

    print(plan(load(config, settings)), end="")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or result files.")],
    select: options.Select = None,
    style: options.Format = "text",
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default: the terminal (html: report.html).")
    ] = None,
    beside: options.Paper = None,
    metric: options.Metric = "accuracy",
    baseline: options.Baseline = None,
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
    kind: options.Kind,
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write to; default: RUNS/figures.")] = None,
    target: options.TargetOfRuns = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the runs; default: the lowest.")] = None,
    method: options.MethodsOfRuns = [],  # noqa: B006
    device: options.Device = "auto",
    threads: options.Threads = 1,
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
    word: options.Name = "",
    style: options.TableFormat = "text",
) -> None:
    """Print the names of a group (methods as a table), or one name with its paper, options and presets."""
    from .catalogue import listing

    for line in listing(word, style):
        print(line)


app.add_typer(data, name="data")
federation.add(app)
