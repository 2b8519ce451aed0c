"""Rows of numbers that show themselves as a table, in a terminal and in a notebook."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, overload

from ..errors import ConfigError
from ..report import layout

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped, unused-ignore]

Row = dict[str, Any]


class Rows(Sequence[Row]):
    """Rows of numbers: a sequence of dicts that shows itself as a table."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "Rows": ...
    def __getitem__(self, index: int | slice) -> "Row | Rows":
        return Rows(self.rows[index]) if isinstance(index, slice) else self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def to_pandas(self) -> "DataFrame":
        """Return the rows as a pandas data frame."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("to_pandas needs pandas, which is not installed; pip install pandas") from None
        return pandas.DataFrame(self.rows)

    def _cells(self) -> layout.Cells:
        head = list(dict.fromkeys(key for row in self.rows for key in row))
        return [head, *([_cell(row.get(key)) for key in head] for row in self.rows)]

    def __repr__(self) -> str:
        count = "1 row" if len(self) == 1 else f"{len(self)} rows"
        return layout.text(self._cells(), count) if self.rows else "no rows"

    def _repr_html_(self) -> str:
        return html(self._cells()) if self.rows else "no rows"


def html(cells: layout.Cells, caption: str = "", marked: Sequence[str] = ()) -> str:
    """Format a table as HTML for a notebook; rows named in `marked` are bold."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in cells[0])
    body = []
    for row in cells[1:]:
        style = ' style="font-weight: bold"' if row[0] in marked else ""
        body.append(f"<tr{style}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>")
    shown = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{shown}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def notes_html(notes: Sequence[str]) -> str:
    """Format warnings below a table as HTML."""
    return "".join(f"<p>warning: {escape(note)}</p>" for note in notes)


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
