"""`fedbeyond data info`: facts about known datasets, without their files."""

from collections.abc import Iterable, Sequence

from ...errors import ConfigError, nearest
from ..datasets._benchmarks import ALL_CLASSES, KNOWN
from ..datasets.facts import FACTS, Release, total

MAX_COLUMNS = 12  # classes that fit beside each other


def info(name: str = "") -> str:
    """Return all facts about a dataset, or a line for each dataset."""
    if not name:
        return overview()
    if name not in KNOWN:
        raise ConfigError(f"dataset {name!r} is not known; {nearest(name, KNOWN)} (fedbeyond data info)")
    known, facts = KNOWN[name], FACTS[name]
    count = f"{len(known.classes)} of {ALL_CLASSES}" if known.subset else f"{len(known.classes)}"
    classes = f"{count}: {', '.join(known.classes)}"
    lines = [
        f"{name}",
        *paragraph("from", [facts.page]),
        *paragraph("licence", [facts.licence]),
        *paragraph("path", [f"data/{name} by default, else {name}(root=...); nothing is ever downloaded"]),
        *paragraph("layouts", facts.layouts),
        *paragraph("domains", [", ".join(known.domains)]),
        *paragraph("optional", [", ".join(known.extra)] if known.extra else []),
        *paragraph("classes", [classes]),
        *paragraph("note", [facts.note] if facts.note else []),
    ]
    for release in facts.releases:
        lines += ["", f"  images: {release.name}{'' if release.checked else ' (unchecked)'}"]
        lines += [f"  {line}" for line in numbers(release, known.classes)]
    return "\n".join(lines) + "\n"


def overview() -> str:
    """Return a table with a line for each dataset."""
    rows = [("name", "domains", "classes", "images", "from")]
    for name, known in KNOWN.items():
        releases = FACTS[name].releases
        images = str(sum(map(total, releases[0].counts.values()))) if releases else "-"
        mark = "" if releases and releases[0].checked else " ?"
        classes = f"{len(known.classes)} of {ALL_CLASSES}" if known.subset else str(len(known.classes))
        page = FACTS[name].page.partition(" (")[0]
        rows.append((name, str(len(known.domains)), classes, images + mark, page))
    lines = align(rows, left=(0, 4))
    return "\n".join([*lines, "", "?: unchecked; fedbeyond data info NAME prints more"]) + "\n"


def numbers(release: Release, classes: Sequence[str]) -> list[str]:
    """Return a table of a release's images by domain, and by class if that is known and fits."""
    full = len(classes) <= MAX_COLUMNS and not any(isinstance(count, int) for count in release.counts.values())
    rows = [("domain", *(classes if full else ()), "all")]
    for domain, count in release.counts.items():
        each = tuple(map(str, count)) if full and not isinstance(count, int) else ()
        rows.append((domain, *each, str(total(count))))
    rows.append(("all", *("",) * (len(rows[0]) - 2), str(sum(map(total, release.counts.values())))))
    return align(rows)


def paragraph(title: str, texts: Iterable[str]) -> list[str]:
    """Return lines with a title on the left and texts below each other on the right."""
    return [f"  {title if line == 0 else '':9}  {text}" for line, text in enumerate(texts)]


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
