"""Read the rows of CSV files, each with its place in the file, by site."""

import csv
import glob
import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import DataError, MissingError
from ..finding import shortened
from .columns import Cell, Names, canonical, is_missing, is_number

Row = dict[str, str]  # values by the names of columns


class Record(NamedTuple):
    """A row of a file, and where it is: `line 7`, or `north.csv line 7` if there are several files."""

    values: Row
    place: str

    def cell(self, name: str) -> Cell:
        """Return the value in a column, with its place."""
        return Cell(self.values[name], self.place)


def by_file(path: str, columns: Names, missing: Names = ()) -> dict[str, list[Record]]:
    """Read the rows of several files, one for each site; the part of the path that `*` stands for names the site."""
    before, _, after = str(Path(path).expanduser()).partition("*")
    if "*" in after:
        raise DataError(f"{path}: it has more than one *; write one *, which stands for the name of the site")
    files = sorted(file for file in glob.glob(f"{glob.escape(before)}*{glob.escape(after)}") if Path(file).is_file())
    if not files:
        raise MissingError(f"{path}: no such files; give a path in which * stands for the name of each site")
    return {
        file[len(before) : len(file) - len(after)]: [
            record._replace(place=f"{Path(file).name} {record.place}")
            for record in read_records(Path(file), columns, missing)
        ]
        for file in files
    }


def by_column(path: str, site: str, columns: Names, missing: Names = ()) -> dict[str, list[Record]]:
    """Read the rows of one file, by the value of the `site` column."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise MissingError(f"{path}: no such file; give a CSV file, or a file for each site, as path='heart/*.csv'")
    if not site:
        raise DataError(f"{path} is one file, and no site column is given; name it, as in site=hospital")
    return by_site(read_records(file, columns, missing), site, path)


def by_site(records: Sequence[Record], site: str, path: str) -> dict[str, list[Record]]:
    """Return rows by the value of the `site` column."""
    require_columns(records, [site], path)
    unknown = [record.place for record in records if is_missing(record.values[site])]
    if unknown:
        raise DataError(f"{path}, {shortened(unknown)}: no value in column {site!r}; give the site of every row")
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record.values[site], []).append(record)
    return rows


def read(file: Path, columns: Names, missing: Names = ()) -> list[Row]:
    """Read the rows of a CSV file as values by column name."""
    return [record.values for record in read_records(file, columns, missing)]


def read_records(file: Path, columns: Names, missing: Names = ()) -> list[Record]:
    """Read a CSV file, separated by commas, semicolons or tabs; the texts in `missing` are replaced by empty ones."""
    try:
        text = file.read_text("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=text.partition("\n")[0].count))
        lines, first = [], 1
        for line in reader:
            lines += [(first, line)] if line else []
            first = reader.line_num + 1  # a field in quotes may hold several lines
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read ({error}); give a CSV file in UTF-8") from None
    names = columns or tuple(name.strip() for name in (lines.pop(0)[1] if lines else ()))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"{file}: more than one column has the name {repeated[0]!r}; give each its own name{_no_header(names)}"
        )
    absent = missing_values(missing)
    records = []
    for number, line in lines:
        if len(line) != len(names):
            raise DataError(f"{file}, line {number}: {len(line)} values for {len(names)} columns; fix that line")
        values = (clean(value, absent) for value in line)
        records.append(Record(dict(zip(names, values, strict=True)), f"line {number}"))
    if not records:
        raise DataError(f"{file}: no rows; expected a CSV file with a header and one row for each sample")
    return records


def missing_values(texts: Iterable[str]) -> Collection[str]:
    """Return the texts that mean a missing value, in the form that `clean` compares."""
    return {canonical(text.strip()).casefold() for text in texts}


def clean(value: str, absent: Collection[str]) -> str:
    """Return a field without blanks around it, empty if it means a missing value."""
    value = value.strip()
    return "" if absent and canonical(value).casefold() in absent else value


def _no_header(names: Iterable[str]) -> str:
    """Return a hint if the names of columns are probably values."""
    values = all(is_number(name) or is_missing(name) for name in names)
    return "; if the file has no header, name its columns with columns=[...]" if values else ""


def require_columns(records: Iterable[Record], names: Collection[str], path: str) -> None:
    """Raise if a row lacks one of the columns."""
    for record in records:
        for name in names:
            require_column(record.values, name, path)


def require_column(row: Row, name: str, path: str) -> None:
    """Raise if a row lacks a column."""
    if name not in row:
        raise DataError(
            f"{path}: no column {name!r}; its columns are {', '.join(row)}; give one of these{_no_header(row)}"
        )
