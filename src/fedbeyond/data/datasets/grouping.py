"""Groups of images or rows (patients, cases, slides) that stay in one split, from arrays, file names or a CSV file."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..finding import shortened
from .columns import canonical, is_missing
from .table_rows import read_records, require_columns

MAX_DIGITS = 15  # of a number that a float holds exactly
FILE, GROUP = "file", "group"  # columns of a CSV file of groups


def group_names(values: object, count: int, where: str) -> tuple[str, ...]:
    """Return the name of each row's group; raise unless there is a text or a whole number for each of `count` rows."""
    given = values if isinstance(values, np.ndarray) else _listed(values, where)
    if len(given) != count:
        raise DataError(f"{where} has {len(given)} groups for {count} rows; give the group of each row, in their order")
    return tuple(_name(value, f"row {row} of {where}") for row, value in enumerate(given))


def _listed(values: object, where: str) -> Sequence[object]:
    """Return a tensor, a column of a frame or any sequence as a list."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise DataError(f"{where} is of type {type(values).__name__}; give a sequence: the group of each row")
    return values


def _name(value: object, where: str) -> str:
    value = value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, float) and text.is_integer():
        text = int(text)
    if not isinstance(text, str | int) or is_missing(str(text).strip()):
        kind = repr(text) if isinstance(text, str | float) or text is None else f"of type {type(text).__name__}"
        raise DataError(f"the group in {where} is {kind}; give a text or a whole number for every row")
    return group_name(str(text).strip())


def group_name(text: str) -> str:
    """Return the name of a group in one spelling: 1, 1.0 and 01 are the same; long numbers keep all digits."""
    return canonical(text) if len(text) <= MAX_DIGITS else text


def file_groups(given: str, root: Path, files: Sequence[Path]) -> dict[Path, str]:
    """Return the group of each image file below root/domain/class, by a regular expression or from a CSV file."""
    is_table = given.lower().endswith(".csv")
    groups = _from_file(Path(given).expanduser(), root, files) if is_table else _from_pattern(given, root, files)
    without = [path.relative_to(root).as_posix() for path, group in groups.items() if is_missing(group)]
    if without:
        raise DataError(
            f"{root}: {len(without)} of {len(groups)} images have no group by groups={given!r}: "
            f"{shortened(without, 3)}; give a group to every image"
        )
    return {path: group_name(group) for path, group in groups.items()}


def _below_class(root: Path, file: Path) -> str:
    return Path(*file.relative_to(root).parts[2:]).as_posix()


def _from_pattern(given: str, root: Path, files: Sequence[Path]) -> dict[Path, str]:
    try:
        pattern = re.compile(given)
    except re.error as error:
        raise DataError(
            f"groups={given!r} is neither a CSV file nor a regular expression ({error}); give one as in '^(\\w+)_'"
        ) from None
    if pattern.groups != 1:
        raise DataError(
            f"groups={given!r} has {pattern.groups} parts in parentheses; put the part of the file name that is the "
            f"group, and nothing else, into parentheses, as in '^(\\w+)_'"
        )
    matches = {file: pattern.search(_below_class(root, file)) for file in files}
    return {file: (match[1] or "").strip() if match else "" for file, match in matches.items()}


def _from_file(file: Path, root: Path, files: Sequence[Path]) -> dict[Path, str]:
    if not file.is_file():
        raise DataError(
            f"groups={str(file)!r}: no such file; give a CSV file with the columns {FILE} and {GROUP}, or a regular "
            f"expression for file names"
        )
    records = read_records(file, ())
    require_columns(records, (FILE, GROUP), str(file))
    group_of: dict[str, str] = {}
    first: dict[str, str] = {}
    for record in records:
        name, group = record.values[FILE], record.values[GROUP]
        place = first.setdefault(name, record.place)
        if group_name(group_of.setdefault(name, group)) != group_name(group):  # names of groups stay in the file
            raise DataError(f"{file}: {place} and {record.place} give two groups to one image; keep one of them")
    short = Counter(_below_class(root, path) for path in files)
    groups = {}
    for path in files:
        name = path.relative_to(root).as_posix()
        below = _below_class(root, path)
        if name not in group_of and below in group_of and short[below] > 1:
            raise DataError(
                f"{file}: {below} is the name of {short[below]} images; write it with its folders, as in {name}"
            )
        groups[path] = group_of.get(name, group_of.get(below, ""))
    return groups
