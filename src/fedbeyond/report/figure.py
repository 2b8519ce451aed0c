"""Figures with the numbers they draw: as files (SVG, PNG, CSV), and as part of a light or dark HTML page."""

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from cycler import cycler
from matplotlib import figure as drawings
from matplotlib.backends.backend_svg import FigureCanvasSVG

from .. import _io
from .layout import Cells, as_csv

# the page's colours: used directly in files; replaced on a page by CSS variables with light and dark values
PALETTE = ("#3567b7", "#c4501b", "#2a8a5c", "#8a3fa6", "#b58900", "#c2366b", "#167f92", "#6b7280")
INK, SOFT, RULE, PAPER = "#1c1f24", "#5c6570", "#d9dee4", "#ffffff"
VARIABLES = {INK: "--ink", SOFT: "--soft", RULE: "--line", PAPER: "--paper"} | {
    colour: f"--c{index}" for index, colour in enumerate(PALETTE)
}
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, searchable, readable by screen readers
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": SOFT,
    "axes.titlesize": 10,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "figure.constrained_layout.use": True,
}


class Picture(drawings.Figure):
    """A matplotlib figure that a notebook shows."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the image and its width on the page, for screens with more pixels than that."""
        return _png(self), {"width": round(self.get_figwidth() * self.dpi)}


drawing = matplotlib.rc_context(STYLE)  # decorator of drawing functions: text and legends get the style, too


class Hover(NamedTuple):
    """What a page shows for a part of a picture under the pointer."""

    line: str  # the name under which it can be hidden; empty: it cannot
    texts: Sequence[str]  # of each point of a line, or of each shape


class Figure(NamedTuple):
    """A picture with its name, title, caption and the numbers that it shows."""

    name: str  # stem of its file names
    title: str
    caption: str
    picture: Picture
    data: Cells  # the first row is the head
    hover: Mapping[str, Hover] = {}  # by the id that a part of the picture has (gid)


def panels(count: int, across: int = 4, width: float = 2.6, height: float = 2.2, **options: Any) -> tuple[Picture, Any]:
    """Return an empty picture in the common style, and its `count` axes in rows of at most `across`."""
    with matplotlib.rc_context(STYLE):
        columns = min(count, across)
        rows = -(-count // columns)
        picture = Picture(figsize=(columns * width, rows * height))
        axes = picture.subplots(rows, columns, squeeze=False, **options).flatten()
    for spare in axes[count:]:
        spare.remove()
    return picture, list(axes[:count])


def shortened(names: Sequence[str], most: int) -> list[str]:
    """Return names of at most `most` characters: the beginnings of long ones, or both ends if beginnings are alike."""
    for end in (0, (most - 1) // 2):
        cut = [n if len(n) <= most else f"{n[: most - 1 - end]}…{n[len(n) - end :]}" for n in names]
        if len(set(cut)) == len(set(names)):
            break
    return cut


def panel_titles(targets: Sequence[str], methods: Sequence[str], most: int) -> dict[tuple[str, str], str]:
    """Return the title of each target's and method's panel, in two lines of at most `most` characters."""
    first = dict(zip(targets, shortened(targets, most - len(" unseen")), strict=True))
    second = dict(zip(methods, shortened(methods, most), strict=True))
    return {(target, method): f"{first[target]} unseen\n{second[method]}" for target in targets for method in methods}


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure as name.svg, name.png and name.csv, and its title and caption as name.json."""
    with _io.storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    about = {"title": figure.title, "caption": figure.caption}
    contents = {
        folder / f"{figure.name}.svg": svg(figure).encode(),
        folder / f"{figure.name}.png": _png(figure.picture),
        folder / f"{figure.name}.csv": as_csv(figure.data).encode(),
        folder / f"{figure.name}.json": json.dumps(about, indent=1).encode(),
    }
    _io.write_all(contents)
    return list(contents)


def svg(figure: Figure) -> str:
    """Return a figure as SVG, in its own colours."""
    file = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": figure.name}):  # reproducible bytes
        # savefig would draw it twice
        canvas: Any = FigureCanvasSVG(figure.picture)
        canvas.print_svg(file, metadata={"Date": None, "Creator": None})
    return file.getvalue()


def themed(content: str, name: str) -> str:
    """Replace the colours of an SVG by the page's, and make its ids unique on the page."""
    head, end, body = content[content.index("<svg") :].partition(">")
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    prefix = re.sub(r"[^\w-]", "-", name)
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(href="|url\()#', rf"\1#{prefix}-", body)
    return re.sub(r' (width|height|xmlns|xmlns:xlink|version)="[^"]*"', "", head) + end + body


def _png(picture: Picture) -> bytes:
    file = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        picture.savefig(file, format="png", metadata={"Software": None}, dpi=160, facecolor=PAPER)
    return file.getvalue()
