"""Model selection: which round's model is best on the source domains' validation samples.

Domains count equally, except small ones: a domain with fewer than MIN_VALIDATION validation samples never counts
alone. Its accuracy is 0 or 1 if it has one sample, and would outvote every other domain. Balanced accuracy is computed
from the samples of a group together, and a domain with one class never counts alone: a model that always answers that
class would be perfect there.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Line = dict[str, Any]  # a result line: one round of one run
MIN_VALIDATION = 20  # validation samples that a domain needs to count as a domain of its own
DIGITS = 6  # scores that agree so far are ties: accuracies are float32

# the rules that select by source validation, by the metric they compare
CRITERIA = {"source-validation": "accuracy", "source-validation-balanced": "balanced_accuracy"}
DEFAULT = "source-validation"


Matrix = Sequence[Sequence[float]]  # confusion: true class x predicted class


class Measured(NamedTuple):
    """A metric of one source domain, its loss, and the samples behind both."""

    value: float
    loss: float
    samples: int
    confusion: Matrix = ()  # empty if it was not kept


def chosen(lines: Iterable[Line], metric: str = "accuracy") -> Line:
    """Select the round with the best source validation; on ties the lower loss, then the later round.

    A domain not evaluated in a round keeps its last result; otherwise rounds without a hard domain would look best.
    """
    known: dict[str, Measured] = {}
    ranked: list[tuple[tuple[int, float, float, int], Line]] = []
    for line in judged(lines):
        known |= measured(line, "val", metric)
        value, loss = pooled_mean(known, metric)
        ranked.append(((len(known), round(value, DIGITS), -loss, line["round"]), line))
    return max(ranked, key=lambda entry: entry[0])[1]


def selection(line: Line, metric: str = "accuracy") -> float:
    """Compute the source-validation score of one round: the mean over domains, small ones pooled."""
    return pooled_mean(measured(line, "val", metric), metric)[0]


def pooled_mean(domains: Mapping[str, Measured], metric: str = "accuracy") -> tuple[float, float]:
    """Average metric and loss over groups of domains; groups count equally, domains in a group by their samples."""
    sizes = {name: domain.samples for name, domain in domains.items()}
    one_class = {name for name, domain in domains.items() if len([row for row in domain.confusion if sum(row)]) == 1}
    found = groups(sizes, one_class if metric == "balanced_accuracy" else set())
    pooled = [together([domains[name] for name in names], metric) for names in found]
    loss = math.fsum(group.loss for group in pooled) / len(pooled)
    return math.fsum(group.value for group in pooled) / len(pooled), loss if math.isfinite(loss) else math.inf


def groups(samples: Mapping[str, int], dependent: Collection[str] = ()) -> list[list[str]]:
    """Group domains so that each group has MIN_VALIDATION samples, if all domains together have that many.

    Small domains, and those that must not count alone for another reason, form one group. If that is too small itself,
    or has none but the latter, the smallest other domain joins it.
    """
    order = sorted(samples, key=lambda name: (samples[name], name))
    small = [name for name in order if samples[name] < MIN_VALIDATION or name in dependent]
    large = [name for name in order if name not in small]
    if small and large and (sum(samples[n] for n in small) < MIN_VALIDATION or {*small} <= {*dependent}):
        small.append(large.pop(0))
    return [*([small] if small else []), *([name] for name in large)]


def together(parts: Sequence[Measured], metric: str) -> Measured:
    """Describe several clients or domains as one: by their samples, balanced accuracy from their added confusion."""
    if len(parts) == 1:
        return parts[0]
    total = sum(part.samples for part in parts)
    value = math.fsum(part.value * part.samples for part in parts) / total
    confusion = added([part.confusion for part in parts]) if all(part.confusion for part in parts) else ()
    if metric == "balanced_accuracy" and confusion:
        recalls = [row[place] / sum(row) for place, row in enumerate(confusion) if sum(row)]
        value = math.fsum(recalls) / len(recalls)
    return Measured(value, math.fsum(part.loss * part.samples for part in parts) / total, total, confusion)


def added(matrices: Iterable[Matrix]) -> Matrix:
    """Add up confusion matrices."""
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def over_sources(line: Line, part: str, metric: str) -> float:
    """Average a metric over the source domains' samples of a part, `val` or `own_test`; domains count equally."""
    values = [domain.value for domain in measured(line, part, metric).values()]
    return sum(values) / len(values)


def measured(line: Line, part: str, metric: str) -> dict[str, Measured]:
    """Collect a metric of each source domain, whose clients count by their samples.

    A client whose samples have one class has no AUC and is left out. KeyError if another lacks the metric, or if
    none has it.
    """
    domains: dict[str, list[Measured]] = {}
    for name, splits in line["scores"].items():
        if part in splits and not undefined(splits[part], metric):
            found = splits[part]
            if found.get(metric) is None:
                raise KeyError(metric)
            samples, confusion = samples_of(splits, part), found.get("confusion", ())
            entry = Measured(found[metric], found.get("loss", math.inf), samples, confusion)
            domains.setdefault(splits.get("domain", name), []).append(entry)
    if not domains:
        raise KeyError(metric if any(part in splits for splits in line["scores"].values()) else part)
    return {name: together(clients, metric) for name, clients in domains.items()}


def undefined(found: Mapping[str, Any], metric: str) -> bool:
    """Whether a metric ranks classes and the samples have only one."""
    present = [share for share in found.get("recall", ()) if share is not None]
    return metric.startswith("auc") and found.get(metric) is None and len(present) == 1


def class_counts(found: Mapping[str, Any]) -> list[float]:
    """Count the samples of each class, from the confusion matrix; empty if that was not kept."""
    return [sum(row) for row in found.get("confusion", ())]


def samples_of(splits: Mapping[str, Any], part: str) -> int:
    """How many samples are behind a client's scores; lines of older versions may not say: then enough to count."""
    held = splits.get("images" if part == "val" else "own_images")
    if held is None:
        held = round(sum(class_counts(splits[part])))
    return int(held) or MIN_VALIDATION


def judged(lines: Iterable[Line]) -> list[Line]:
    """Keep the rounds whose model was evaluated: all, unless train.evaluate_every says otherwise; the last always."""
    return [line for line in lines if "scores" in line]
