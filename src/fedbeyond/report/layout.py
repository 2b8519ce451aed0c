"""Format cells and a caption as text for a terminal, as Markdown or as LaTeX; format cells as CSV."""

import csv
import io
import textwrap
from collections.abc import Collection

Cells = list[list[str]]  # the first row is the head
WIDTH = 80  # columns of a terminal, which a caption fills
MARKDOWN = str.maketrans({"|": r"\|", "<": "&lt;"})  # a name is no cell and no tag
LATEX = str.maketrans(  # a name is no command
    {mark: f"\\{mark}" for mark in "%_&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def text(cells: Cells, caption: str, marked: Collection[str] = ()) -> str:
    """Format a table for a terminal; the last cells of the rows named in `marked` have a star."""
    if marked:
        cells = [[*row[:-1], f"{row[-1]}{'*' if row[0] in marked else ' '}"] for row in cells]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    ruler = "─" * len(lines[0].rstrip())
    return (
        "\n".join(
            [
                textwrap.fill(caption, max(len(ruler), WIDTH)),
                "",
                *(line.rstrip() for line in (lines[0], ruler, *lines[1:])),
            ]
        )
        + "\n"
    )


def markdown(cells: Cells, caption: str, marked: Collection[str] = ()) -> str:
    """Format a table as Markdown; the last cells of the rows named in `marked` are bold."""
    bold = [row[0] in marked for row in cells]
    cells = [[cell.translate(MARKDOWN) for cell in row] for row in cells]
    cells = [[*row[:-1], f"**{row[-1]}**" if strong else row[-1]] for row, strong in zip(cells, bold, strict=True)]
    head, *body = ["| " + " | ".join(row) + " |" for row in cells]
    ruler = "|---|" + "---:|" * (len(cells[0]) - 1)
    return "\n".join([head, ruler, *body, "", caption]) + "\n"


def latex(cells: Cells, caption: str, marked: Collection[str] = ()) -> str:
    """Format a table as LaTeX with booktabs; the last cells of the rows named in `marked` are bold."""
    head, *body = [
        " & ".join([*map(_latex_cell, row[:-1]), _latex_cell(row[-1], bold=row[0] in marked)]) + r" \\" for row in cells
    ]
    columns = "l" + "r" * (len(cells[0]) - 1)
    text = _escape(caption).replace("±", r"$\pm$")
    parts = [r"\begin{table}", rf"\caption{{{text}.}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head]
    return "\n".join([*parts, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def as_csv(cells: Cells) -> str:
    """Format cells as CSV."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(cells)
    return file.getvalue()


def _latex_cell(cell: str, bold: bool = False) -> str:
    if " ± " in cell:
        formula = _escape(cell).replace("±", r"\pm")
        return rf"$\mathbf{{{formula}}}$" if bold else f"${formula}$"
    return rf"\textbf{{{_escape(cell)}}}" if bold else _escape(cell)


def _escape(text: str) -> str:
    return text.translate(LATEX)
