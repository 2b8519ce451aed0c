"""Decide what each column of a table is, a number or categories, and find columns and labels that cannot be right."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...spec import format_value
from ..finding import Finding, shortened

Names = tuple[str, ...]

MISSING = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))  # in any case
MAX_CATEGORIES = 100  # of a column
MAX_FRACTIONS = 10  # values of a label with decimals; with more of them it is a quantity
MANY_CLASSES = 20  # values of a numeric label that are probably not classes
ENOUGH = 20  # rows; in fewer, all values of a column may differ by chance
MAX_PLACES = 3  # lines that are named for one value

DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)+")
NOT_FINITE = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)
DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d\d)|\d{1,2}[ -][A-Za-z]{3,9}\.?[ -]\d{4})"
    r"([ T]+\d{1,2}:\d\d(:\d\d(\.\d+)?)?\s*(Z|[AaPp][Mm]|[+-]\d\d:?\d\d)?)?"
)
DAY_NUMBER = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(\.0+)?")  # 20240131
IDENTIFIER = re.compile(r"(?:.*[^A-Za-z])?(?:id|ids|uid|uuid|guid|mrn)|.*[a-z](?:ID|Id)", re.DOTALL)


class Column(NamedTuple):
    """A feature: a number, or one of several categories."""

    name: str
    categories: Names = ()

    @property
    def width(self) -> int:
        """Return how many numbers the column takes in a row of features."""
        return len(self.categories) or 1


class Cell(NamedTuple):
    """A value of a column, and where it is: `line 7`."""

    value: str
    place: str


def infer_column(name: str, cells: Sequence[Cell], categorical: bool) -> Column:
    """Return a numeric column if most known values are numbers and it is not `categorical`, else its categories."""
    values = [cell.value for cell in cells if not is_missing(cell.value)]
    if not categorical and (all(map(is_number, values)) or mostly_numbers(cells)):
        return Column(name)
    return Column(name, sort_categories({canonical(value) for value in values}) or ("",))


def mostly_numbers(cells: Sequence[Cell]) -> bool:
    """Return whether at least half of the known values are numbers, or would be if they were written as usual."""
    known = [cell.value for cell in cells if NOT_FINITE.fullmatch(cell.value) or not is_missing(cell.value)]
    meant = [
        value for value in known if is_number(value) or DECIMAL_COMMA.fullmatch(value) or NOT_FINITE.fullmatch(value)
    ]
    return 0 < len(known) <= 2 * len(meant)


def inspect_column(column: Column, cells: Sequence[Cell], categorical: bool) -> Iterator[Finding]:
    """Yield what cannot be right about a column of features; as notes what may be intended."""
    if column.categories:
        known = [cell for cell in cells if not is_missing(cell.value)]
        yield from dates(column.name, known, categorical) or identifiers(column, known)
        yield from variants(f"categories of {column.name!r}", known, note=True)
    else:
        yield from stray_text(column.name, cells)
        yield from numbers_that_are_names(column.name, [cell for cell in cells if is_number(cell.value)])


def stray_text(name: str, cells: Sequence[Cell]) -> Iterator[Finding]:
    """Find texts in a column of numbers: typing errors, decimal commas, and numbers that are not finite."""
    odd = [cell for cell in cells if NOT_FINITE.fullmatch(cell.value) or not _is_number_or_missing(cell.value)]
    if odd:
        commas = [cell.value for cell in odd if DECIMAL_COMMA.fullmatch(cell.value)]
        texts = tuple(dict.fromkeys(cell.value for cell in odd if cell.value not in commas))[:MAX_PLACES]
        point = f" (a decimal has a point: {commas[0].replace(',', '.')}, not {commas[0]})" if commas else ""
        absent = f"give missing={format_value(texts)} if that means a missing value, or " if texts else ""
        yield Finding(
            f"column {name!r} has numbers, and in {_rows(len(odd))} of {len(cells)} something else",
            located(odd),
            f"fix these values{point}, or {absent}categorical={format_value((name,))} if all values are categories",
        )


def _is_number_or_missing(value: str) -> bool:
    return is_missing(value) or is_number(value)


def dates(name: str, known: Sequence[Cell], categorical: bool) -> list[Finding]:
    """Find a column of dates, which would become a category for each day."""
    days = [cell for cell in known if DATE.fullmatch(cell.value)]
    if categorical or len(days) < max(1, 0.9 * len(known)):
        return []
    return [
        Finding(
            f"column {name!r} holds dates, which are not numbers",
            located(days[:2]),
            f"leave it out with drop={format_value((name,))}, replace it by a number such as an age in days, or give "
            f"categorical={format_value((name,))} if each date is a category",
        )
    ]


def identifiers(column: Column, known: Sequence[Cell]) -> Iterator[Finding]:
    """Find categories that are an identifier or free text: as many values as rows, or too many."""
    name, count = column.name, len(column.categories)
    drop = f"leave it out with drop={format_value((name,))}"
    if len(known) >= ENOUGH and count == len(known):
        title = f"column {name!r} has {count} different values in {_rows(count)}, like an identifier or free text"
        yield Finding(title, located(known[:2]), f"{drop}: a category that occurs once teaches nothing")
    elif count > MAX_CATEGORIES:
        title = f"column {name!r} has {count} different values, more than {MAX_CATEGORIES} categories"
        yield Finding(title, located(known[:2]), f"{drop}, or, if it is numeric, write all its values as numbers")
    elif len(known) >= ENOUGH and (2 * count > len(known) or IDENTIFIER.fullmatch(name)):
        title = f"column {name!r} has {count} different values in {_rows(len(known))} and looks like an identifier"
        yield Finding(title, (), drop, note=True)


def numbers_that_are_names(name: str, cells: Sequence[Cell]) -> Iterator[Finding]:
    """Find numbers that are probably an identifier, the number of the row, or a date."""
    values = {float(cell.value) for cell in cells}
    if len(cells) < ENOUGH or not all(value.is_integer() for value in values):
        return
    distinct = len(values) == len(cells)
    what = ""
    if all(DAY_NUMBER.fullmatch(cell.value) for cell in cells):
        what = "dates"
    elif distinct and max(values) - min(values) + 1 == len(values):
        what = "the number of the row"
    elif IDENTIFIER.fullmatch(name) or (distinct and not name):
        what = "an identifier"
    if what:
        remedy = f"it is used as a number; leave it out with drop={format_value((name,))}"
        yield Finding(f"column {name!r} looks like {what} ({cells[0].value}, {cells[1].value})", (), remedy, note=True)


def variants(what: str, cells: Sequence[Cell], note: bool = False) -> Iterator[Finding]:
    """Find names that differ only in case or in blanks."""
    by_name: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        plain = " ".join(cell.value.split()).casefold()
        by_name.setdefault(plain, {}).setdefault(canonical(cell.value), []).append(cell)
    for spelled in by_name.values():
        if len(spelled) > 1:
            usual = max(spelled, key=lambda value: len(spelled[value]))
            names = [
                f"{value!r} in {_rows(len(some))}" + ("" if value == usual else f" ({places(some)})")
                for value, some in spelled.items()
            ]
            title = f"{what} that differ only in upper and lower case or in blanks"
            yield Finding(title, names, f"write one of them everywhere, as in {usual!r}", note)


def inspect_label(label: str, cells: Sequence[Cell]) -> Iterator[Finding]:
    """Yield what cannot be right about the labels; as notes what may be intended."""
    unknown = [cell for cell in cells if is_missing(cell.value)]
    if unknown:
        title = f"{_rows(len(unknown))} without a value in the label column {label!r}"
        yield Finding(title, [cell.place for cell in unknown], "add the labels, or remove these rows")
    known = [cell for cell in cells if not is_missing(cell.value)]
    yield from variants(f"labels in column {label!r}", known)
    classes = sort_categories({canonical(cell.value) for cell in known})
    if len(classes) == 1:
        remedy = "the label needs at least two classes: add rows of another one"
        yield Finding(f"{label} is {classes[0]} in every row", (), remedy)
    numeric = all(map(is_number, classes))
    fractions = numeric and not all(float(name).is_integer() for name in classes)
    title, few = f"label {label!r} has {len(classes)} different values in {_rows(len(known))}", located(known[:2])
    accepted = "a label names one of a few classes, as in low and high, and regression is not supported; give another"
    if fractions and len(classes) > MAX_FRACTIONS:
        yield Finding(f"{title}, a quantity and not classes", few, f"{accepted} label, or write classes")
    elif len(classes) > MANY_CLASSES and 2 * len(classes) > len(known):
        yield Finding(f"{title}, hardly any class twice", few, f"{accepted} label, or write classes")
    elif numeric and len(classes) > MANY_CLASSES:
        yield Finding(f"{title}, and each is a class", few, "if it is a quantity, give another label", note=True)


def rare_classes(label: str, cells: Sequence[Cell]) -> Iterator[Finding]:
    """Find classes of one row, which cannot be in both training and validation; often a typing error."""
    counts = Counter(canonical(cell.value) for cell in cells)
    rare = [cell for cell in cells if counts[canonical(cell.value)] == 1]
    if rare:
        remedy = "correct the label if it is misspelled; otherwise add rows of that class, or remove the row"
        yield Finding(f"classes with one row: {len(rare)} of {len(counts)} classes of {label!r}", located(rare), remedy)


def located(cells: Sequence[Cell]) -> list[str]:
    """Return each different value with the first lines that it is in."""
    by_value: dict[str, list[Cell]] = {}
    for cell in cells:
        by_value.setdefault(cell.value, []).append(cell)
    return [f"{value!r} ({places(some)})" for value, some in by_value.items()]


def places(cells: Sequence[Cell]) -> str:
    """Return the first places of some cells, and count the others."""
    return shortened([cell.place for cell in cells], MAX_PLACES)


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
    return f"{float(value):.15g}" if is_number(value) else value  # all digits: codes may be long


def sort_categories(values: set[str]) -> Names:
    """Sort categories: numbers first by value, then names."""
    return tuple(
        sorted(values, key=lambda value: (not is_number(value), float(value) if is_number(value) else 0.0, value))
    )


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"
