"""Model selection: which round's model is best on the source domains' validation samples.

Domains count equally, except small ones: a domain with fewer than MIN_VALIDATION validation samples never counts
alone. Its accuracy is 0 or 1 if it has one sample, and would outvote every other domain. Balanced accuracy is computed
from the samples of a group together, and a domain with one class never counts alone: a model that always predicts
that class would be perfect there.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Line = dict[str, Any]  # a result line: one round of one run
MIN_VALIDATION = 20  # validation samples that a domain needs to count alone
DIGITS = 6  # scores equal in so many digits are ties: accuracies are float32

# selection rules by source validation, and the metric they compare
CRITERIA = {"source-validation": "accuracy", "source-validation-balanced": "balanced_accuracy"}
DEFAULT = "source-validation"


Matrix = Sequence[Sequence[float]]  # confusion: true class x predicted class


class DomainScore(NamedTuple):
    """A metric of one source domain, its loss, and the number of samples."""

    value: float
    loss: float
    samples: int
    confusion: Matrix = ()  # empty if not known


def select_round(lines: Iterable[Line], metric: str = "accuracy") -> Line:
    """Select the round with the best source validation; on ties the lower loss, then the later round.

    A domain not evaluated in a round keeps its last result; otherwise rounds without a hard domain would look best. In
    the rounds before its first result it counts with that result; otherwise a site could choose the round by sending
    its scores late. A round is compared with the best one before it, so a later round never changes an earlier choice.
    Where sites withhold all validation scores, the last evaluated round is selected.
    """
    lines = evaluated(lines)
    if not validated(lines):
        return lines[-1]
    known: dict[str, DomainScore] = {}
    best, known_of_best = lines[0], known
    for line in validated(lines):
        known = known | domain_scores(line, "val", metric)
        earlier = known | known_of_best  # its own results, and the first of domains that were late
        is_better = not known_of_best or _rank(known, line, metric) > _rank(earlier, best, metric)
        best, known_of_best = (line, known) if is_better else (best, earlier)
    return best


def _rank(known: Mapping[str, DomainScore], line: Line, metric: str) -> tuple[float, float, int]:
    value, loss = pooled_mean(known, metric)
    return round(value, DIGITS), -loss, line["round"]


def selection_score(line: Line, metric: str = "accuracy") -> float | None:
    """Compute the source-validation score of one round: the mean over domains, small ones pooled; None without one."""
    return pooled_mean(domain_scores(line, "val", metric), metric)[0] if is_validated(line) else None


def percent(share: float | None, width: int = 0) -> str:
    """Format a share in percent; a dash if there is none."""
    return f"{'-' if share is None else f'{share:.1%}':>{width}}"


def pooled_mean(domains: Mapping[str, DomainScore], metric: str = "accuracy") -> tuple[float, float]:
    """Average metric and loss over groups of domains; groups count equally, domains in a group by their samples."""
    sizes = {name: domain.samples for name, domain in domains.items()}
    one_class = {name for name, domain in domains.items() if len([row for row in domain.confusion if sum(row)]) == 1}
    grouped = groups(sizes, one_class if metric == "balanced_accuracy" else set())
    pooled = [combine([domains[name] for name in names], metric) for names in grouped]
    loss = math.fsum(group.loss for group in pooled) / len(pooled)
    return math.fsum(group.value for group in pooled) / len(pooled), loss if math.isfinite(loss) else math.inf


def groups(samples: Mapping[str, int], dependent: Collection[str] = ()) -> list[list[str]]:
    """Group domains so that each group has MIN_VALIDATION samples, if all domains together have that many.

    Small domains and `dependent` ones, which must not count alone either, form one group. If that group is too small,
    or all its domains are dependent, the smallest other domain joins it.
    """
    order = sorted(samples, key=lambda name: (samples[name], name))
    small = [name for name in order if samples[name] < MIN_VALIDATION or name in dependent]
    large = [name for name in order if name not in small]
    if small and large and (sum(samples[n] for n in small) < MIN_VALIDATION or {*small} <= {*dependent}):
        small.append(large.pop(0))
    return [*([small] if small else []), *([name] for name in large)]


def combine(parts: Sequence[DomainScore], metric: str) -> DomainScore:
    """Combine scores, weighted by samples; balanced accuracy is computed from the sum of the confusion matrices."""
    if len(parts) == 1:
        return parts[0]
    total = sum(part.samples for part in parts)
    value = math.fsum(part.value * part.samples for part in parts) / total
    confusion = add_matrices([part.confusion for part in parts]) if all(part.confusion for part in parts) else ()
    if metric == "balanced_accuracy" and confusion:
        recalls = [row[index] / sum(row) for index, row in enumerate(confusion) if sum(row)]
        value = math.fsum(recalls) / len(recalls)
    return DomainScore(value, math.fsum(part.loss * part.samples for part in parts) / total, total, confusion)


def add_matrices(matrices: Iterable[Matrix]) -> Matrix:
    """Add up confusion matrices."""
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def source_mean(line: Line, part: str, metric: str) -> float:
    """Average a metric over the source domains on a part, `val` or `local_test`; domains count equally."""
    values = [domain.value for domain in domain_scores(line, part, metric).values()]
    return sum(values) / len(values)


def domain_scores(line: Line, part: str, metric: str) -> dict[str, DomainScore]:
    """Collect a metric of each source domain, whose clients count by their samples.

    A client whose samples have one class has no AUC and is left out. Raise KeyError if another client lacks the metric,
    or if no client has it.
    """
    domains: dict[str, list[DomainScore]] = {}
    for name, splits in line["scores"].items():
        if part in splits and not is_undefined(splits[part], metric):
            scores = splits[part]
            if scores.get(metric) is None:
                raise KeyError(metric)
            samples, confusion = samples_of(splits, part), scores.get("confusion", ())
            entry = DomainScore(scores[metric], scores.get("loss", math.inf), samples, confusion)
            domains.setdefault(splits.get("domain", name), []).append(entry)
    if not domains:
        raise KeyError(metric if any(part in splits for splits in line["scores"].values()) else part)
    return {name: combine(clients, metric) for name, clients in domains.items()}


def is_undefined(scores: Mapping[str, Any], metric: str) -> bool:
    """Return whether the metric is an AUC and the samples have only one class."""
    present = [share for share in scores.get("recall", ()) if share is not None]
    is_rounded = "recall" not in scores and "calibration_error" in scores  # a site may withhold recall
    return metric.startswith("auc") and scores.get(metric) is None and (is_rounded or len(present) == 1)


def class_counts(scores: Mapping[str, Any]) -> list[float]:
    """Count the samples of each class from the confusion matrix; return [] if there is none."""
    return [sum(row) for row in scores.get("confusion", ())]


def samples_of(splits: Mapping[str, Any], part: str) -> int:
    """Return the number of samples behind a client's scores; if not known, enough to count alone."""
    samples = splits.get("images" if part == "val" else "local_test_images")
    if samples is None:
        samples = round(sum(class_counts(splits[part])))
    return int(samples) or MIN_VALIDATION


def evaluated(lines: Iterable[Line]) -> list[Line]:
    """Return the rounds whose model was evaluated: every `train.evaluate_every`-th round, and the last."""
    return [line for line in lines if "scores" in line]


def is_validated(line: Line) -> bool:
    """Return whether a round has validation scores; sites may withhold them."""
    return any("val" in splits for splits in line.get("scores", {}).values())


def validated(lines: Iterable[Line]) -> list[Line]:
    """Return the rounds that have validation scores."""
    return [line for line in lines if is_validated(line)]
