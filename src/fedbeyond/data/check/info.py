"""`fedbeyond data info`: what is known about a dataset without having it."""

from collections.abc import Iterable, Sequence

from ...errors import ConfigError, nearest
from ..datasets._benchmarks import EVERY, KNOWN
from ..datasets.facts import FACTS, Release, total

WIDEST = 12  # classes that fit beside each other


def info(name: str = "") -> str:
    """All that is known about a dataset, or a line about each."""
    if not name:
        return overview()
    if name not in KNOWN:
        raise ConfigError(f"nothing is known about dataset {name!r}; {nearest(name, KNOWN)} (fedbeyond data info)")
    known, facts = KNOWN[name], FACTS[name]
    many = f"{len(known.classes)} of {EVERY}" if known.part else f"{len(known.classes)}"
    classes = f"{many}: {', '.join(known.classes)}"
    lines = [
        f"{name}",
        *told("from", [facts.page]),
        *told("licence", [facts.licence]),
        *told("place", [f"data/{name}, or anywhere: {name}(root=...); nothing is ever downloaded"]),
        *told("layouts", facts.layouts),
        *told("domains", [", ".join(known.domains)]),
        *told("some have", [", ".join(known.extra)] if known.extra else []),
        *told("classes", [classes]),
        *told("note", [facts.note] if facts.note else []),
    ]
    for release in facts.releases:
        lines += ["", f"  images: {release.name}{'' if release.checked else ' (unchecked)'}"]
        lines += [f"  {line}" for line in numbers(release, known.classes)]
    return "\n".join(lines) + "\n"


def overview() -> str:
    """A line about each dataset."""
    rows = [("name", "domains", "classes", "images", "from")]
    for name, known in KNOWN.items():
        releases = FACTS[name].releases
        images = str(sum(map(total, releases[0].counts.values()))) if releases else "-"
        mark = "" if releases and releases[0].checked else " ?"
        classes = f"{len(known.classes)} of {EVERY}" if known.part else str(len(known.classes))
        page = FACTS[name].page.partition(" (")[0]
        rows.append((name, str(len(known.domains)), classes, images + mark, page))
    lines = aligned(rows, left=(0, 4))
    return "\n".join([*lines, "", "?: unchecked; fedbeyond data info NAME tells more"]) + "\n"


def numbers(release: Release, classes: Sequence[str]) -> list[str]:
    """A release's images by domain, and by class where that is known and fits."""
    full = len(classes) <= WIDEST and not any(isinstance(count, int) for count in release.counts.values())
    rows = [("domain", *(classes if full else ()), "all")]
    for domain, count in release.counts.items():
        each = tuple(map(str, count)) if full and not isinstance(count, int) else ()
        rows.append((domain, *each, str(total(count))))
    rows.append(("all", *("",) * (len(rows[0]) - 2), str(sum(map(total, release.counts.values())))))
    return aligned(rows)


def told(title: str, texts: Iterable[str]) -> list[str]:
    """A title and its texts, one below the other."""
    return [f"  {title if place == 0 else '':9}  {text}" for place, text in enumerate(texts)]


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Rows as lines with columns one below the other, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
