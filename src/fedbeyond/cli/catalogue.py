"""What can be chosen: every shelf with its names, and of methods a table that is worked out, not written down."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from .._progress import track
from ..errors import ConfigError, nearest
from ..experiment import registry
from ..experiment.papers import paper
from ..method import Method
from ..report.layout import Cells
from ..spec import spell_value
from ..testing.laws import simulate

HEAD = ("name", "paper", "year", "leaves a site", "kept at a site", "further phases", "server needs", "goes with")
TABLED = ("methods", "wrappers")
WIDTH = 150  # of a table that goes to no terminal
SIZES = {"east": 8, "west": 8}  # images: enough to see what a method sends and keeps


def table(shelf: str = "methods") -> Cells:
    """A row for every method or wrapper; what it sends and keeps is seen in a round on a toy."""
    names = track(list(registry.known(shelf)), f"looking at {shelf}")
    return [list(HEAD), *(row(shelf, name) for name in names)]


def row(shelf: str, name: str) -> list[str]:
    """What there is to know of one of them."""
    origin = paper(shelf, name)
    method = registry.build(name if shelf == "methods" else f"fedavg+{name}")
    plain = registry.build("fedavg") if shelf == "wrappers" else None
    phases = [kind for kind in method.sends if kind != "train"]
    return [
        name,
        origin.short if origin else "-",
        origin.year if origin else "-",
        leaves(method, plain),
        "-" if method.pooled else ", ".join(sorted(keeps(method) - (keeps(plain) if plain else set()))) or "-",
        ", ".join(phases) or "-",
        needs(method, plain),
        "-" if plain else goes_with(name),
    ]


def leaves(method: Method, plain: Method | None = None) -> str:
    """What leaves a site, with its kind where it is not parameters; of a wrapper, what it adds."""
    if method.pooled:
        return "all images and labels"
    known = {(kind, name) for kind, names in plain.sends.items() for name in names} if plain else set()
    told = [
        name if sent.kind == "parameters" else f"{name} ({sent.kind})"
        for kind, names in method.sends.items()
        for name, sent in names.items()
        if (kind, name) not in known
    ]
    return ", ".join(dict.fromkeys(told)) or "-"


def needs(method: Method, plain: Method | None = None) -> str:
    """What the server must see of the replies; of a wrapper, if it is other than without it."""
    if method.pooled or (plain and plain.sums == method.sums):
        return "-"
    return "sums" if method.sums else "single replies"


def keeps(method: Method) -> set[str]:
    """The names under which a site keeps something from round to round."""
    from ..engine.simulator import Simulator
    from ..testing import toy

    federation = Simulator(method.client, toy.sites(method, SIZES))
    simulate(method, 1, federation, SIZES)
    return {name for slots in federation.slots.values() for name in slots.get("pending", slots)["private"]}


def goes_with(name: str) -> str:
    """Which wrappers can go on top of a method."""
    fits = {wrapper: fitting(f"{name}+{wrapper}") for wrapper in registry.known("wrappers")}
    refused = [wrapper for wrapper, fit in fits.items() if not fit]
    return f"all but {', '.join(refused)}" if refused else "all"


def fitting(spelled: str) -> bool:
    """Whether a composition is one."""
    try:
        return bool(registry.build(spelled))
    except ConfigError:
        return False


def listing(word: str = "", style: str = "text") -> Iterator[str]:
    """Methods and wrappers as a table, the names on another shelf (none: on all), or all there is to say of one."""
    if style not in ("text", "markdown"):
        raise ConfigError(f"--format {style} is not known here; text or markdown")
    torch.set_num_threads(1)  # the toy is too small for more
    if word in TABLED:
        cells = table(word)
        yield (columns(cells) if style == "text" else markdown(linked(cells))).rstrip("\n")
    elif word in registry.SHELVES or not word:
        for shelf in [word] if word else registry.SHELVES:
            yield f"{shelf}:"
            for name in registry.known(shelf):
                yield f"  {name:14} {_first_line(registry.find(shelf, name))}"
    else:
        homes = [shelf for shelf in registry.SHELVES if word in registry.known(shelf)]
        if not homes:
            names = {*registry.SHELVES, *(name for shelf in registry.SHELVES for name in registry.known(shelf))}
            raise ConfigError(f"nothing to list under {word!r}; {nearest(word, names)}")
        for shelf in homes:
            yield from details(shelf, word)


def columns(cells: Cells) -> str:
    """A table for a terminal, its long cells on several lines."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    shown = Table(*cells[0], box=None, pad_edge=False, row_styles=["", "dim"])
    for line in cells[1:]:
        shown.add_row(*line)
    with console.capture() as drawn:
        console.print(shown)
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())


def linked(cells: Cells) -> Cells:
    """The same cells, each name a link to its page."""
    return [cells[0], *([f"[{name}](methods/{name}.md)", *rest] for name, *rest in cells[1:])]


def markdown(cells: Cells) -> str:
    """A table for a page."""
    head, *body = ["| " + " | ".join(line) + " |" for line in cells]
    return "\n".join([head, "|---" * len(cells[0]) + "|", *body])


def details(shelf: str, name: str) -> Iterator[str]:
    """One name: what it is, where it is from, its options and presets."""
    factory = registry.find(shelf, name)
    yield f"{name} ({shelf[:-1]}): {_first_line(factory)}"
    if shelf in TABLED:
        if origin := paper(shelf, name):
            yield f"  {origin.title}"
            yield f"  {'; '.join(filter(None, (origin.authors, f'{origin.venue} {origin.year}'.strip(), origin.link)))}"
        for key, value in list(zip(HEAD, row(shelf, name), strict=True))[3:]:
            yield f"  {key}: {value}"
    options = registry.options(factory)
    presets = registry.presets(factory) if shelf in TABLED else {"default": {}}
    for key, parameter in options.items():
        told = {preset: spell_value(given.get(key, parameter.default)) for preset, given in presets.items()}
        others = "".join(f", {preset} {value}" for preset, value in told.items() if value != told["default"])
        yield f"  {key} = {told['default']}{others}"


def _first_line(factory: Any) -> str:
    return (inspect.getdoc(factory) or "").splitlines()[0]
