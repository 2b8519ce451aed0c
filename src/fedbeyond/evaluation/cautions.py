"""Warnings about results that mislead: sites with few samples or one class, and models that predict one class.

The same sentences appear in `check`, `run`, `report` and the card of an exported model. Each recommends what to do.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .selection import MIN_VALIDATION, Line, Matrix, add_matrices, class_counts, is_validated

MIN_TRAINING = 20  # a site with fewer training samples is reported
LISTED = 6  # number of names in a warning; the others are counted
WIDTH = 80  # columns of a terminal
Run = tuple[str, str, int]  # method, target, seed


class SiteSamples(NamedTuple):
    """The samples of a site; what is not known is None or empty."""

    domain: str
    training: int | None
    validation: int | None
    by_class: Sequence[float]  # samples of each class


def site_warnings(
    sites: Mapping[str, SiteSamples], classes: Sequence[str] = (), seen: str = "samples"
) -> Iterator[str]:
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
    several = {name: site.by_class for name, site in sites.items() if sum(site.by_class) > 1}
    single = {name: index for name, counts in several.items() if (index := only_nonzero(counts)) >= 0}
    if names := [f"{name} ({class_label(index, classes)})" for name, index in single.items()]:
        yield (
            f"{seen} of one class only: {_listed(names)}. Accuracy there does not show whether the model separates "
            "classes, and AUC is undefined; add samples of the other classes, or merge sites."
        )


def run_warnings(picked: Mapping[Run, Line], classes: Sequence[str] = ()) -> list[str]:
    """Warn about the sites and the selected models of runs, from the selected result line of each."""
    sites: dict[str, SiteSamples] = {}
    for line in picked.values():
        for name, samples in reported_samples(line).items():
            sites[name] = _join(sites[name], samples) if name in sites else samples
    runs = {(method, line["target"], seed): line for (method, _, seed), line in picked.items()}
    return [*site_warnings(sites, classes, "evaluated samples"), *model_warnings(runs, classes)]


def model_warnings(picked: Mapping[Run, Line], classes: Sequence[str] = ()) -> Iterator[str]:
    """Warn about models that predict one class for every sample of a domain, and about rounds that nobody validated."""
    models = []
    for (method, target, seed), line in picked.items():
        if prediction := predicts_one_class(line, classes):
            models.append(f"{method}, {target} unseen, seed {seed} ({prediction})")
    if models:
        yield (
            f"the selected model predicts one class for all samples of a domain: {_listed(models, '; ')}. Accuracy "
            "there is the share of that class; do not use the model there. Train longer, change the learning rate, or "
            "select with train.select = source-validation-balanced."
        )
    unvalidated = [key for key, line in picked.items() if "withheld" in line and not is_validated(line)]
    reasons = sorted({reason for key in unvalidated for reason in picked[key]["withheld"].values()})
    if names := [f"{method}, {target} unseen, seed {seed}" for method, target, seed in unvalidated]:
        yield (
            f"no validation scores: {_listed(names, '; ')}. The sites' policies withhold them, so the last round is "
            f"selected; a better round is not known. Their reasons: {_listed(reasons, '; ')}."
        )


def predicts_one_class(line: Line, classes: Sequence[str] = ()) -> str:
    """Describe which class a model predicts for all samples, and on which domains; empty if it predicts several."""
    matrices: dict[str, Matrix] = {}
    for name, splits in line.get("scores", {}).items():
        for part in ("val", "test"):
            if "confusion" in splits.get(part, {}):
                domain = splits.get("domain", name)
                matrix = splits[part]["confusion"]
                matrices[domain] = add_matrices([matrices[domain], matrix]) if domain in matrices else matrix
    if matrices and (index := constant_class(add_matrices(matrices.values()))) >= 0:
        return f"{class_label(index, classes)} on every domain"
    large = {name: matrix for name, matrix in matrices.items() if sum(map(sum, matrix)) >= MIN_VALIDATION}
    constant = {name: index for name, matrix in large.items() if (index := constant_class(matrix)) >= 0}
    return ", ".join(f"{class_label(index, classes)} on {name}" for name, index in constant.items())


def constant_class(confusion: Matrix) -> int:
    """Return the class that is predicted for all samples although they have several classes; -1 if there is none."""
    present = sum(1 for row in confusion if sum(row))
    return only_nonzero([sum(column) for column in zip(*confusion, strict=True)]) if present > 1 else -1


def only_nonzero(counts: Sequence[float]) -> int:
    """Return the index of the only count that is not zero; -1 if there are none or several."""
    indices = [index for index, count in enumerate(counts) if count]
    return indices[0] if len(indices) == 1 else -1


def majority_rate(counts: Sequence[float]) -> float | None:
    """Compute the accuracy of always predicting the most frequent class; None without samples."""
    return max(counts) / sum(counts) if sum(counts) else None


def reported_samples(line: Line) -> dict[str, SiteSamples]:
    """Read from a result line the validation samples of each source site and the test samples of unseen domains."""
    sites = {}
    for name, splits in line.get("scores", {}).items():
        counts = class_counts(splits.get("val") or splits.get("test", {}))
        samples = splits.get("images", round(sum(counts)) or None) if "val" in splits else None
        sites[name] = SiteSamples(splits.get("domain", name), None, samples, counts)
    return sites


def class_label(index: int, classes: Sequence[str]) -> str:
    """Return the name of a class, or its number if names are not known."""
    return f"{classes[index]!r}" if index < len(classes) else f"class {index}"


def wrap_warnings(warnings: Iterable[str]) -> list[str]:
    """Break warnings into lines for a terminal."""
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line for warning in warnings for line in wrapper.wrap(f"warning: {warning}")]


def _join(a: SiteSamples, b: SiteSamples) -> SiteSamples:
    """Join what two runs report of a site: the fewest validation samples, and the sum of the samples of each class."""
    known = [samples.validation for samples in (a, b) if samples.validation is not None]
    by_class = [sum(counts) for counts in zip(a.by_class, b.by_class, strict=False)]
    return SiteSamples(a.domain, None, min(known, default=None), by_class)


def _listed(names: Sequence[str], mark: str = ", ") -> str:
    """Join the first names, and count the others."""
    more = f"{mark}and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return mark.join(names[:LISTED]) + more
