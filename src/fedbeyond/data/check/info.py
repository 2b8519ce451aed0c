"""`fedbeyond data info`: facts about known datasets, without their files."""

from collections.abc import Mapping, Sequence

from ...errors import ConfigError, nearest
from ..datasets._benchmarks import ALL_CLASSES, KNOWN
from ..datasets.facts import FACTS, Count, total
from ..datasets.naming import Known
from ..finding import WIDTH

MAX_COLUMNS = 12  # classes that fit beside each other


def info(name: str = "") -> str:
    """Return all facts about a dataset, or a line for each dataset."""
    if not name:
        return overview()
    if name not in KNOWN:
        raise ConfigError(f"dataset {name!r} is not known; {nearest(name, KNOWN)} (fedbeyond data info)")
    known, facts = KNOWN[name], FACTS[name]
    paragraphs = {
        "from": [facts.page],
        "licence": [facts.licence],
        "path": [f"data/{name} by default, else {name}(root=...); nothing is ever downloaded"],
        "layouts": facts.layouts,
        "domains": [", ".join(known.domains)],
        "optional": [", ".join(known.extra)],
        "classes": [f"{class_count(known)}: {', '.join(known.classes)}"],
        "note": [facts.note],
    }
    lines = [name]
    for title, texts in paragraphs.items():
        lines += [f"  {'' if line else title:9}  {text}" for line, text in enumerate(texts) if text]
    for release in facts.releases:
        lines += ["", f"  images: {release.name}{'' if release.checked else ' (unchecked)'}"]
        lines += count_table(release.counts, known.classes)
    return "\n".join(lines) + "\n"


def overview() -> str:
    """Return a table with a line for each dataset."""
    rows = [("name", "domains", "classes", "images", "from")]
    for name, known in KNOWN.items():
        releases = FACTS[name].releases
        images = str(sum(map(total, releases[0].counts.values()))) if releases else "-"
        mark = "" if releases and releases[0].checked else " ?"
        page = FACTS[name].page.partition(" (")[0]
        rows.append((name, str(len(known.domains)), class_count(known), images + mark, page))
    lines = align(rows, left=(0, 4))
    return "\n".join([*lines, "", "?: unchecked; fedbeyond data info NAME prints more"]) + "\n"


def count_table(
    counts: Mapping[str, Count], classes: Sequence[str], expected: Mapping[str, Count] | None = None
) -> list[str]:
    """Return a table of images by domain, by class if that is known and fits, and beside the expected numbers."""
    full = len(classes) <= MAX_COLUMNS and not any(isinstance(count, int) for count in counts.values())
    sides = [counts] if expected is None else [counts, expected]
    sums = {domain: [total(side.get(domain, 0)) for side in sides] for domain in counts}
    rows = [("domain", *(classes if full else ()), *("all", "expected")[: len(sides)])]
    for domain, count in counts.items():
        each = map(str, count) if full and not isinstance(count, int) else ()
        rows.append((domain, *each, *map(str, sums[domain])))
    blanks = ("",) * (len(rows[0]) - 1 - len(sides))
    rows.append(("all", *blanks, *(str(sum(column)) for column in zip(*sums.values(), strict=True))))
    lines = align(rows)
    if expected is None and full and max(map(len, lines)) > WIDTH - 2:
        by_class = align([*zip(("class", *rows[0][1:]), *rows[1:], strict=True)])
        lines = min(lines, by_class, key=lambda lines: max(map(len, lines)))
    return [f"  {line}" for line in lines]


def class_count(known: Known) -> str:
    """Return the number of classes that are read, and of how many if they are a selection."""
    return f"{len(known.classes)} of {ALL_CLASSES}" if known.subset else str(len(known.classes))


def align(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Format rows as lines with aligned columns; the columns `left` are aligned left, others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
