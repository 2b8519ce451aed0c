"""`fedbeyond data check`: recognise the dataset in a folder, and report what is wrong and what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ...errors import ConfigError, DataError, nearest
from ...images import Domains
from ..datasets._benchmarks import KNOWN, locate
from ..datasets._folder import list_folder
from ..datasets.facts import FACTS, Release, total
from ..datasets.naming import match_paths, spellings, subfolders
from ..datasets.readers import recognise
from ..datasets.readers.arrays import list_arrays
from ..datasets.readers.folders import folders
from ..storage.decode import decoded
from ..storage.listing import Files, Listing
from .findings import Finding, closest_release, count_images, inspect, unknown_folders
from .info import count_table
from .picture import draw
from .scan import Scan, scan

PICTURE_SIZE, PICTURE_CLASSES = 64, 20  # pixels of an image in the picture; classes that it shows
MAX_NAMED = 5  # names in a finding


class Recognised(NamedTuple):
    """A folder as a dataset: the name of a known dataset or none, its listing if it can be read, and problems."""

    name: str
    listing: Listing | None
    problems: tuple[Finding, ...] = ()


def check(root: Path, name: str = "", picture: Path | None = None) -> tuple[str, bool]:
    """Return a report on a folder, and whether there are no findings."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the folder that holds the dataset")
    if name and name not in KNOWN:
        raise ConfigError(f"dataset {name!r} is not known; {nearest(name, KNOWN)} (fedbeyond data info)")
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


def _identify(root: Path) -> Recognised:
    """Return the known dataset in a folder, or else a custom folder."""
    incomplete = []
    for name, known in KNOWN.items():
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
    try:
        listing = list_arrays(root) if any(root.glob("*.npz")) else list_folder(str(root), partial=True)
    except DataError as error:
        return incomplete[0] if incomplete else Recognised("", None, (_unreadable(str(error)), *_partial_matches(root)))
    if listing.domains:
        return Recognised("", listing, (*_partial_matches(root), *map(_possible, incomplete)))
    if incomplete:
        return incomplete[0]
    reason = f"{root}: it has neither folders nor .npz files; expected domain/class/image or domain.npz"
    return Recognised("", None, (_unreadable(reason),))


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
    for name, known in KNOWN.items():
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
        lines += [f"{domains}, {len(listing.classes)} classes{numbers}", "", *table]
    for finding in sorted(findings, key=lambda finding: finding.note):
        lines += ["", f"{'note: ' if finding.note else ''}{finding.title}"]
        lines += [f"  {name}" for name in finding.names[:MAX_NAMED]]
        lines += [f"  and {len(finding.names) - MAX_NAMED} more"] if len(finding.names) > MAX_NAMED else []
        lines += [f"  to do: {finding.remedy}"]
    lines += ["", *([f"picture: {picture}"] if picture else [])]
    problems = sum(not finding.note for finding in findings)
    lines.append(f"{problems} finding{'s' * (problems != 1)}" if problems else "no findings")
    return "\n".join(lines) + "\n"


def _sample(listing: Listing, scanned: Scan) -> Domains:
    """Decode a few images of each class that can be opened, without the cache."""
    bad = {image.name for image in (*scanned.missing, *scanned.broken)}
    classes, images = listing.classes[:PICTURE_CLASSES], {}
    for domain, (pixels, labels, *_) in listing.domains.items():
        good = [name not in bad for name in pixels.names] if isinstance(pixels, Files) else True
        rows = np.concatenate([np.flatnonzero((labels == label) & good)[:3] for label in range(len(classes))])
        few = np.array([decoded(pixels, row, PICTURE_SIZE) for row in rows], np.uint8)
        few = few.reshape(-1, 3, PICTURE_SIZE, PICTURE_SIZE)  # also if there are none
        images[domain] = torch.from_numpy(few), torch.from_numpy(labels[rows])
    return Domains(classes, images)
