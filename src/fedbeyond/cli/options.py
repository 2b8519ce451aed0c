"""Arguments and options that several commands share, and those that a shell completes."""

from pathlib import Path
from typing import Annotated

import typer

from ..experiment.figure_kinds import KINDS
from . import completion
from .completion import words

ConfigFile = Annotated[Path | None, typer.Argument(help="A TOML file; default: the built-in data and settings.")]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the configuration, as in train.rounds=5."),
]
Out = Annotated[Path, typer.Option(help="The folder of all runs.")]
Events = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard event files to each run's folder.")]
Threads = Annotated[int, typer.Option(help="Number of compute threads; 0: one per core.", min=0)]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda, cuda:1, ...; auto: cuda if available.",
        autocompletion=words(lambda: ("auto", "cpu", "cuda")),
    ),
]
MethodName = Annotated[
    str | None,
    typer.Option(
        "--method", "-m", help="A method, with wrappers after a plus: fedavg+ga.", autocompletion=completion.method
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        help="The unseen domain: it takes no part in training.",
        autocompletion=words(completion.domains),
    ),
]

# of `report`
Select = Annotated[
    str | None,
    typer.Option(
        help="How to choose the round of each run: source-validation, source-validation-balanced, last, or oracle "
        "(uses the unseen domain: not a fair result); default: the runs' train.select.",
        autocompletion=words(completion.rules),
    ),
]
Format = Annotated[
    str,
    typer.Option("--format", help="text, markdown, latex, csv or html.", autocompletion=words(completion.formats)),
]
Paper = Annotated[
    str | None,
    typer.Option(
        metavar="PAPER[/TABLE]",
        help="Add a paper's numbers, for example ga.",
        autocompletion=words(completion.papers),
    ),
]
Metric = Annotated[
    str,
    typer.Option(
        help="accuracy, balanced_accuracy, f1, f1_weighted, auc, auc_weighted or calibration_error.",
        autocompletion=words(completion.metrics),
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD", help="Add differences to this method, with p-values.", autocompletion=completion.method
    ),
]

# of `figure`
Kind = Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.", autocompletion=words(lambda: KINDS))]
TargetOfRuns = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        help="The unseen domain of the runs; default: the first.",
        autocompletion=words(completion.domains),
    ),
]
MethodsOfRuns = Annotated[
    list[str],
    typer.Option(
        "--method",
        "-m",
        help="A method of the runs; may be repeated; default: all.",
        autocompletion=completion.method,
    ),
]

# of `list`
Name = Annotated[
    str,
    typer.Argument(
        metavar="[GROUP|NAME]",
        help="methods, wrappers, datasets, networks, parts, optimizers, schedules or transforms; or a name: fedprox.",
        autocompletion=words(completion.group_or_name),
    ),
]
TableFormat = Annotated[
    str,
    typer.Option(
        "--format",
        help="Format of the table of methods: text or markdown.",
        autocompletion=words(lambda: ("text", "markdown")),
    ),
]
