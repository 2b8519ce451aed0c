"""Describe a table in a few lines of a terminal: the kind of each column, and the rows and classes of each site."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..finding import WIDTH
from .columns import Column, Names, canonical, is_missing, is_number
from .table_rows import Record

MAX_LINES = 20  # columns or sites that are listed; the others are counted
MAX_NAME = 24  # characters of a name


def summary(
    records: Mapping[str, Sequence[Record]], columns: Sequence[Column], label: str, classes: Names
) -> Iterator[str]:
    """Yield the kind, values and missing share of each column, and the rows and class counts of each site."""
    yield from describe_columns([record for rows in records.values() for record in rows], columns)
    if label:
        yield from describe_sites(records, label, classes)


def describe_columns(rows: Sequence[Record], columns: Sequence[Column]) -> Iterator[str]:
    """Yield a line for each column: numeric with its range, or categorical with its categories, and what is missing."""
    numeric = sum(not column.categories for column in columns)
    yield f"columns: {numeric} numeric, {len(columns) - numeric} categorical"
    known = {
        column: [r.values[column.name] for r in rows if not is_missing(r.values[column.name])] for column in columns
    }
    lines = [
        (column.name, _kind(column), _share(1 - len(known[column]) / len(rows)), _values(column, known[column]))
        for column in columns
    ]
    yield from _aligned([("name", "kind", "missing", "values"), *lines[:MAX_LINES]], left=(0, 1, 3))
    if len(lines) > MAX_LINES:
        most = max(1 - len(known[column]) / len(rows) for column in columns[MAX_LINES:])
        rest = sum(not column.categories for column in columns[MAX_LINES:])
        gaps = f", at most {_share(most)} missing" if most else ""
        left_out = len(lines) - MAX_LINES
        yield f"  and {left_out} more columns: {rest} numeric, {left_out - rest} categorical{gaps}"


def describe_sites(records: Mapping[str, Sequence[Record]], label: str, classes: Names) -> Iterator[str]:
    """Yield a line for each site: its number of rows, in all and of each class; classes that do not fit are summed."""
    counts = {site: Counter(canonical(row.values[label]) for row in rows) for site, rows in records.items()}
    for shown in range(min(len(classes), WIDTH // 3), -1, -1):
        some, rest = classes[:shown], classes[shown:]
        other = (f"{len(rest)} more",) if rest else ()
        lines = [("site", "rows", *map(_short, some), *other)]
        for site, by_class in counts.items():
            each = [by_class[name] for name in some] + ([sum(by_class[name] for name in rest)] if rest else [])
            lines.append((site, f"{len(records[site]):,}", *(f"{count:,}" for count in each)))
        text = _aligned(lines[: MAX_LINES + 1])
        if max(map(len, text)) <= WIDTH:
            break
    yield f"sites: {len(records)}, with the classes of {label!r}"
    yield from text
    if len(lines) > MAX_LINES + 1:
        rows = sum(len(rows) for rows in list(records.values())[MAX_LINES:])
        yield f"  and {len(records) - MAX_LINES} more sites with {rows:,} rows"


def _kind(column: Column) -> str:
    count = len(column.categories)
    return f"categorical, {count} value{'s' * (count != 1)}" if count else "numeric"


def _values(column: Column, known: Sequence[str]) -> str:
    if column.categories:
        return ", ".join(map(_short, column.categories))
    numbers = [float(value) for value in known if is_number(value)]
    return f"{min(numbers):g} to {max(numbers):g}" if numbers else "none"


def _share(part: float) -> str:
    return "" if not part else f"{part:.0%}" if 0.01 <= part < 0.995 or part == 1 else "<1%" if part < 0.01 else ">99%"


def _short(name: str, most: int = MAX_NAME) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."


def _aligned(lines: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Format rows with aligned columns; the last one may be cut at the width of a terminal if it is aligned left."""
    cells = [[_short(line[0]), *line[1:]] for line in lines]
    widths = [max(len(line[place]) for line in cells) for place in range(len(cells[0]))]
    text = []
    for line in cells:
        pairs = enumerate(zip(line, widths, strict=True))
        joined = "  ".join(cell.ljust(width) if place in left else cell.rjust(width) for place, (cell, width) in pairs)
        text.append(_short(f"  {joined}".rstrip(), WIDTH) if len(widths) - 1 in left else f"  {joined}".rstrip())
    return text
