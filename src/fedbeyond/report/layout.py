"""Format cells and a caption as text for a terminal, as Markdown or as LaTeX; format cells as CSV."""

import csv
import io

Cells = list[list[str]]  # the first row is the head


def text(cells: Cells, caption: str) -> str:
    """Format a table for a terminal."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join([caption, "", lines[0], "─" * len(lines[0]), *lines[1:]]) + "\n"


def markdown(cells: Cells, caption: str) -> str:
    """Format a table as Markdown."""
    head, *body = ["| " + " | ".join(row) + " |" for row in cells]
    ruler = "|---|" + "---:|" * (len(cells[0]) - 1)
    return "\n".join([head, ruler, *body, "", caption]) + "\n"


def latex(cells: Cells, caption: str) -> str:
    """Format a table as LaTeX with booktabs."""
    head, *body = [" & ".join(map(_latex_cell, row)) + r" \\" for row in cells]
    columns = "l" + "r" * (len(cells[0]) - 1)
    text = _escape(caption).replace("±", r"$\pm$")
    parts = [r"\begin{table}", rf"\caption{{{text}.}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head]
    return "\n".join([*parts, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def as_csv(cells: Cells) -> str:
    """Format cells as CSV."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(cells)
    return file.getvalue()


def _latex_cell(cell: str) -> str:
    return f"${cell}$".replace("±", r"\pm") if " ± " in cell else _escape(cell)


def _escape(text: str) -> str:
    for mark in "%_&#":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("^", r"\textasciicircum{}")
