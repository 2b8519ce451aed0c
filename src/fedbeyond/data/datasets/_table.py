"""Tables by site: CSV files with numbers and categories, some of them missing, as rows of features.

What is missing is filled in and numbers are standardised at each site from its own training rows alone, after the
split; the only thing that sites must agree on beforehand is the list of columns and the names of their categories.
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
MOST = 100  # categories that a column may have

Row = dict[str, str]
Names = tuple[str, ...]


class Column(NamedTuple):
    """A feature: a number, or one of several categories."""

    name: str
    categories: Names = ()

    @property
    def width(self) -> int:
        """How many numbers it takes in a row."""
        return len(self.categories) or 1


def table(
    path: str = "",
    label: str = "",
    site: str = "",
    columns: Names = (),
    categorical: Names = (),
    drop: Names = (),
) -> Domains:
    """CSV with a `label` column: one file with a `site` column, or a file a site, as path='heart/*.csv'.

    `columns` names them where the file has no header; `categorical` are columns of numbers that are names of
    categories; `drop` are columns to leave out.
    """
    if not path or not label:
        raise DataError("table needs a file and a column: table(path='visits.csv', site=hospital, label=diagnosis)")
    rows = by_file(path, columns) if "*" in path else by_column(path, site, columns)
    return assemble(rows, path, label, categorical, (*drop, *([site] if site else [])))


def by_file(path: str, columns: Names) -> dict[str, list[Row]]:
    """The rows of several files, each a site that is called by what stands for the star."""
    before, _, after = str(Path(path).expanduser()).partition("*")
    if "*" in after:
        raise DataError(f"{path}: one * is the name of the site, two leave it open; write out all but one")
    found = sorted(file for file in glob.glob(f"{glob.escape(before)}*{glob.escape(after)}") if Path(file).is_file())
    if not found:
        raise MissingError(f"{path}: no such files; give a path in which * stands for the name of each site")
    return {file[len(before) : len(file) - len(after)]: read(Path(file), columns) for file in found}


def by_column(path: str, site: str, columns: Names) -> dict[str, list[Row]]:
    """The rows of one file, by what stands in the column of sites."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise MissingError(f"{path}: no such file; give a CSV file, or files by site, as path='heart/*.csv'")
    if not site:
        raise DataError(f"{path} is one file; name the column that says which site a row is from, as site=hospital")
    rows: dict[str, list[Row]] = {}
    for row in read(file, columns):
        require(row, site, path)
        if missing(row[site]):
            raise DataError(f"{path}: a row without {site}; every row must say which site it is from")
        rows.setdefault(row[site], []).append(row)
    return rows


def read(file: Path, columns: Names) -> list[Row]:
    """The rows of a CSV file, separated by commas, semicolons or tabs, under the names of its columns."""
    try:
        text = file.read_text("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=text.partition("\n")[0].count))
        lines = [(reader.line_num, line) for line in reader if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read ({error}); give a CSV file in UTF-8") from None
    names = columns or tuple(name.strip() for name in (lines.pop(0)[1] if lines else ()))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{file}: more than one column is called {twice[0]!r}; give each a name of its own")
    rows = []
    for number, line in lines:
        if len(line) != len(names):
            raise DataError(f"{file}, line {number}: {len(line)} values for {len(names)} columns; mend that line")
        rows.append(dict(zip(names, map(str.strip, line), strict=True)))
    if not rows:
        raise DataError(f"{file}: no rows; expected a CSV file with a header and a row for each case")
    return rows


def assemble(rows: dict[str, list[Row]], path: str, label: str, categorical: Sequence[str], drop: Names) -> Domains:
    """Rows of all sites as features and labels; what is missing stays open until a site's training rows are known."""
    every = [row for some in rows.values() for row in some]
    for row in every:
        for name in (label, *categorical, *drop):
            require(row, name, path)
        if missing(row[label]):
            raise DataError(f"{path}: a row without {label}; remove rows without a label")
    for site in rows:
        if not site or "/" in site or "+" in site:
            raise DataError(f"{path}: a site called {site!r}; give it a name without / and +, which mean more here")
    shared = [name for name in every[0] if name not in (label, *drop)]
    odd = {name for row in every for name in row.keys() ^ every[0].keys()}
    if odd or not shared:
        told = f"columns that only some files have: {', '.join(sorted(odd))}" if odd else "no column but the label"
        raise DataError(f"{path}: {told}; every site needs the same features")
    found = [column(name, [row[name] for row in every], name in categorical, path) for name in shared]
    classes = in_order({plain(row[label]) for row in every})
    if len(classes) < 2:
        raise DataError(f"{path}: {label} is {classes[0]} in every row; there is nothing to tell apart")
    images = {
        site: (
            features(some, found),
            torch.tensor([classes.index(plain(row[label])) for row in some]),
        )
        for site, some in rows.items()
    }
    return Domains(classes, images, complete=partial(complete, widths(found)), columns=found)


def features(rows: Sequence[Row], columns: Sequence[Column]) -> Tensor:
    """Rows as numbers; what is missing is open (NaN)."""
    return torch.tensor([[number for one in columns for number in numbers(row[one.name], one)] for row in rows])


def widths(columns: Sequence[Column]) -> tuple[int, ...]:
    """How many numbers each column takes, 0 for one that is a number itself."""
    return tuple(one.width if one.categories else 0 for one in columns)


def unlabelled(file: Path, columns: Sequence[Column]) -> Tensor:
    """The rows of a CSV file of a further site, completed by what is known of all of them; other columns are let be."""
    rows = read(file, ())
    for number, row in enumerate(rows, 1):
        for one in columns:
            require(row, one.name, str(file))
            value = row[one.name]
            if missing(value) or (plain(value) in one.categories if one.categories else is_number(value)):
                continue
            known = f"one of {', '.join(one.categories)}" if one.categories else "a number"
            raise DataError(
                f"{file}, row {number}: {one.name} is {value!r}, expected {known}; mend it or leave it empty"
            )
    found = features(rows, columns)
    nobody = torch.zeros(len(rows))
    return complete(widths(columns), (found, nobody), (found, nobody))[0]


def column(name: str, values: list[str], named: bool, path: str) -> Column:
    """What kind of feature a column is: numbers if all that is there are numbers, else categories."""
    known = [value for value in values if not missing(value)]
    if not named and all(is_number(value) for value in known):
        return Column(name)
    categories = in_order({plain(value) for value in known})
    if len(categories) > MOST:
        raise DataError(
            f"{path}: {name} has {len(categories)} different values, more than {MOST} categories; "
            f"leave it out with drop=['{name}'], or mend what is no number, as {categories[-1]!r}"
        )
    return Column(name, categories or ("",))


def numbers(value: str, one: Column) -> list[float]:
    """A value as it stands in a row of features: a number, or a one among zeros; open (NaN) if it is missing."""
    if missing(value):
        return [math.nan] * one.width
    if not one.categories:
        return [float(value)]
    return [float(plain(value) == category) for category in one.categories]


def complete(groups: tuple[int, ...], split: Rows, train: Rows) -> Rows:
    """A split with nothing missing, by the training rows of its site: medians, most frequent categories, standardised.

    `groups` are the widths of the columns, 0 for a number. A column that the site lacks altogether is all zeros.
    """
    rows, seen = split[0], train[0]
    done, place = [], 0
    for group in groups:
        part = slice(place, place + (group or 1))
        done.append(filled(rows[:, part], seen[:, part]) if group else standardised(rows[:, part], seen[:, part]))
        place += group or 1
    return torch.cat(done, 1), split[1]


def filled(rows: Tensor, seen: Tensor) -> Tensor:
    """Categories, the most frequent one of the training rows where one is missing."""
    counts = seen.nan_to_num(0.0).sum(0)
    usual = torch.zeros_like(counts)
    if counts.any():
        usual[counts.argmax()] = 1.0
    return torch.where(rows.isnan(), usual, rows)


def standardised(rows: Tensor, seen: Tensor) -> Tensor:
    """Numbers, the median of the training rows where one is missing, with their mean at 0 and their spread at 1."""
    if bool(seen.isnan().all()):
        return torch.zeros_like(rows)
    usual = seen.double().nanquantile(0.5, dim=0)
    known = torch.where(seen.isnan(), usual, seen.double())
    mean, spread = known.mean(0), known.std(0, correction=0)
    spread = torch.where(spread > 1e-9 * (1 + mean.abs()), spread, torch.ones_like(spread))  # all the same: zeros
    return ((torch.where(rows.isnan(), usual, rows.double()) - mean) / spread).float()


def missing(value: str) -> bool:
    """Whether a field stands for no value."""
    return value.casefold() in MISSING


def is_number(value: str) -> bool:
    """Whether a field is a finite number."""
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def plain(value: str) -> str:
    """A category under one name: 1, 1.0 and 01 are the same."""
    return f"{float(value):g}" if is_number(value) else value


def in_order(values: set[str]) -> Names:
    """Categories by number if they are numbers, else by name."""
    return tuple(
        sorted(values, key=lambda value: (not is_number(value), float(value) if is_number(value) else 0.0, value))
    )


def require(row: Row, name: str, path: str) -> None:
    """Refuse a column that is not there."""
    if name not in row:
        raise DataError(f"{path}: no column {name!r}; its columns are {', '.join(row)}")
