"""Warnings about results that mislead: sites with few samples or one class, and models that predict one class.

The same sentences appear in `check`, `run`, `report` and the card of an exported model. Each says what to do.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .selection import MIN_VALIDATION, Line, Matrix, added, class_counts

MIN_TRAINING = 20  # training samples below which a site is named
LISTED = 6  # names in a warning; of more, how many more
WIDTH = 80  # columns of a terminal
Run = tuple[str, str, int]  # method, target, seed


class Held(NamedTuple):
    """What a site holds; what is not known is None, or empty."""

    domain: str
    training: int | None
    validation: int | None
    by_class: Sequence[float]  # samples of each class


def of_sites(sites: Mapping[str, Held], classes: Sequence[str] = (), seen: str = "samples") -> Iterator[str]:
    """Warn about sites with few samples, and about sites whose samples all have one class."""
    training = {name: site.training for name, site in sites.items() if site.training is not None}
    validation: dict[str, int] = {}
    for site in sites.values():
        if site.validation is not None:  # selection compares domains, not the clients that share one
            validation[site.domain] = validation.get(site.domain, 0) + site.validation
    if few := [f"{name} {count}" for name, count in training.items() if count < MIN_TRAINING]:
        yield (
            f"fewer than {MIN_TRAINING} training samples: {_listed(few)}. Little can be learnt there; add samples, or "
            "merge sites."
        )
    if few := [f"{name} {count}" for name, count in validation.items() if count < MIN_VALIDATION]:
        yield (
            f"fewer than {MIN_VALIDATION} validation samples: {_listed(few)}. Such domains are pooled when a round is "
            "selected, and their own scores are mostly chance; add samples, or raise train.validation."
        )
    alone = {name: (place, sum(site.by_class)) for name, site in sites.items() if (place := only(site.by_class)) >= 0}
    if one := [f"{name} ({named(place, classes)})" for name, (place, count) in alone.items() if count > 1]:
        yield (
            f"{seen} of one class only: {_listed(one)}. Accuracy there does not show whether classes are told apart, "
            "and AUC is undefined; add samples of the other classes, or merge sites."
        )


def of_runs(picked: Mapping[Run, Line], classes: Sequence[str] = ()) -> list[str]:
    """Warn about the sites and the selected models of runs, from the selected result line of each."""
    sites: dict[str, Held] = {}
    for line in picked.values():
        for name, held in reported(line).items():
            sites[name] = _joined(sites[name], held) if name in sites else held
    whole = {(method, line["target"], seed): line for (method, _, seed), line in picked.items()}
    return [*of_sites(sites, classes, "evaluated samples"), *of_models(whole, classes)]


def of_models(picked: Mapping[Run, Line], classes: Sequence[str] = ()) -> Iterator[str]:
    """Warn about models that predict one class for every sample of a domain that has several."""
    found = []
    for (method, target, seed), line in picked.items():
        if constant := predicts_one_class(line, classes):
            found.append(f"{method}, {target} unseen, seed {seed} ({constant})")
    if found:
        yield (
            f"the selected model predicts one class for all samples of a domain: {_listed(found, '; ')}. Accuracy "
            "there is the share of that class; do not use the model there. Train longer, change the learning rate, or "
            "select with train.select = source-validation-balanced."
        )


def predicts_one_class(line: Line, classes: Sequence[str] = ()) -> str:
    """Say which class a model predicts for all samples, and where; empty if it tells classes apart."""
    matrices: dict[str, Matrix] = {}
    for name, splits in line.get("scores", {}).items():
        for part in ("val", "test"):
            if "confusion" in splits.get(part, {}):
                domain = splits.get("domain", name)
                matrix = splits[part]["confusion"]
                matrices[domain] = added([matrices[domain], matrix]) if domain in matrices else matrix
    if matrices and (place := constant(added(matrices.values()))) >= 0:
        return f"{named(place, classes)} on every domain"
    large = {name: matrix for name, matrix in matrices.items() if sum(map(sum, matrix)) >= MIN_VALIDATION}
    found = {name: place for name, matrix in large.items() if (place := constant(matrix)) >= 0}
    return ", ".join(f"{named(place, classes)} on {name}" for name, place in found.items())


def constant(confusion: Matrix) -> int:
    """Return the class that is predicted for all samples although they have several classes; -1 if there is none."""
    present = sum(1 for row in confusion if sum(row))
    return only([sum(column) for column in zip(*confusion, strict=True)]) if present > 1 else -1


def only(counts: Sequence[float]) -> int:
    """Return the place of the one count that is not zero; -1 if there are none or several."""
    places = [place for place, count in enumerate(counts) if count]
    return places[0] if len(places) == 1 else -1


def majority_rate(counts: Sequence[float]) -> float | None:
    """Compute the accuracy of always predicting the most frequent class; None without samples."""
    return max(counts) / sum(counts) if sum(counts) else None


def reported(line: Line) -> dict[str, Held]:
    """Read from a result line what is known of each source site's validation samples, and of unseen domains."""
    sites: dict[str, Held] = {}
    for name, splits in line.get("scores", {}).items():
        counts = class_counts(splits.get("val") or splits.get("test", {}))
        samples = splits.get("images", round(sum(counts)) or None) if "val" in splits else None
        sites[name] = Held(splits.get("domain", name), None, samples, counts)
    return sites


def named(place: int, classes: Sequence[str]) -> str:
    """Name a class, or number it if names are not known."""
    return f"{classes[place]!r}" if place < len(classes) else f"class {place}"


def wrapped(warnings: Iterable[str], width: int = WIDTH) -> list[str]:
    """Break warnings into lines for a terminal."""
    return [
        line
        for warning in warnings
        for line in textwrap.wrap(
            f"warning: {warning}", width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    ]


def _joined(one: Held, other: Held) -> Held:
    """Describe a site by several runs: the fewest validation samples, and the samples of each class in all of them."""
    known = [held.validation for held in (one, other) if held.validation is not None]
    by_class = [sum(counts) for counts in zip(one.by_class, other.by_class, strict=False)]
    return Held(one.domain, None, min(known, default=None), by_class)


def _listed(names: Sequence[str], mark: str = ", ") -> str:
    more = f"{mark}and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return mark.join(names[:LISTED]) + more
