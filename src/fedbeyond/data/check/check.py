"""`fedbeyond data check`: what a folder holds, what is wrong with it, and what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import ConfigError, DataError, nearest
from ..datasets._benchmarks import KNOWN, locate
from ..datasets._folder import decoded, own
from ..datasets.facts import FACTS, Release, total
from ..datasets.naming import matched, subfolders
from ..datasets.readers import recognise
from ..datasets.readers.arrays import own_arrays
from ..datasets.readers.folders import folders, parted
from ..storage.listing import Files, Listing, Records
from .findings import (
    Finding,
    beside,
    broken,
    counted,
    duplicates,
    expected,
    finding,
    first_labels,
    single,
    uneven,
    unknown_folders,
    wrong_counts,
)
from .info import WIDEST, aligned
from .picture import draw
from .scan import Scan, others, scan

DRAWN, COLUMNS = 64, 20  # pixels of an image in the picture; classes that it shows


class Found(NamedTuple):
    """What a folder was taken for: a known dataset or one's own, and what was wrong on the way."""

    name: str
    listing: Listing | None
    problems: tuple[Finding, ...] = ()


def check(root: Path, name: str = "", picture: Path | None = None) -> tuple[str, bool]:
    """A report on a folder, and whether all is well."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the folder that holds the dataset")
    if name and name not in KNOWN:
        raise ConfigError(f"nothing is known about dataset {name!r}; {nearest(name, KNOWN)} (fedbeyond data info)")
    found = _as(root, name) if name else _identified(root)
    if found.listing is None:
        return _report(root, found, [], found.problems, None), False
    release = _release(found)
    seen = scan(found.listing)
    findings = (*found.problems, *_findings(root, found.name, found.listing, release, seen))
    if picture is not None:
        draw(decoded(_sample(found.listing, seen), DRAWN), picture, each=3 if len(found.listing.classes) <= 10 else 1)
    table = _table(found.listing, release)
    return _report(root, found, table, findings, picture), all(each.note for each in findings)


def _identified(root: Path) -> Found:
    """The known dataset that a folder holds, else a folder of one's own."""
    stopped = []
    for name, known in KNOWN.items():
        try:
            listing = recognise(root, known)
            if listing is None:
                continue
            return Found(name, _whole(root, name, listing))
        except DataError:
            found = _as(root, name)
            if found.listing is None or not set(found.listing.domains) >= set(known.domains):
                stopped.append(found)  # it looks like that dataset, but so may others
                continue
            return found
    try:
        listing = own_arrays(root) if any(root.glob("*.npz")) else own(root, partial=True)
    except DataError as error:
        return stopped[0] if stopped else Found("", None, (_stops(str(error)), *_nearly(root)))
    if listing.domains:
        return Found("", listing, (*_nearly(root), *(_perhaps(found) for found in stopped)))
    return (
        stopped[0]
        if stopped
        else Found("", None, (_stops(f"{root}: neither folders nor .npz in it; expected domain/class/image"),))
    )


def _as(root: Path, name: str) -> Found:
    """A folder taken for a known dataset; where its reader stops, folders are read as far as they can be."""
    known = KNOWN[name]
    try:
        return Found(name, _whole(root, name, locate(name, known, str(root))))
    except DataError as error:
        problem = _stops(str(error))
    partly = known._replace(part=True, some=True)
    try:
        rest = parted(root, partly) or folders(root, partly)
    except DataError:
        rest = None
    told_better = (
        rest is not None and set(rest.domains) >= set(known.domains) and any(unknown_folders(root, known, None))
    )
    return Found(name, rest, () if told_better else (problem,))


def _whole(root: Path, name: str, listing: Listing) -> Listing:
    """The listing, or that of all classes where only some were looked for."""
    every = recognise(root, KNOWN[name]._replace(classes=(), part=False)) if name == "domainnet" else None
    return every if every and len(every.classes) > len(listing.classes) else listing


def _stops(why: str) -> Finding:
    return finding("unreadable: training would stop with this", [why], "mend what is named, then check again")


def _perhaps(found: Found) -> Finding:
    """Why a folder of one's own is not the known dataset that it looks like."""
    why = [name for problem in found.problems for name in problem.names]
    return finding(
        f"perhaps {found.name}", why, f"if it is {found.name}, mend that and use --as {found.name}", note=True
    )


def _nearly(root: Path) -> Iterator[Finding]:
    """Known datasets of which a folder has some domains, but not all."""
    for name, known in KNOWN.items():
        try:
            there = matched(root, subfolders(root), known.domains, known.others)
        except DataError:
            continue  # two folders of one domain: told where its reader stopped
        if len(there) > 1 and len(there) > len(known.domains) / 2:
            lacking = ", ".join(domain for domain in known.domains if domain not in there)
            yield finding(
                f"perhaps {name}", [f"has no {lacking}"], f"if it is {name}, add it and use --as {name}", True
            )


def _release(found: Found) -> Release | None:
    """The known numbers that a copy can be held against, if it is no selection."""
    if not found.name or found.listing is None:
        return None
    known, release = KNOWN[found.name], expected(found.listing, FACTS[found.name].releases)
    if release is None or (found.name == "domainnet" and len(found.listing.classes) == len(known.classes)):
        return None
    if known.some:  # digits are used in all numbers: only a copy that is nearly whole is held against them
        there = {domain: sum(each) for domain, each in counted(found.listing).items()}
        if any(abs(many - total(release.counts.get(d, 0))) > many / 20 for d, many in there.items()):
            return None
    return release


def _findings(root: Path, name: str, listing: Listing, release: Release | None, seen: Scan) -> Iterator[Finding]:
    if name:
        yield from unknown_folders(root, KNOWN[name], release)
        yield from first_labels(root, KNOWN[name], name)
    else:
        yield from single(listing)
        yield from uneven(listing)
    if release:
        yield from wrong_counts(listing, release)
    yield from broken(seen)
    yield from duplicates(seen, listing, release)
    yield from beside(root, *others(listing))


def _table(listing: Listing, release: Release | None) -> list[str]:
    """Images by domain and class, and the known numbers beside."""
    full = len(listing.classes) <= WIDEST
    rows = [("domain", *(listing.classes if full else ()), "all", *(("known",) if release else ()))]
    sums = [0, 0]
    for domain, each in counted(listing).items():
        right = total(release.counts.get(domain, 0)) if release else 0
        sums = [sums[0] + sum(each), sums[1] + right]
        rows.append((domain, *(map(str, each) if full else ()), str(sum(each)), *((str(right),) if release else ())))
    blanks = ("",) * (len(listing.classes) if full else 0)
    rows.append(("all", *blanks, str(sums[0]), *((str(sums[1]),) if release else ())))
    return [f"  {line}" for line in aligned(rows)]


def _report(root: Path, found: Found, table: list[str], findings: tuple[Finding, ...], picture: Path | None) -> str:
    listing = found.listing
    layout = listing.layout if listing else "not recognised"
    lines = [f"{root}: {found.name + ', ' if found.name else ''}{layout}"]
    if listing:
        numbers = ", no known numbers to hold it against" if "known" not in table[0] else ""
        many = f"{len(listing.domains)} domain{'s' * (len(listing.domains) != 1)}"
        lines += [f"{many}, {len(listing.classes)} classes{numbers}", "", *table]
    for each in sorted(findings, key=lambda each: each.note):
        lines += ["", f"{'note: ' if each.note else ''}{each.title}", *(f"  {name}" for name in each.names)]
        lines += [f"  to do: {each.remedy}"]
    lines += ["", *([f"picture: {picture}"] if picture else [])]
    wrong = sum(not each.note for each in findings)
    lines.append(f"{wrong} finding{'s' * (wrong != 1)}" if wrong else "all is well")
    return "\n".join(lines) + "\n"


def _sample(listing: Listing, seen: Scan) -> Listing:
    """A few images of each class that can be opened."""
    bad = {place.name for place in (*seen.missing, *seen.broken)}
    classes = listing.classes[:COLUMNS]
    domains = {}
    for domain, records in listing.domains.items():
        rows = [row for label in range(len(classes)) for row in _few(records, label, bad)]
        domains[domain] = _rows(records, np.array(rows, np.int64))
    return Listing(classes, domains, listing.layout)


def _few(records: Records, label: int, bad: set[str], each: int = 3) -> list[int]:
    rows = np.nonzero(records.labels == label)[0].tolist()
    if isinstance(records.pixels, Files):
        rows = [row for row in rows if records.pixels.names[row] not in bad]
    return rows[:each]


def _rows(records: Records, rows: np.ndarray) -> Records:
    """Some rows of a domain."""
    if isinstance(records.pixels, np.ndarray):
        return Records(records.pixels[rows], records.labels[rows])
    root, names, boxes = records.pixels
    files = Files(root, tuple(names[row] for row in rows), tuple(boxes[row] for row in rows) if boxes else ())
    return Records(files, records.labels[rows])
