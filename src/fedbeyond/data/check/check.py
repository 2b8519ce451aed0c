"""`fedbeyond data check`: recognise the dataset in a folder, and report what is wrong and what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ...errors import ConfigError, DataError, nearest
from ...images import Dataset
from ..datasets._benchmarks import KNOWN, locate
from ..datasets._folder import list_folder
from ..datasets.facts import FACTS, Release, total
from ..datasets.naming import match_paths, spellings, subfolders
from ..datasets.readers import recognise
from ..datasets.readers.arrays import list_arrays
from ..datasets.readers.folders import folders
from ..finding import Finding, count_findings, printable, report_lines
from ..storage.cache import PICTURES, digest, home
from ..storage.decode import decoded
from ..storage.listing import Files, Listing
from .findings import bare_images, closest_release, count_images, inspect, unknown_folders
from .info import count_table
from .picture import draw, ensure_new
from .scan import Scan, scan
from .table import check_table, is_table

PICTURE_SIZE, PICTURE_CLASSES = 64, 20  # pixels of an image in the picture; classes that it shows


class Recognised(NamedTuple):
    """A folder as a dataset: the name of a known dataset or none, its listing if it can be read, and problems."""

    name: str
    listing: Listing | None
    problems: tuple[Finding, ...] = ()


def check(given: str | Path, name: str = "", picture: Path | None = None) -> tuple[str, bool]:
    """Return a report on a folder, a CSV or .npz file or a `table(...)`, and whether there are no findings."""
    root = Path(given).expanduser()
    if name and name not in KNOWN:
        raise ConfigError(f"dataset {name!r} is not known; {nearest(name, KNOWN)} (fedbeyond data info)")
    if picture is not None:
        ensure_new(picture)
    if is_table(str(given)):
        if name or picture is not None:
            raise ConfigError(f"{given} is a table, for which there is no --as and no picture; leave the options out")
        return check_table(str(given))
    if not root.exists():
        raise DataError(
            f"{given}: no such file or folder; give the folder that holds the dataset, a CSV file or a .npz file"
        )
    if root.is_file() and (name or root.suffix.lower() != ".npz"):
        raise DataError(f"{given}: a file, not a folder; give the folder that holds the dataset, unpacked")
    dataset = _read_as(root, name) if name else _identify(root)
    if dataset.listing is None:
        return _report(root, dataset, [], dataset.problems, None), False
    release = _release(dataset)
    scanned = scan(dataset.listing)
    findings = (*dataset.problems, *inspect(root, dataset.name, dataset.listing, release, scanned))
    if picture is not None:
        few_classes = len(dataset.listing.classes) <= 10
        draw(_sample(dataset.listing, scanned), picture, each=3 if few_classes else 1)
    table = count_table(count_images(dataset.listing), dataset.listing.classes, release and release.counts)
    return _report(root, dataset, table, findings, picture), all(finding.note for finding in findings)


def picture_in_cache(given: str) -> Path:
    """Return a file beside the cache of decoded images for the picture of a folder; an older one is removed."""
    root = Path(given).expanduser().resolve()
    path = home() / PICTURES / f"{printable(root.name)}-{digest(printable(str(root)))[:8]}.png"
    path.unlink(missing_ok=True)
    return path


def _identify(root: Path) -> Recognised:
    """Return the known dataset in a folder, or else a custom folder."""
    incomplete: list[Recognised] = []
    for name, known in KNOWN.items() if root.is_dir() else ():
        try:
            listing = recognise(root, known)
            if listing is None:
                continue
            return Recognised(name, _with_all_classes(root, name, listing))
        except DataError:
            dataset = _read_as(root, name)
            if dataset.listing is None or not set(dataset.listing.domains) >= set(known.domains):
                incomplete.append(dataset)  # it resembles that dataset, but may resemble others too
                continue
            return dataset
    arrays = root.is_file() or any(root.glob("*.npz"))
    try:
        listing = list_arrays(root) if arrays else list_folder(str(root), partial=True)
    except DataError as error:
        return incomplete[0] if incomplete else Recognised("", None, _unreadable_folder(root, str(error)))
    return Recognised("", listing, (*_partial_matches(root), *map(_possible, incomplete)))


def _unreadable_folder(root: Path, reason: str) -> tuple[Finding, ...]:
    """Return why a folder, or a .npz file, is not a dataset: images or tables directly in it, or the error."""
    if root.is_file():
        return (_unreadable(reason),)
    bare, tables = tuple(bare_images(root)), sorted(root.glob("*.csv"))
    if tables and not subfolders(root):
        title, names = "tables: the folder holds CSV files, and no images", [path.name for path in tables]
        return *bare, Finding(title, names, f"check one of them, or all as sites: '{root}/*.csv'")
    problems = bare if bare and not subfolders(root) else (*bare, _unreadable(reason))
    return (*problems, *_partial_matches(root))


def _read_as(root: Path, name: str) -> Recognised:
    """Read a folder as a known dataset; if its reader raises, read the folders that can be read."""
    known = KNOWN[name]
    try:
        return Recognised(name, _with_all_classes(root, name, locate(name, known, str(root))))
    except DataError as error:
        problem = _unreadable(str(error))
    lenient = known._replace(subset=True, any_two=True)
    try:
        listing = folders(root, lenient)
    except DataError:
        listing = None
    other_finding = (
        listing is not None and set(listing.domains) >= set(known.domains) and any(unknown_folders(root, known, None))
    )
    return Recognised(name, listing, () if other_finding else (problem,))


def _with_all_classes(root: Path, name: str, listing: Listing) -> Listing:
    """Return the listing, or for DomainNet the listing of all classes if there are more."""
    full = recognise(root, KNOWN[name]._replace(classes=(), subset=False)) if name == "domainnet" else None
    return full if full and len(full.classes) > len(listing.classes) else listing


def _unreadable(reason: str) -> Finding:
    return Finding("unreadable: training would stop with this error", [reason], "fix it, then check again")


def _possible(dataset: Recognised) -> Finding:
    """Return a note on why a custom folder is not the known dataset that it resembles."""
    reasons = [name for problem in dataset.problems for name in problem.names]
    remedy = f"if it is {dataset.name}, fix that and use --as {dataset.name}"
    return Finding(f"perhaps {dataset.name}", reasons, remedy, note=True)


def _partial_matches(root: Path) -> Iterator[Finding]:
    """Yield a note for each known dataset of which a folder has most domains, but not all."""
    for name, known in KNOWN.items() if root.is_dir() else ():
        try:
            present = match_paths(root, subfolders(root), spellings(known.domains, known.aliases))
        except DataError:
            continue  # two folders of one domain: the reader has reported it
        if len(present) > 1 and len(present) > len(known.domains) / 2:
            remedy = f"if it is {name}, add the missing domains and use --as {name}"
            yield Finding(f"perhaps {name}", [f"has no {known.missing(present)}"], remedy, note=True)


def _release(dataset: Recognised) -> Release | None:
    """Return the release to compare a copy with, or None if the copy is a selection."""
    if not dataset.name or dataset.listing is None:
        return None
    known, release = KNOWN[dataset.name], closest_release(dataset.listing, FACTS[dataset.name].releases)
    if release is None or (dataset.name == "domainnet" and len(dataset.listing.classes) == len(known.classes)):
        return None
    if known.any_two:  # digits are used in many sizes: compare only copies that are nearly complete
        counts = {domain: sum(by_class) for domain, by_class in count_images(dataset.listing).items()}
        if any(abs(count - total(release.counts.get(d, 0))) > count / 20 for d, count in counts.items()):
            return None
    return release


def _report(
    root: Path, dataset: Recognised, table: list[str], findings: tuple[Finding, ...], picture: Path | None
) -> str:
    listing = dataset.listing
    layout = listing.layout if listing else "not recognised"
    lines = [f"{root}: {dataset.name + ', ' if dataset.name else ''}{layout}"]
    if listing:
        numbers = ", no expected numbers to compare with" if "expected" not in table[0] else ""
        domains = f"{len(listing.domains)} domain{'s' * (len(listing.domains) != 1)}"
        classes = f"{len(listing.classes)} class{'es' * (len(listing.classes) != 1)}"
        lines += [f"{domains}, {classes}{numbers}", "", *table]
    lines += [*report_lines(findings), "", *([f"picture: {picture}"] if picture else []), count_findings(findings)]
    return printable("\n".join(lines) + "\n")


def _sample(listing: Listing, scanned: Scan) -> Dataset:
    """Decode a few images of each class that can be opened, without the cache."""
    bad = {image.name for image in (*scanned.missing, *scanned.broken)}
    classes, images = listing.classes[:PICTURE_CLASSES], {}
    for domain, (pixels, labels, *_) in listing.domains.items():
        good = [name not in bad for name in pixels.names] if isinstance(pixels, Files) else True
        rows = np.concatenate([np.flatnonzero((labels == label) & good)[:3] for label in range(len(classes))])
        few = np.array([decoded(pixels, row, PICTURE_SIZE) for row in rows], np.uint8)
        few = few.reshape(-1, 3, PICTURE_SIZE, PICTURE_SIZE)  # also if there are none
        images[domain] = torch.from_numpy(few), torch.from_numpy(labels[rows])
    return Dataset(classes, images)
