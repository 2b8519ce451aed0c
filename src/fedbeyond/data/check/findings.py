"""What can be wrong with data on disk, and what to do about it: one function a kind."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import DataError
from ..datasets.facts import Release, total
from ..datasets.naming import Known, subfolders
from ..datasets.readers.folders import class_folders, domain_folders
from ..datasets.readers.lists import LEFT_OUT, survey
from ..storage.listing import Listing
from .scan import Place, Scan

HANDFUL = 5


class Finding(NamedTuple):
    """Something that was found: what, a few names, what to do; a note if it is as it should be."""

    title: str
    names: tuple[str, ...]
    remedy: str
    note: bool = False


def finding(title: str, names: Iterable[str], remedy: str, note: bool = False) -> Finding:
    """A finding with a handful of its names, the rest counted."""
    names = list(names)
    more = [f"and {len(names) - HANDFUL} more"] if len(names) > HANDFUL else []
    return Finding(title, (*names[:HANDFUL], *more), remedy, note)


def counted(listing: Listing) -> dict[str, tuple[int, ...]]:
    """The images of each class in each domain."""
    bins = len(listing.classes)
    return {name: tuple(np.bincount(r.labels, minlength=bins).tolist()) for name, r in listing.domains.items()}


def expected(listing: Listing, releases: Sequence[Release]) -> Release | None:
    """The release that a listing is most like, with what the layout leaves out taken from it."""
    found = {domain: sum(each) for domain, each in counted(listing).items()}

    def apart(release: Release) -> int:
        return sum(abs(many - total(release.counts.get(domain, 0))) for domain, many in found.items())

    if not releases:
        return None
    best = min(releases, key=apart)
    if LEFT_OUT not in listing.layout:
        return best
    sketch = best.counts["sketch"]
    fewer = sketch - 1 if isinstance(sketch, int) else (sketch[0] - 1, *sketch[1:])
    return best._replace(counts={**best.counts, "sketch": fewer})


def wrong_counts(listing: Listing, release: Release) -> Iterable[Finding]:
    """Domains or classes that have fewer or more images than is known."""
    fewer, more = [], []
    for domain, found in counted(listing).items():
        known = release.counts.get(domain)
        if known is None:
            continue
        pairs = [(domain, sum(found), known)] if isinstance(known, int) else [
            (f"{domain}/{name}", many, right)
            for name, many, right in zip(listing.classes, found, known, strict=True)
        ]  # fmt: skip
        fewer += [(f"{where}: {many}, known are {right}", right - many) for where, many, right in pairs if many < right]
        more += [(f"{where}: {many}, known are {right}", many - right) for where, many, right in pairs if many > right]
    unsure = "" if release.checked else " (the known numbers are unchecked)"
    if fewer:
        lost = sum(count for _, count in fewer)
        remedy = f"unpack the dataset again, or copy what is missing from another copy{unsure}"
        yield finding(f"missing: {_many(lost)} fewer than known", (text for text, _ in fewer), remedy)
    if more:
        extra = sum(count for _, count in more)
        remedy = f"look for copies and for images put there by hand, and take them out{unsure}"
        yield finding(f"too many: {_many(extra)} more than known", (text for text, _ in more), remedy)


def broken(seen: Scan) -> Iterable[Finding]:
    """Images that are listed and not there, or that cannot be decoded."""
    if seen.missing:
        remedy = "copy them from another copy of the dataset, or take their lines out of the lists"
        names = (place.name for place in seen.missing)
        yield finding(f"missing: {_many(len(seen.missing))} listed and not there", names, remedy)
    if seen.broken:
        remedy = "replace each by a whole copy, or take it out: training stops at the first"
        names = (f"{place.name}: {why}" for place, why in seen.broken.items())
        yield finding(f"corrupt: {_many(len(seen.broken))} cannot be decoded", names, remedy)


def duplicates(seen: Scan, listing: Listing, release: Release | None) -> Iterable[Finding]:
    """Images with the same bytes: in one class, in several domains, in several classes."""
    kinds: dict[str, list[list[Place]]] = {"classes": [], "domains": [], "": []}
    for same in seen.same:
        labels, domains = {place.label for place in same}, {place.domain for place in same}
        kinds["classes" if len(labels) > 1 else "domains" if len(domains) > 1 else ""].append(same)
    if kinds["classes"]:
        title = f"mislabelled: {_many(len(kinds['classes']))} in more than one class"
        yield finding(title, map(_joined, kinds["classes"]), "keep each in the class it shows, take the others out")
    for kind, where in {"domains": "in more than one domain", "": "more than once in one class of a domain"}.items():
        own = [same for same in kinds[kind] if _as_known(same, listing, release)]
        rest = [same for same in kinds[kind] if same not in own]
        leak = "; an unseen domain is not unseen if others hold its images" if kind else ""
        if rest:
            title = f"duplicates: {_many(len(rest))} {where}"
            yield finding(title, map(_joined, rest), f"keep one of each and take the others out{leak}")
        if own:
            title = f"duplicates: {_many(len(own))} {where}, in classes that have their known numbers"
            yield finding(title, map(_joined, own), "leave them: many datasets are given out with some", note=True)


def _as_known(same: list[Place], listing: Listing, release: Release | None) -> bool:
    """Whether duplicates may be the dataset's own: their classes have as many images as they are known to have."""
    if release is None or release.distinct:
        return False
    found = counted(listing)
    for place in same:
        known = release.counts.get(place.domain, 0)
        column = listing.classes.index(place.label) if place.label else 0
        right = (
            known == sum(found[place.domain])
            if isinstance(known, int)
            else known[column] == found[place.domain][column]
        )
        if not right:
            return False
    return True


def unknown_folders(root: Path, known: Known, release: Release | None) -> Iterable[Finding]:
    """Class folders of a name that no class has, and the class that each is probably of."""
    names = []
    for domain, place in (domain_folders(root, known) or {}).items():
        inner = {path.name: path for path in subfolders(place)}
        if not inner or set(map(str.lower, inner)) <= {"train", "val", "crossval", "test", "full"} or not known.classes:
            continue
        meant = class_folders(place, inner, known)
        lacking = [name for name in known.classes if name not in meant.values()]
        for folder in inner.keys() - meant.keys() if not known.part else ():
            held = sum(1 for path in inner[folder].iterdir() if path.is_file())
            likely = _likely(lacking, held, domain, known, release)
            names.append(f"{place.relative_to(root).as_posix()}/{folder}, {_many(held)}{likely}")
    if names:
        remedy = (
            f"give each the name of its class: {', '.join(known.classes[:12])}{', ...' * (len(known.classes) > 12)}"
        )
        yield finding(f"unknown class: {_many(len(names), 'folder')} of no known name", sorted(names), remedy)


def _likely(lacking: Sequence[str], held: int, domain: str, known: Known, release: Release | None) -> str:
    counts = release.counts.get(domain, 0) if release else 0
    fitting = [n for n in lacking if not isinstance(counts, int) and counts[known.classes.index(n)] == held]
    if len(fitting) == 1:
        return f": as many as {fitting[0]} should have"
    return f": perhaps {lacking[0]}, which is not there" if len(lacking) == 1 else ""


def first_labels(root: Path, known: Known, name: str) -> Iterable[Finding]:
    """Lists whose labels begin with 1: a finding, but for the lists that PACS itself comes with."""
    try:
        found = survey(root, known)
    except DataError:
        return  # told already
    ones = [each for each in found if each.base == 1]
    if not ones:
        return
    names = (each.path.relative_to(root).as_posix() for each in ones)
    whole = {each.domain for each in ones} == set(known.domains) and len(ones) == len(found)
    official = name == "pacs" and whole and all(each.path.stem.endswith("_kfold") for each in ones)
    title = f"labels from 1: {len(ones)} of {len(found)} lists begin with 1, read as 0 to {len(known.classes) - 1}"
    remedy = "nothing: PACS is given out so; other programs must take 1 off" if official else (
        "here they are read rightly; take 1 off each label before another program reads them as labels from 0"
    )  # fmt: skip
    yield finding(title, names, remedy, note=official)


def beside(root: Path, strangers: Sequence[Path], unlisted: Sequence[Path]) -> Iterable[Finding]:
    """Files that are no images among images, and images that are in no class folder or in no list."""
    if strangers:
        names = (path.relative_to(root).as_posix() for path in strangers)
        yield finding(
            f"no images: {_many(len(strangers), 'other file')} among the images", names, "move them elsewhere"
        )
    if unlisted:
        names = (path.relative_to(root).as_posix() for path in unlisted)
        remedy = "nothing if they are meant to be left out; else move or list them"
        yield finding(f"not read: {_many(len(unlisted))} in no class folder or no list", names, remedy, note=True)


def single(listing: Listing) -> Iterable[Finding]:
    """A folder of one's own with one domain, which are often the domains in one folder more."""
    if len(listing.domains) == 1:
        (domain,) = listing.domains
        remedy = f"if the folders in {domain} are domains and no classes, give {domain} itself; else add a domain"
        yield finding("one domain: training needs two, one of them unseen", [domain], remedy)


def uneven(listing: Listing) -> Iterable[Finding]:
    """Classes of one's own folder that some domains lack."""
    names = [
        f"{domain} has no {name}"
        for domain, found in counted(listing).items()
        for name, many in zip(listing.classes, found, strict=True)
        if not many
    ]
    if names:
        remedy = "mend the folder's name if it is spelled otherwise, add images, or read it with folder(partial=true)"
        yield finding("uneven classes: some domains lack some", names, remedy)


def _joined(same: list[Place]) -> str:
    return " = ".join(place.name for place in same[:3]) + (f" = {len(same) - 3} more" if len(same) > 3 else "")


def _many(count: int, what: str = "image") -> str:
    return f"{count} {what}{'s' * (count != 1)}"
