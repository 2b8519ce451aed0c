"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path | None, typer.Argument(help="A TOML file; default: the built-in data and settings.")]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the configuration, as in train.rounds=5."),
]
Out = Annotated[Path, typer.Option(help="The folder of all runs.")]
