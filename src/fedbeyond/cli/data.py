"""The `fedbeyond data` commands: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer

from .completion import datasets, words
from .options import ConfigFile, Settings

data = typer.Typer(help="Show datasets, describe them, write splits, check a copy.", no_args_is_help=True)


@data.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A dataset, for example styles(size=96).", autocompletion=words(datasets))
    ] = "styles",
    out: Annotated[Path, typer.Option(help="The image file to write; it must not exist yet.")] = Path("data.png"),
) -> None:
    """Write a picture of a dataset: one row per domain, a few images of each class."""
    from ..data.check.picture import draw, ensure_new
    from ..experiment.build import dataset

    ensure_new(out)
    domains = dataset(name)
    draw(domains, out)
    for domain, (_, labels) in domains.images.items():
        print(f"{domain}: {len(labels):,} images of {len(domains.classes)} classes")
    print(f"picture: {out}")


@data.command()
def split(
    config: ConfigFile = None,
    settings: Settings = [],  # noqa: B006
    out: Annotated[str, typer.Option(help="The file to write; {target} and {seed} are replaced.")] = "split.json",
) -> None:
    """Write a split file: the images each client trains and validates on, and the unseen ones; to share and reuse."""
    from ..experiment.config import load
    from ..experiment.plan import write_splits

    for line in write_splits(load(config, settings), out):
        print(line)


@data.command()
def info(
    name: Annotated[
        str,
        typer.Argument(help="A dataset, for example pacs; default: one line for each.", autocompletion=words(datasets)),
    ] = "",
) -> None:
    """Print the source of a dataset, its licence, the folder layouts that can be read and its number of images."""
    from ..data.check.info import info

    print(info(name), end="")


@data.command("check")
def check_data(
    path: Annotated[
        str, typer.Argument(help="A folder of images, a CSV or .npz file, or a table(...) as in a configuration.")
    ],
    name: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="NAME",
            help="The dataset it should be, for example pacs.",
            autocompletion=words(datasets),
        ),
    ] = "",
    picture: Annotated[
        bool, typer.Option(help="Write a picture with a few images of each class, beside the cache of images.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write that picture to this file, which must not exist yet.")] = None,
) -> None:
    """Recognise data, open every image or row, report problems and how to fix them; exit code 1 if any."""
    from ..data.check.check import check, picture_in_cache

    report, complete = check(path, name, out or (picture_in_cache(path) if picture else None))
    print(report, end="")
    raise typer.Exit(0 if complete else 1)
