"""Tables by site: CSV files with numbers and categories, some of them missing, as rows of features.

Missing values are filled in and numbers are standardised at each site, after the split, from the site's training rows
alone. Sites must agree beforehand only on the list of columns and on the names of their categories.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from ...errors import DataError
from ...images import Dataset, Notes
from ...spec import parse
from ..finding import Finding, shortened, wrapped_notes
from .columns import (
    Cell,
    Column,
    Names,
    canonical,
    infer_column,
    inspect_column,
    inspect_label,
    is_missing,
    is_number,
    rare_classes,
    sort_categories,
    variants,
)
from .grouping import group_name
from .table_rows import Record, Row, by_column, by_file, read_records, require_column, require_columns
from .table_summary import summary

Rows = tuple[Tensor, Tensor]  # features and labels
Texts = tuple[str | float, ...]


class Survey(NamedTuple):
    """The columns of features of a table, and what cannot be right about it; notes on what may be intended."""

    columns: list[Column]
    findings: list[Finding]


def table(
    path: Annotated[str, "CSV file, or a pattern with a file for each site: 'heart/*.csv'"] = "",
    label: Annotated[str, "column of the class"] = "",
    site: Annotated[str, "column of the site, if one file holds all sites"] = "",
    columns: Annotated[Names, "names of the columns of a file without a header"] = (),
    categorical: Annotated[Names, "columns of numbers that are categories"] = (),
    drop: Annotated[Names, "columns to leave out"] = (),
    missing: Annotated[Texts, "texts that mean a missing value, besides ?, NA and others"] = (),
    groups: Annotated[str, "column of patients, for train.disjoint; it is then no feature"] = "",
) -> Dataset:
    """Read CSV with a `label` column: one file with a `site` column, or a file for each site, as path='heart/*.csv'."""
    if not path or not label:
        raise DataError(
            f"table has path={path!r} and label={label!r} and needs both: "
            f"table(path='visits.csv', site=hospital, label=diagnosis)"
        )
    absent = tuple(map(str, missing))
    records = by_file(path, columns, absent) if "*" in path else by_column(path, site, columns, absent)
    return replace(assemble(records, path, label, categorical, drop, site, groups), label=label, missing=absent)


def assemble(
    records: dict[str, list[Record]],
    path: str,
    label: str,
    categorical: Sequence[str],
    drop: Names = (),
    site: str = "",
    groups: str = "",
    all_findings: str = "give 'fedbeyond data check' the same table",
) -> Dataset:
    """Convert the rows of all sites to features and labels; missing values are NaN until a split is completed."""
    columns, findings = survey(records, path, label, categorical, no_features(drop, site, label, groups))
    wrong = [finding for finding in findings if not finding.note]
    if wrong:
        more = f" ({len(wrong) - 1} more: {all_findings})" if len(wrong) > 1 else ""
        raise DataError(f"{path}: {wrong[0].sentence()}{more}")
    labels = {site: [canonical(record.values[label]) for record in rows] for site, rows in records.items()}
    classes = sort_categories({name for names in labels.values() for name in names})
    images = {
        site: (
            features([record.values for record in rows], columns),
            torch.tensor([classes.index(name) for name in labels[site]]),
        )
        for site, rows in records.items()
    }
    notes = wrapped_notes((*findings, *rare_classes(label, [record.cell(label) for record in _all(records)])))
    about = [*summary(records, columns, label, classes), *notes]
    metadata = {site: Notes(groups=row_groups(rows, groups, path)) for site, rows in records.items()} if groups else {}
    return Dataset(classes, images, metadata, partial(complete, widths(columns)), columns, about)


def no_features(drop: Names, site: str, label: str, groups: str) -> Names:
    """Return the columns that are no features, besides the label."""
    if groups and groups in (site, label):
        raise DataError(f"groups={groups!r} is the column of the {'site' if groups == site else 'label'}; give another")
    return (*drop, *(name for name in (site, groups) if name))


def row_groups(records: Sequence[Record], column: str, path: str) -> Names:
    """Return the group of each row; raise if a row has none."""
    without = [record.place for record in records if is_missing(record.values[column])]
    if without:
        raise DataError(f"{path}, {shortened(without)}: no value in column {column!r}; give the group of every row")
    return tuple(group_name(record.values[column]) for record in records)


def survey(
    records: dict[str, list[Record]], path: str, label: str, categorical: Sequence[str], drop: Sequence[str]
) -> Survey:
    """Decide what each column is, and find what cannot be right; without a label, all columns are features."""
    rows = _all(records)
    require_columns(rows, [*([label] if label else []), *categorical, *drop], path)
    for site in records:
        if not site or "/" in site or "+" in site:
            raise DataError(f"{path}: site name {site!r} is not accepted; give it a name without / and +")
    shared = [name for name in rows[0].values if name not in (label, *drop)]
    odd = {name for row in rows for name in row.values.keys() ^ rows[0].values.keys()}
    if odd:
        raise DataError(f"{path}: only some files have the columns {', '.join(sorted(odd))}; give all files the same")
    if not shared:
        raise DataError(f"{path}: no column except the label, the site and those in drop; add at least one feature")
    cells = {name: [row.cell(name) for row in rows] for name in shared}
    columns = [infer_column(name, cells[name], name in categorical) for name in shared]
    findings = list(inspect_label(label, [row.cell(label) for row in rows])) if label else []
    for column in columns:
        findings += inspect_column(column, cells[column.name], column.name in categorical)
    sites = [Cell(site, row.place) for site, site_rows in records.items() for row in site_rows]
    return Survey(columns, [*findings, *variants("names of sites", sites, note=True)])


def _all(records: dict[str, list[Record]]) -> list[Record]:
    return [record for rows in records.values() for record in rows]


def missing_texts(spelled: str) -> Names:
    """Return the texts that mean a missing value in the dataset of this spec."""
    texts: Iterable[object] = parse(spelled)[0].options.get("missing", ())
    return tuple(map(str, texts))


def features(rows: Sequence[Row], columns: Sequence[Column]) -> Tensor:
    """Convert rows to numbers; missing values are NaN."""
    return torch.tensor([[number for column in columns for number in encode(row[column.name], column)] for row in rows])


def widths(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return how many numbers each categorical column takes, and 0 for a numeric column."""
    return tuple(column.width if column.categories else 0 for column in columns)


def unlabelled(file: Path, columns: Sequence[Column], missing: Names = ()) -> Tensor:
    """Read the rows of another site's CSV file, completed from all of them; other columns are ignored."""
    records = read_records(file, (), missing)
    rows = [record.values for record in records]
    for row, place in records:
        for column in columns:
            require_column(row, column.name, str(file))
            value = row[column.name]
            valid = canonical(value) in column.categories if column.categories else is_number(value)
            if is_missing(value) or valid:
                continue
            accepted = f"one of {', '.join(column.categories)}" if column.categories else "a number"
            raise DataError(
                f"{file}, {place}: {column.name} is {value!r}, expected {accepted}; fix it or leave it empty"
            )
    x = features(rows, columns)
    no_labels = torch.zeros(len(rows))
    return complete(widths(columns), (x, no_labels), (x, no_labels))[0]


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
