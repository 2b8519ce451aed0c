"""Findings about data on disk, each with what to do about it: one function for each kind."""

from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..datasets._benchmarks import KNOWN
from ..datasets._folder import is_image
from ..datasets.facts import Release, total
from ..datasets.naming import Known, subfolders
from ..datasets.readers.folders import PARTS, class_folders, domain_folders
from ..datasets.readers.lists import LEFT_OUT, find_lists
from ..finding import Finding, printable
from ..storage.listing import Files, Listing
from .scan import ImageRef, Scan, unread_files


def inspect(root: Path, name: str, listing: Listing, release: Release | None, scan: Scan) -> Iterable[Finding]:
    """Yield all findings about a known dataset, or about a custom folder if the name is empty."""
    if name:
        yield from unknown_folders(root, KNOWN[name], release)
        yield from one_based_lists(root, KNOWN[name], name)
    else:
        if root.is_dir():
            yield from single_domain(listing)
        yield from missing_classes(listing)
    if release:
        yield from wrong_counts(listing, release)
    else:
        yield from few_images(listing)
    yield from undecodable_names(listing)
    yield from unreadable_images(scan)
    yield from duplicates(scan, listing, release)
    if root.is_dir():
        yield from stray_files(*unread_files(root, listing))
        listed = {name for records in listing.domains.values() for name in _names(records.pixels)}
        yield from (finding._replace(note=True) for finding in bare_images(root, listed))


def count_images(listing: Listing) -> dict[str, tuple[int, ...]]:
    """Count the images of each class in each domain."""
    bins = len(listing.classes)
    return {name: tuple(np.bincount(r.labels, minlength=bins).tolist()) for name, r in listing.domains.items()}


def closest_release(listing: Listing, releases: Sequence[Release]) -> Release | None:
    """Return the release with the most similar counts, without the image that Dassl's layout leaves out."""
    counts = {domain: sum(by_class) for domain, by_class in count_images(listing).items()}

    def distance(release: Release) -> int:
        return sum(abs(count - total(release.counts.get(domain, 0))) for domain, count in counts.items())

    if not releases:
        return None
    closest = min(releases, key=distance)
    if LEFT_OUT not in listing.layout:
        return closest
    sketch = closest.counts["sketch"]
    fewer = sketch - 1 if isinstance(sketch, int) else (sketch[0] - 1, *sketch[1:])
    return closest._replace(counts={**closest.counts, "sketch": fewer})


def wrong_counts(listing: Listing, release: Release) -> Iterable[Finding]:
    """Find domains or classes that have fewer or more images than the release."""
    pairs: list[tuple[str, int, int]] = []
    for domain, counts in count_images(listing).items():
        expected = release.counts.get(domain)
        if isinstance(expected, int):
            pairs.append((domain, sum(counts), expected))
        elif expected is not None:
            pairs += zip((f"{domain}/{name}" for name in listing.classes), counts, expected, strict=True)
    fewer: dict[str, int] = {}
    more: dict[str, int] = {}
    for where, count, wanted in pairs:
        if count != wanted:
            (fewer if count < wanted else more)[f"{where}: {count}, expected {wanted}"] = abs(count - wanted)
    unsure = "" if release.checked else " (the expected numbers are unchecked)"
    if fewer:
        remedy = f"unpack the dataset again, or copy the missing images from another copy{unsure}"
        yield Finding(f"missing: {_plural(sum(fewer.values()))} fewer than expected", list(fewer), remedy)
    if more:
        remedy = f"look for duplicates and for images that were added by hand, and remove them{unsure}"
        yield Finding(f"too many: {_plural(sum(more.values()))} more than expected", list(more), remedy)


def unreadable_images(scan: Scan) -> Iterable[Finding]:
    """Find images that are listed and do not exist, and images that cannot be decoded."""
    if scan.missing:
        remedy = "copy them from another copy of the dataset, or remove their lines from the lists"
        names = [image.name for image in scan.missing]
        yield Finding(f"missing: {_plural(len(scan.missing))} listed, but not on disk", names, remedy)
    if scan.broken:
        remedy = "replace each by an intact copy, or remove it: training stops at the first one"
        names = [f"{image.name}: {reason}" for image, reason in scan.broken.items()]
        yield Finding(f"corrupt: {_plural(len(scan.broken))} cannot be decoded", names, remedy)


def duplicates(scan: Scan, listing: Listing, release: Release | None) -> Iterable[Finding]:
    """Find images with the same bytes: in one class, in several domains, in several classes."""
    kinds: dict[str, list[list[ImageRef]]] = {"classes": [], "domains": [], "": []}
    for same in scan.same:
        labels, domains = {image.label for image in same}, {image.domain for image in same}
        kinds["classes" if len(labels) > 1 else "domains" if len(domains) > 1 else ""].append(same)
    if kinds["classes"]:
        title = f"mislabelled: {_plural(len(kinds['classes']))} in more than one class"
        remedy = "keep each in its true class and remove the other copies"
        yield Finding(title, [*map(_equation, kinds["classes"])], remedy)
    for kind, where in {"domains": "in more than one domain", "": "more than once in one class of a domain"}.items():
        released = [same for same in kinds[kind] if _in_release(same, listing, release)]
        added = [same for same in kinds[kind] if same not in released]
        leak = "; an unseen domain is not unseen if other domains have its images" if kind else ""
        if added:
            title = f"duplicates: {_plural(len(added))} {where}"
            yield Finding(title, [*map(_equation, added)], f"keep one of each and remove the others{leak}")
        if released:
            title = f"duplicates: {_plural(len(released))} {where}, in classes with the expected number of images"
            remedy = "leave them: many datasets are released with some"
            yield Finding(title, [*map(_equation, released)], remedy, note=True)


def _in_release(same: list[ImageRef], listing: Listing, release: Release | None) -> bool:
    """Return whether duplicates may be part of the release: their classes have the expected number of images."""
    if release is None or release.distinct:
        return False
    counts = count_images(listing)

    def as_expected(image: ImageRef) -> bool:
        expected, present = release.counts.get(image.domain, 0), counts[image.domain]
        column = listing.classes.index(image.label) if image.label else 0
        return sum(present) == expected if isinstance(expected, int) else present[column] == expected[column]

    return all(map(as_expected, same))


def unknown_folders(root: Path, known: Known, release: Release | None) -> Iterable[Finding]:
    """Find class folders with an unknown name, and the class that each probably is."""
    names = []
    for domain, top in (domain_folders(root, known) or {}).items():
        inner = {path.name: path for path in subfolders(top)}
        if not inner or set(map(str.lower, inner)) <= PARTS.keys():
            continue
        class_of = class_folders(top, inner, known)
        missing = [name for name in known.classes if name not in class_of.values()]
        for folder in inner.keys() - class_of.keys() if not known.subset else ():
            count = sum(1 for path in inner[folder].iterdir() if path.is_file())
            likely = _likely_class(missing, count, domain, known, release)
            names.append(f"{top.relative_to(root).as_posix()}/{folder}, {_plural(count)}{likely}")
    if names:
        remedy = f"rename each to its class: {', '.join(known.classes[:12])}{', ...' * (len(known.classes) > 12)}"
        yield Finding(f"unknown class: {_plural(len(names), 'folder')} with unknown names", sorted(names), remedy)


def _likely_class(missing: Sequence[str], count: int, domain: str, known: Known, release: Release | None) -> str:
    counts = release.counts.get(domain, 0) if release else 0
    equal = [n for n in missing if not isinstance(counts, int) and counts[known.classes.index(n)] == count]
    if len(equal) == 1:
        return f": the number expected of {equal[0]}"
    return f": perhaps {missing[0]}, which is missing" if len(missing) == 1 else ""


def one_based_lists(root: Path, known: Known, name: str) -> Iterable[Finding]:
    """Find lists whose labels begin with 1; for the official lists of PACS this is a note."""
    try:
        lists = find_lists(root, known)
    except DataError:
        return  # reported already
    one_based = [each for each in lists if each.base == 1]
    if not one_based:
        return
    names = [each.path.relative_to(root).as_posix() for each in one_based]
    complete = {each.domain for each in one_based} == set(known.domains) and len(one_based) == len(lists)
    official = name == "pacs" and complete and all(each.path.stem.endswith("_kfold") for each in one_based)
    title = f"labels from 1: {len(one_based)} of {len(lists)} lists begin with 1, read as 0 to {len(known.classes) - 1}"
    remedy = "nothing: PACS is released so; other programs must subtract 1" if official else (
        "fedbeyond reads them correctly; subtract 1 before another program reads them as labels from 0"
    )  # fmt: skip
    yield Finding(title, names, remedy, note=official)


def stray_files(other_files: Sequence[str], unlisted: Sequence[str]) -> Iterable[Finding]:
    """Find other files among the images, and images that are in no class folder or in no list."""
    if other_files:
        title = f"not images: {_plural(len(other_files), 'other file')} among the images"
        yield Finding(title, other_files, "move them out of the dataset")
    if unlisted:
        title = f"not read: {_plural(len(unlisted))} in no class folder or no list"
        remedy = "nothing if they should not be read; otherwise move them into a class folder, or list them"
        yield Finding(title, unlisted, remedy, note=True)


def single_domain(listing: Listing) -> Iterable[Finding]:
    """Find a custom folder with one domain; often its domains are one level further down."""
    if len(listing.domains) == 1:
        (domain,) = listing.domains
        remedy = f"if the folders in {domain} are domains and not classes, check {domain} itself; else add a domain"
        yield Finding("one domain: training needs two, one of them unseen", [domain], remedy)


def missing_classes(listing: Listing) -> Iterable[Finding]:
    """Find classes of a custom folder that no domain has images of, and those that some domains do not have."""
    counts = count_images(listing)
    empty = [name for label, name in enumerate(listing.classes) if not any(each[label] for each in counts.values())]
    if empty:
        remedy = "add images, remove the empty folders, or name the classes to read with classes=[...]"
        yield Finding(f"empty classes: no domain has images of {_plural(len(empty), 'class')}", empty, remedy)
    names = [
        f"{domain} has no {name}"
        for domain, by_class in counts.items()
        for name, count in zip(listing.classes, by_class, strict=True)
        if not count and name not in empty
    ]
    if names:
        remedy = "rename the folder if it is spelled differently, add images, or use folder(partial=true)"
        yield Finding("uneven classes: some domains lack some classes", names, remedy)


def few_images(listing: Listing) -> Iterable[Finding]:
    """Find data with one class, and classes with one image in a domain."""
    counts = count_images(listing)
    present = [name for label, name in enumerate(listing.classes) if any(each[label] for each in counts.values())]
    if len(present) == 1:
        remedy = "add images of another class; if the folders are laid out otherwise, make them domain/class/image"
        yield Finding("one class: training needs two or more", present, remedy)
    single = [
        f"{domain} has one {name}"
        for domain, by_class in counts.items()
        for name, count in zip(listing.classes, by_class, strict=True)
        if count == 1
    ]
    if single:
        remedy = "add images, or leave the class out with classes=[...]: one image cannot train and validate"
        yield Finding(f"one image: {len(single)} times a domain has a single image of a class", single, remedy)


def undecodable_names(listing: Listing) -> Iterable[Finding]:
    """Find names of files and folders that are not UTF-8: they cannot be written into results."""
    names = [name for records in listing.domains.values() for name in _names(records.pixels)]
    odd = [printable(name) for name in names if printable(name) != name]
    if odd:
        remedy = "rename the files or folders, for example with convmv: training stops at such names"
        yield Finding(f"not UTF-8: {_plural(len(odd))} with a name in another encoding", odd, remedy)


def bare_images(root: Path, listed: Container[str] = ()) -> Iterable[Finding]:
    """Find images directly in the top folder, which belong to no domain and no class."""
    bare = sorted(path.name for path in root.iterdir() if is_image(path.name) and path.name not in listed)
    if bare:
        title = f"bare images: {_plural(len(bare))} directly in {root}, in no folder of a domain and a class"
        yield Finding(title, bare, f"move them into folders domain/class/image, as in hospital_a/healthy/{bare[0]}")


def _names(pixels: Files | np.ndarray) -> Sequence[str]:
    return pixels.names if isinstance(pixels, Files) else ()


def _equation(same: list[ImageRef]) -> str:
    return " = ".join(image.name for image in same[:3]) + (f" = {len(same) - 3} more" if len(same) > 3 else "")


def _plural(count: int, what: str = "image") -> str:
    ending = "es" if what.endswith("s") else "s"
    return f"{count} {what}{ending * (count != 1)}"
