"""Datasets from pandas: the rows of a DataFrame, with the rules of tables in CSV files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...errors import DataError
from ...images import Dataset
from ._own import described, hint
from ._table import Texts, assemble
from .table_rows import Record, by_site, clean, missing_values

SCALARS = "numbers, texts, booleans and dates"


def from_pandas(
    frame: Any,
    *,
    site: str,
    label: str,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Texts = (),
    groups: str | None = None,
    name: str = "",
) -> Dataset:
    """Make a dataset of a DataFrame with a column that names the site of each row, and a column of labels.

    The rules are those of `table`, and so is the result for the same values: numeric and categorical columns (also
    those of dtype category), missing values, refused identifiers and dates. `groups` names the column of patients.
    """
    if not (hasattr(frame, "columns") and hasattr(frame, "iloc") and hasattr(frame, "isna")):
        better = " (give frame.to_pandas())" if hasattr(frame, "to_pandas") else hint(frame)
        raise DataError(f"frame is {described(frame)}; give a pandas DataFrame{better}")
    for argument, column in (("site", site), ("label", label), ("groups", groups or "-"), ("name", name or "-")):
        if not isinstance(column, str) or not column:
            wanted = "a text" if argument == "name" else "the name of a column"
            raise DataError(f"{argument} is {described(column)}; give {wanted}")
    listed = {"drop": names(drop, "drop"), "categorical": names(categorical, "categorical")}
    if not len(frame):
        raise DataError("frame has no rows; give a DataFrame with a row for each sample")
    where, absent = name or "frame", names(missing, "missing")
    records = by_site(frame_records(frame, absent), site, where)
    if len(records) == 1:
        raise DataError(f"{where}: column {site!r} has one site, {next(iter(records))!r}; give rows of two or more")
    kinds = zip(map(str, frame.columns), frame.dtypes, strict=True)
    used = {label, site, groups, *listed["drop"]}
    categories = [column for column, kind in kinds if str(kind) == "category" and column not in used]
    data = assemble(
        records, where, label, (*listed["categorical"], *categories), listed["drop"], site, groups or "", "fix it first"
    )
    return replace(data, name=name, label=label, missing=absent)


def names(values: object, argument: str) -> tuple[str, ...]:
    """Return a list of names or texts; a single text is refused, since it may be meant as one name."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise DataError(f"{argument} is {described(values)}; give a list, as in {argument}=['a', 'b']")
    return tuple(map(str, values))


def frame_records(frame: Any, missing: Sequence[str]) -> list[Record]:
    """Return the rows of a DataFrame as texts, as in a CSV file, each with the label of its index."""
    columns = [str(column).strip() for column in frame.columns]
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise DataError(f"frame: more than one column has the name {repeated[0]!r}; give each its own name")
    absent, cells = missing_values(missing), []
    places = [f"row {index}" for index in frame.index]
    for number, column in enumerate(columns):
        values = frame.iloc[:, number]
        pairs = zip(values.tolist(), values.isna().tolist(), places, strict=True)
        cells.append([clean("" if gone else text(value, column, place), absent) for value, gone, place in pairs])
    rows = zip(*cells, strict=True)
    return [Record(dict(zip(columns, row, strict=True)), place) for row, place in zip(rows, places, strict=True)]


def text(value: object, column: str, place: str) -> str:
    """Return the value of a cell as in a CSV file."""
    if isinstance(value, list | tuple | dict | set | bytes) or getattr(value, "shape", ()) != ():
        kind = type(value).__name__
        raise DataError(
            f"frame, {place}: column {column!r} has a value of type {kind}; give {SCALARS}, or drop={[column]}"
        )
    return repr(value) if type(value) is float else str(value)
