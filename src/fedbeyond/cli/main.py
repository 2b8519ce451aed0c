"""The command line: parses, calls, prints; holds no logic. Everything heavy is imported when a command needs it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..errors import FedbeyondError
from ..experiment.figure_kinds import KINDS
from . import federation

app = typer.Typer(
    help="Federated domain generalization: train at several sites, work at one that took no part.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Look at data, learn about datasets, check a copy.", no_args_is_help=True)
app.add_typer(data, name="data")

ConfigFile = Annotated[Path | None, typer.Argument(help="A TOML file; none: the built-in data and defaults.")]
Settings = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="As in --set train.rounds=5.")]
Out = Annotated[Path, typer.Option(help="Where runs are kept.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto: cuda if there is one.")]
Events = Annotated[bool, typer.Option("--tensorboard", help="Also TensorBoard's event files, beside each run.")]
Threads = Annotated[int, typer.Option(help="Threads to compute with; 0: every core.", min=0)]
FIGURES = "\n".join(f"{name + ':':12}{kind.about}" for name, kind in KINDS.items())


def main() -> None:
    """Run a command; what the user can act upon is one line and exit code 2."""
    try:
        app(standalone_mode=True)
    except FedbeyondError as error:
        if os.environ.get("FEDBEYOND_TRACEBACK"):
            raise
        sys.exit(_complain(str(error)))
    except PermissionError as error:
        sys.exit(_complain(f"{error.filename}: no permission; let the user who runs fedbeyond read (or write) it"))
    except KeyboardInterrupt:
        sys.exit(130)


def _complain(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("\nstopped; finished rounds are kept: give the same command again to go on", file=sys.stderr)
        raise typer.Exit(130) from None


@app.command()
def run(
    config: ConfigFile = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="As in fedavg+ga.")] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="The domain left out.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    settings: Settings = [],  # noqa: B006 (typer reads the default)
    out: Out = Path("runs"),
    device: Device = "auto",
    threads: Threads = 1,
    tensorboard: Events = False,
    workers: Annotated[int, typer.Option(help="Processes that answer for sites, each on a core or GPU.", min=1)] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the seconds go.")] = False,
    flame: Annotated[Path | None, typer.Option(help="Write a flame graph of the run, an HTML page.")] = None,
) -> None:
    """Train one method with one domain left out; goes on where it was stopped."""
    from ..experiment.bench import run_one
    from ..experiment.config import load
    from ..monitor.profiling import profiled

    asked = load(config, settings, method=method, target=target, seed=seed)
    with _interruptible(), profiled(profile, flame, workers):
        run_one(asked, out, device, threads, tensorboard, workers)


@app.command()
def bench(
    config: ConfigFile = None,
    settings: Settings = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Where runs are kept; runs/NAME for NAME.toml.")] = None,
    device: Device = "auto",
    threads: Threads = 1,
    jobs: Annotated[
        int | None, typer.Option(help="Runs to play at a time; none: as many as there are cores.", min=1)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes for the sites of each run; none: as cores are left.", min=1)
    ] = None,
    tensorboard: Events = False,
    on: Annotated[
        str, typer.Option(metavar="ray|HOST:PORT", help="On a Ray cluster: one of this machine's cores, or an address.")
    ] = "",
    helper: Annotated[bool, typer.Option("--helper", hidden=True)] = False,
) -> None:
    """Compare methods: every method with every target left out and every seed; skips what is done."""
    from ..experiment.bench import help_out, run_all
    from ..experiment.config import load
    from ..report.bench import report_bench

    folder = out or Path("runs") / (config.stem if config else "bench")
    with _interruptible():
        asked = load(config, settings)
        if helper:
            help_out(asked, folder, device, threads, tensorboard, workers or 1)
        else:
            outcome = run_all(asked, folder, device, threads, jobs, tensorboard, workers, on)
            report_bench(asked, folder, outcome)
            outcome.ensure_complete()


@app.command()
def watch(
    runs: Annotated[
        Path, typer.Argument(help="What 'bench' or 'run' writes to, as runs/demo; it need not be there yet.")
    ],
    port: Annotated[int, typer.Option(help="Of the page's address; 0: a free one.", min=0, max=65535)] = 0,
) -> None:
    """Show runs as they go on, in a browser on this machine: progress, time left, curves, failures."""
    from ..monitor.watch.serve import watch as serve

    serve(runs, port)


@app.command()
def check(config: ConfigFile = None, settings: Settings = []) -> None:  # noqa: B006
    """Print what would be run, how large it is and what would leave each site, without training."""
    from ..experiment.config import load
    from ..experiment.plan import plan

    print(plan(load(config, settings)), end="")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or result files.")],
    select: Annotated[
        str | None,
        typer.Option(help="source-validation, source-validation-balanced, last or oracle; none: as the runs' own."),
    ] = None,
    style: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or html.")] = "text",
    out: Annotated[Path | None, typer.Option(help="A file to write; none: the terminal (html: report.html).")] = None,
    beside: Annotated[str | None, typer.Option(metavar="PAPER[/TABLE]", help="A paper's numbers, as in ga.")] = None,
    metric: Annotated[str, typer.Option(help="accuracy, balanced_accuracy, f1, auc, ...")] = "accuracy",
    baseline: Annotated[str | None, typer.Option(metavar="METHOD", help="Differences to it, with p-values.")] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Also bytes, operations and seconds of a round.")] = False,
    where: Annotated[str, typer.Option("--on", help="unseen, or own: the sites' in-domain tests.")] = "unseen",
    figures: Annotated[Path | None, typer.Option(metavar="DIR", help="Also write figures: SVG, PNG, CSV.")] = None,
    batchnorm: Annotated[
        str | None, typer.Option(metavar="average", help="Scores with averaged statistics, of runs that have both.")
    ] = None,
) -> None:
    """Make a table of methods and unseen domains, or a page, from the results of runs."""
    from ..report.write import write_report

    write_report(runs, select, style, out, beside, metric, baseline, cost, where, figures, batchnorm)


@app.command(help=f"Draw what needs a run's model and data, and write its numbers beside it.\n\n\b\n{FIGURES}")
def figure(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.")],
    runs: Annotated[list[Path], typer.Argument(help="A run's folder, or folders of many.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write into; none: RUNS/figures.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Of runs with it unseen; none: the first.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of runs with this seed; none: the lowest.")] = None,
    method: Annotated[list[str], typer.Option("--method", "-m", help="Of these alone; may be given again.")] = [],  # noqa: B006
    device: Device = "auto",
    threads: Threads = 1,
) -> None:
    from ..experiment.bench import machine
    from ..report.figures.draw import draw

    for made, paths in draw(kind, runs, out, target, seed, method, machine(device, threads)):
        print(f"{made.title}. {made.caption}\nfigure: {', '.join(map(str, paths))}")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, as runs/fedavg/photo/seed-0.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("model"),
    select: Annotated[
        str | None, typer.Option(help="last; none: the round that source validation chose (train.select).")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also model.onnx, for machines without torch.")] = False,
) -> None:
    """Write the model of a run for other sites to use: its numbers, and a card that says what they are."""
    from .._io import note
    from ..evaluation.cautions import wrapped
    from ..export.export import CARD
    from ..export.export import export as write_model

    folder = write_model(run, out, select, onnx)
    written = ", ".join(str(path) for path in sorted(folder.glob("model.*")) if path.name != CARD)
    print(f"model: {written}; what it is: {folder / CARD}")
    print(f"use it with: fedbeyond predict {folder} FOLDER_OF_IMAGES (or TABLE.csv, for a model of tables)")
    for line in wrapped(note(folder / CARD)["warnings"]):
        print(line)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A folder that 'fedbeyond export' wrote.")],
    given: Annotated[Path, typer.Argument(help="A folder of images, also in folders in it; or a CSV file.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
) -> None:
    """Tell what an exported model takes each image (or row of a table) for, and how surely."""
    from ..export.predict import predict as ask

    count, what, remarks = ask(model, given, out)
    for remark in remarks:
        print(remark, file=sys.stderr)
    print(f"{count:,} {what}: {out}")


@app.command("list")
def list_names(
    word: Annotated[
        str,
        typer.Argument(
            metavar="[SHELF|NAME]",
            help="methods, wrappers, datasets, networks, optimizers, schedules or transforms; or a name: fedprox.",
        ),
    ] = "",
    style: Annotated[str, typer.Option("--format", help="Of the table of methods: text or markdown.")] = "text",
) -> None:
    """Print what can be chosen: a shelf, methods as a table; or one name with its paper, options and presets."""
    from .catalogue import listing

    for line in listing(word, style):
        print(line)


@data.command()
def show(
    name: Annotated[str, typer.Argument(help="A dataset, as in styles(size=96).")] = "styles",
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("data.png"),
) -> None:
    """Write a picture of a dataset: a row a domain, a few images of each class."""
    from ..data.check.picture import draw
    from ..experiment.build import dataset

    domains = dataset(name)
    draw(domains, out)
    for domain, (_, labels) in domains.images.items():
        print(f"{domain}: {len(labels):,} images of {len(domains.classes)} classes")
    print(f"picture: {out}")


@data.command()
def split(
    config: ConfigFile = None,
    settings: Settings = [],  # noqa: B006
    out: Annotated[str, typer.Option(help="The file to write; {target} and {seed} are filled in.")] = "split.json",
) -> None:
    """Write down which images each client trains and validates on and which are unseen, to share and use again."""
    from ..experiment.config import load
    from ..experiment.plan import write_splits

    for line in write_splits(load(config, settings), out):
        print(line)


@data.command()
def info(name: Annotated[str, typer.Argument(help="A dataset, as in pacs; none: a line about each.")] = "") -> None:
    """Print where a dataset comes from, its licence, the layouts that are read and how many images it has."""
    from ..data.check.info import info

    print(info(name), end="")


@data.command("check")
def check_data(
    path: Annotated[Path, typer.Argument(help="The folder of a dataset, or of data of your own.")],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="The dataset it should be, as in pacs.")] = "",
    picture: Annotated[bool, typer.Option(help="Write a picture of a few images of each class.")] = True,
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("data.png"),
) -> None:
    """Recognise a folder of data, open every image, say what is wrong and what to do; exit code 1 if anything is."""
    from ..data.check.check import check

    told, well = check(path, name, out if picture else None)
    print(told, end="")
    raise typer.Exit(0 if well else 1)


federation.add(app)
