"""Model selection: which round's model is best on the source domains' validation samples.

Domains count equally, except small ones: a domain with fewer than MIN_VALIDATION validation samples never counts
alone. Its accuracy is 0 or 1 if it has one sample, and would outvote every other domain.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .results import Line, judged

MIN_VALIDATION = 20  # validation samples that a domain needs to count as a domain of its own
DIGITS = 6  # scores that agree so far are ties: accuracies are float32

# the rules that select by source validation, by the metric they compare
CRITERIA = {"source-validation": "accuracy", "source-validation-balanced": "balanced_accuracy"}
DEFAULT = "source-validation"


class Measured(NamedTuple):
    """A metric of one source domain, its loss, and the number of samples behind both."""

    value: float
    loss: float
    samples: int


def chosen(lines: Iterable[Line], metric: str = "accuracy", scores: str = "scores") -> Line:
    """Select the round with the best source validation; on ties the lower loss, then the later round.

    A domain not evaluated in a round keeps its last result; otherwise rounds without a hard domain would look best.
    """
    known: dict[str, Measured] = {}
    ranked: list[tuple[tuple[int, float, float, int], Line]] = []
    for line in judged(lines, scores):
        known |= measured(line, "val", metric, scores)
        value, loss = pooled_mean(known)
        ranked.append(((len(known), round(value, DIGITS), -loss, line["round"]), line))
    return max(ranked, key=lambda entry: entry[0])[1]


def selection(line: Line, metric: str = "accuracy", scores: str = "scores") -> float:
    """Compute the source-validation score of one round: the mean over domains, small ones pooled."""
    return pooled_mean(measured(line, "val", metric, scores))[0]


def pooled_mean(domains: Mapping[str, Measured]) -> tuple[float, float]:
    """Average metric and loss over groups of domains; groups count equally, domains in a group by their samples."""
    values, losses = [], []
    for names in groups({name: domain.samples for name, domain in domains.items()}):
        group = [domains[name] for name in names]
        total = sum(domain.samples for domain in group)
        values.append(math.fsum(domain.value * domain.samples for domain in group) / total)
        losses.append(math.fsum(domain.loss * domain.samples for domain in group) / total)
    loss = math.fsum(losses) / len(losses)
    return math.fsum(values) / len(values), loss if math.isfinite(loss) else math.inf


def groups(samples: Mapping[str, int]) -> list[list[str]]:
    """Group domains so that each group has MIN_VALIDATION samples, if all domains together have that many.

    Small domains form one group. If that is too small itself, the smallest other domain joins it.
    """
    order = sorted(samples, key=lambda name: (samples[name], name))
    small = [name for name in order if samples[name] < MIN_VALIDATION]
    large = [name for name in order if samples[name] >= MIN_VALIDATION]
    if small and large and sum(samples[name] for name in small) < MIN_VALIDATION:
        small.append(large.pop(0))
    return [*([small] if small else []), *([name] for name in large)]


def over_sources(line: Line, part: str, metric: str, scores: str = "scores") -> float:
    """Average a metric over the source domains' samples of a part, `val` or `own_test`; domains count equally."""
    values = [domain.value for domain in measured(line, part, metric, scores).values()]
    return sum(values) / len(values)


def measured(line: Line, part: str, metric: str, scores: str = "scores") -> dict[str, Measured]:
    """Collect a metric of each source domain, whose clients count by their samples.

    A client whose samples have one class has no AUC and is left out. KeyError if another lacks the metric, or if
    none has it.
    """
    domains: dict[str, list[Measured]] = {}
    for name, splits in line[scores].items():
        if part in splits and not undefined(splits[part], metric):
            found = splits[part]
            if found.get(metric) is None:
                raise KeyError(metric)
            entry = Measured(found[metric], found.get("loss", math.inf), samples_of(splits, part))
            domains.setdefault(splits.get("domain", name), []).append(entry)
    if not domains:
        raise KeyError(metric if any(part in splits for splits in line[scores].values()) else part)
    return {name: _together(clients) for name, clients in domains.items()}


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


def _together(clients: list[Measured]) -> Measured:
    if len(clients) == 1:
        return clients[0]
    total = sum(client.samples for client in clients)
    value = math.fsum(client.value * client.samples for client in clients) / total
    return Measured(value, math.fsum(client.loss * client.samples for client in clients) / total, total)
