"""Tables by site: CSV files with numbers and categories, some of them missing, as rows of features.

Missing values are filled in and numbers are standardised at each site, after the split, from the site's training rows
alone. Sites must agree beforehand only on the list of columns and on the names of their categories.
"""

import csv
import glob
import io
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import DataError, MissingError
from ...images import Domains

Rows = tuple[Tensor, Tensor]  # features and labels

MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))  # in any case
MAX_CATEGORIES = 100  # of a column

Row = dict[str, str]
Names = tuple[str, ...]


class Column(NamedTuple):
    """A feature: a number, or one of several categories."""

    name: str
    categories: Names = ()

    @property
    def width(self) -> int:
        """Return how many numbers the column takes in a row of features."""
        return len(self.categories) or 1


def table(
    path: str = "",
    label: str = "",
    site: str = "",
    columns: Names = (),
    categorical: Names = (),
    drop: Names = (),
) -> Domains:
    """Read CSV with a `label` column: one file with a `site` column, or a file for each site, as path='heart/*.csv'.

    `columns` names the columns of a file without a header; `categorical` names columns of numbers that are categories;
    `drop` names columns to leave out.
    """
    if not path or not label:
        raise DataError(
            f"table has path={path!r} and label={label!r} and needs both: "
            f"table(path='visits.csv', site=hospital, label=diagnosis)"
        )
    rows = by_file(path, columns) if "*" in path else by_column(path, site, columns)
    return assemble(rows, path, label, categorical, (*drop, *([site] if site else [])))


def by_file(path: str, columns: Names) -> dict[str, list[Row]]:
    """Read the rows of several files, one for each site; the part of the path that `*` stands for names the site."""
    before, _, after = str(Path(path).expanduser()).partition("*")
    if "*" in after:
        raise DataError(f"{path}: it has more than one *; write one *, which stands for the name of the site")
    files = sorted(file for file in glob.glob(f"{glob.escape(before)}*{glob.escape(after)}") if Path(file).is_file())
    if not files:
        raise MissingError(f"{path}: no such files; give a path in which * stands for the name of each site")
    return {file[len(before) : len(file) - len(after)]: read(Path(file), columns) for file in files}


def by_column(path: str, site: str, columns: Names) -> dict[str, list[Row]]:
    """Read the rows of one file, by the value of the `site` column."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise MissingError(f"{path}: no such file; give a CSV file, or a file for each site, as path='heart/*.csv'")
    if not site:
        raise DataError(f"{path} is one file, and no site column is given; name it, as in site=hospital")
    rows: dict[str, list[Row]] = {}
    for number, row in enumerate(read(file, columns), 1):
        require_column(row, site, path)
        if is_missing(row[site]):
            raise DataError(f"{path}, row {number}: no value in column {site!r}; give the site of every row")
        rows.setdefault(row[site], []).append(row)
    return rows


def read(file: Path, columns: Names) -> list[Row]:
    """Read the rows of a CSV file, separated by commas, semicolons or tabs, as values by column name."""
    try:
        text = file.read_text("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=text.partition("\n")[0].count))
        lines = [(reader.line_num, line) for line in reader if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read ({error}); give a CSV file in UTF-8") from None
    names = columns or tuple(name.strip() for name in (lines.pop(0)[1] if lines else ()))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{file}: more than one column has the name {repeated[0]!r}; give each its own name")
    rows = []
    for number, line in lines:
        if len(line) != len(names):
            raise DataError(f"{file}, line {number}: {len(line)} values for {len(names)} columns; fix that line")
        rows.append(dict(zip(names, map(str.strip, line), strict=True)))
    if not rows:
        raise DataError(f"{file}: no rows; expected a CSV file with a header and one row for each sample")
    return rows


def assemble(rows: dict[str, list[Row]], path: str, label: str, categorical: Sequence[str], drop: Names) -> Domains:
    """Convert the rows of all sites to features and labels; missing values are NaN until a split is completed."""
    all_rows = [row for site_rows in rows.values() for row in site_rows]
    for row in all_rows:
        for name in (label, *categorical, *drop):
            require_column(row, name, path)
        if is_missing(row[label]):
            raise DataError(f"{path}: a row has no value in the label column {label!r}; remove rows without a label")
    for site in rows:
        if not site or "/" in site or "+" in site:
            raise DataError(f"{path}: site name {site!r} is not accepted; give it a name without / and +")
    shared = [name for name in all_rows[0] if name not in (label, *drop)]
    odd = {name for row in all_rows for name in row.keys() ^ all_rows[0].keys()}
    if odd:
        raise DataError(f"{path}: only some files have the columns {', '.join(sorted(odd))}; give all files the same")
    if not shared:
        raise DataError(f"{path}: no column except the label, the site and those in drop; add at least one feature")
    columns = [infer_column(name, [row[name] for row in all_rows], name in categorical, path) for name in shared]
    classes = sort_categories({canonical(row[label]) for row in all_rows})
    if len(classes) < 2:
        raise DataError(f"{path}: {label} is {classes[0]} in every row; the label needs at least two classes")
    images = {
        site: (
            features(site_rows, columns),
            torch.tensor([classes.index(canonical(row[label])) for row in site_rows]),
        )
        for site, site_rows in rows.items()
    }
    return Domains(classes, images, complete=partial(complete, widths(columns)), columns=columns)


def features(rows: Sequence[Row], columns: Sequence[Column]) -> Tensor:
    """Convert rows to numbers; missing values are NaN."""
    return torch.tensor([[number for column in columns for number in encode(row[column.name], column)] for row in rows])


def widths(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return how many numbers each categorical column takes, and 0 for a numeric column."""
    return tuple(column.width if column.categories else 0 for column in columns)


def unlabelled(file: Path, columns: Sequence[Column]) -> Tensor:
    """Read the rows of another site's CSV file, completed from all of them; other columns are ignored."""
    rows = read(file, ())
    for number, row in enumerate(rows, 1):
        for column in columns:
            require_column(row, column.name, str(file))
            value = row[column.name]
            valid = canonical(value) in column.categories if column.categories else is_number(value)
            if is_missing(value) or valid:
                continue
            accepted = f"one of {', '.join(column.categories)}" if column.categories else "a number"
            raise DataError(
                f"{file}, row {number}: {column.name} is {value!r}, expected {accepted}; fix it or leave it empty"
            )
    x = features(rows, columns)
    no_labels = torch.zeros(len(rows))
    return complete(widths(columns), (x, no_labels), (x, no_labels))[0]


def infer_column(name: str, values: list[str], categorical: bool, path: str) -> Column:
    """Return a numeric column if all known values are numbers and it is not `categorical`, else its categories."""
    known = [value for value in values if not is_missing(value)]
    if not categorical and all(is_number(value) for value in known):
        return Column(name)
    categories = sort_categories({canonical(value) for value in known})
    if len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"{path}: {name} has {len(categories)} different values, more than {MAX_CATEGORIES} categories; "
            f"leave it out with drop=['{name}'], or, if it is numeric, fix values such as {categories[-1]!r}"
        )
    return Column(name, categories or ("",))


def encode(value: str, column: Column) -> list[float]:
    """Return the features of a value: a number, or a one-hot vector; NaN if the value is missing."""
    if is_missing(value):
        return [math.nan] * column.width
    if not column.categories:
        return [float(value)]
    return [float(canonical(value) == category) for category in column.categories]


def complete(groups: tuple[int, ...], split: Rows, train: Rows) -> Rows:
    """Fill in missing values (medians, most frequent categories) and standardise, from the site's training rows.

    `groups` are the widths of the columns, 0 for a number. A column that the site has no value of is all zeros.
    """
    rows, train_rows = split[0], train[0]
    done, start = [], 0
    for group in groups:
        part = slice(start, start + (group or 1))
        transform = fill_categories if group else standardise
        done.append(transform(rows[:, part], train_rows[:, part]))
        start += group or 1
    return torch.cat(done, 1), split[1]


def fill_categories(rows: Tensor, train: Tensor) -> Tensor:
    """Replace missing categories by the most frequent one of the training rows."""
    counts = train.nan_to_num(0.0).sum(0)
    usual = torch.zeros_like(counts)
    if counts.any():
        usual[counts.argmax()] = 1.0
    return torch.where(rows.isnan(), usual, rows)


def standardise(rows: Tensor, train: Tensor) -> Tensor:
    """Replace missing numbers by the median of the training rows, then scale to their mean 0 and deviation 1."""
    if bool(train.isnan().all()):
        return torch.zeros_like(rows)
    usual = train.double().nanquantile(0.5, dim=0)
    known = torch.where(train.isnan(), usual, train.double())
    mean, spread = known.mean(0), known.std(0, correction=0)
    spread = torch.where(spread > 1e-9 * (1 + mean.abs()), spread, torch.ones_like(spread))  # constant column: zeros
    return ((torch.where(rows.isnan(), usual, rows.double()) - mean) / spread).float()


def is_missing(value: str) -> bool:
    """Return whether a field stands for no value."""
    return value.casefold() in MISSING


def is_number(value: str) -> bool:
    """Return whether a field is a finite number."""
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def canonical(value: str) -> str:
    """Return the name of a category in one spelling: 1, 1.0 and 01 are the same."""
    return f"{float(value):g}" if is_number(value) else value


def sort_categories(values: set[str]) -> Names:
    """Sort categories: numbers first by value, then names."""
    return tuple(
        sorted(values, key=lambda value: (not is_number(value), float(value) if is_number(value) else 0.0, value))
    )


def require_column(row: Row, name: str, path: str) -> None:
    """Raise if a row lacks a column."""
    if name not in row:
        raise DataError(f"{path}: no column {name!r}; its columns are {', '.join(row)}; give one of these")
