"""The text of `fedbeyond list`: the names of each group, a table of methods, the details of one name.

The table contains what methods declare; the law `declared` in testing/laws.py compares that with what they do.
"""

import inspect
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from .. import _factory
from .._method import Method
from ..classifier import PARTS
from ..errors import ConfigError, nearest
from ..experiment import registry
from ..experiment.papers import paper
from ..networks.part import why_images
from ..report.layout import Cells
from ..spec import format_value

HEAD = (
    "name",
    "paper",
    "year",
    "sent",
    "private state",
    "extra phases",
    "network",
    "frozen layers",
    "aggregation",
    "wrappers",
)
UNBROKEN = ("name", "year", "network")  # columns that keep their width on a narrow terminal
TABLED = ("methods", "wrappers")
WIDTH = 150  # of a table that is not printed to a terminal
MAX_COLUMNS = 100  # of a description: longer lines are hard to read


def table(group: str = "methods") -> Cells:
    """Return a table with a row for each method or wrapper."""
    return [list(HEAD), *(row(group, name) for name in registry.known(group))]


def row(group: str, name: str) -> list[str]:
    """Return the table row of a method or wrapper."""
    origin = paper(group, name)
    method = registry.build(name if group == "methods" else f"fedavg+{name}")
    plain = registry.build("fedavg") if group == "wrappers" else None
    phases = [kind for kind in method.sends if kind != "train"]
    return [
        name,
        origin.short if origin else "-",
        origin.year if origin else "-",
        sent(method, plain),
        private_state(method, plain),
        ", ".join(phases) or "-",
        network(method, plain),
        frozen_layers(method, plain),
        aggregation(method, plain),
        "-" if plain else wrappers(name),
    ]


def sent(method: Method, plain: Method | None = None) -> str:
    """Return what leaves a site, with its kind if it is not parameters; for a wrapper, what it adds."""
    if method.pooled:
        return "all images and labels"
    known = {(kind, name) for kind, names in plain.sends.items() for name in names} if plain else set()
    entries = [
        name if entry.kind == "parameters" else f"{name} ({entry.kind})"
        for kind, names in method.sends.items()
        for name, entry in names.items()
        if (kind, name) not in known
    ]
    return ", ".join(dict.fromkeys(entries)) or "-"


def aggregation(method: Method, plain: Method | None = None) -> str:
    """Return whether aggregation is linear or per client; for a wrapper, only if it changes that."""
    if method.pooled or (plain and plain.linear_aggregation == method.linear_aggregation):
        return "-"
    return "linear" if method.linear_aggregation else "per client"


def network(method: Method, plain: Method | None = None) -> str:
    """Return what a method needs of a network; for a wrapper, what it adds."""
    return ", ".join(part for part in PARTS if part in method.needs) or ("-" if plain else "logits")


def frozen_layers(method: Method, plain: Method | None = None) -> str:
    """Return whether frozen layers are computed once, or in every round; for a wrapper, only if it changes that."""
    if plain:
        return "every round" if why_images(method) else "-"
    return ("every round" if why_images(method) else "once") + ("; not head" if method.shapes_features else "")


def private_state(method: Method, plain: Method | None = None) -> str:
    """Return the entries of a site's private state; for a wrapper, those that it adds."""
    if method.pooled:
        return "-"
    return ", ".join(sorted(method.keeps - (plain.keeps if plain else set()))) or "-"


def wrappers(name: str) -> str:
    """Return the wrappers that a method can be combined with."""
    rejected = [wrapper for wrapper in registry.known("wrappers") if not is_valid(f"{name}+{wrapper}")]
    return f"all except {', '.join(rejected)}" if rejected else "all"


def is_valid(spelled: str) -> bool:
    """Return whether a method can be built from this spec."""
    try:
        return bool(registry.build(spelled))
    except ConfigError:
        return False


def listing(word: str = "", style: str = "text") -> Iterator[str]:
    """Yield the lines for a word: a table of methods or wrappers, the names of a group (no word: all), or one name."""
    if style not in ("text", "markdown"):
        raise ConfigError(f"--format {style} is not known; choose text or markdown")
    if word in TABLED:
        cells = table(word)
        yield (text_table(cells) if style == "text" else markdown(linked(cells))).rstrip("\n")
    elif word in registry.REGISTRY or not word:
        for group in [word] if word else registry.REGISTRY:
            yield f"{group}:"
            for name in registry.known(group):
                yield f"  {name:14} {_first_line(registry.find(group, name))}"
    else:
        groups = [group for group in registry.REGISTRY if word in registry.known(group)]
        if not groups:
            names = {*registry.REGISTRY, *(name for group in registry.REGISTRY for name in registry.known(group))}
            raise ConfigError(f"nothing to list under {word!r}; {nearest(word, names)}")
        for group in groups:
            yield from details(group, word)


def text_table(cells: Cells) -> str:
    """Format a table for a terminal; wrap long cells."""
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    columns = [Column(head, no_wrap=head in UNBROKEN, overflow="fold") for head in cells[0]]
    shown = Table(*columns, box=None, pad_edge=False, row_styles=["", "dim"])
    for line in cells[1:]:
        shown.add_row(*line)
    with console.capture() as drawn:
        console.print(shown)
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())


def linked(cells: Cells) -> Cells:
    """Return the cells with each name as a link to its page."""
    return [cells[0], *([f"[{name}](methods/{name}.md)", *rest] for name, *rest in cells[1:])]


def markdown(cells: Cells) -> str:
    """Format a table as Markdown."""
    head, *body = ["| " + " | ".join(line) + " |" for line in cells]
    return "\n".join([head, "|---" * len(cells[0]) + "|", *body])


def details(group: str, name: str) -> Iterator[str]:
    """Yield the description of one name: its paper, its table row, its options and presets; as wide as a terminal."""
    columns = min(MAX_COLUMNS, shutil.get_terminal_size().columns)
    factory = registry.find(group, name)
    yield from wrapped(f"{name} ({group[:-1]}): {_first_line(factory)}", columns, "", "  ")
    if group in TABLED:
        if origin := paper(group, name):
            yield from wrapped(origin.title, columns)
            venue = f"{origin.venue} {origin.year}".strip()
            yield from wrapped("; ".join(filter(None, (origin.authors, venue, origin.link))), columns)
        for key, value in list(zip(HEAD, row(group, name), strict=True))[3:]:
            yield from wrapped(f"{key}: {value}", columns)
    yield from option_lines(factory, columns)


def option_lines(factory: _factory.Factory, columns: int) -> Iterator[str]:
    """Yield each option with its default, and beside it its meaning and its values in presets."""
    given = {key: f"{key} = {format_value(option.default)}" for key, option in _factory.options(factory).items()}
    widest = max((len(text) for text in given.values() if len(text) < columns // 2), default=0)
    edge = " " * (widest + 6)  # where meanings begin; those of a longer text, on the next line
    if given:
        yield "  options:"
    for key, about in _factory.described(factory).items():
        text = f"    {given[key]:{widest}}  "
        if len(text) > len(edge):
            yield text.rstrip()
            text = edge
        yield from wrapped(about, columns, text, edge) or [text.rstrip()]


def wrapped(text: str, columns: int, first: str = "  ", others: str = "    ") -> list[str]:
    """Break a text into lines; the first line begins with `first`, each other one with `others`."""
    wrapper = textwrap.TextWrapper(columns, first, others, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)


def _first_line(factory: Any) -> str:
    return (inspect.getdoc(factory) or "").splitlines()[0]
