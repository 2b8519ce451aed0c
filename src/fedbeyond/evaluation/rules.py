"""Selection rules: which round of a finished run is reported."""

from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from ..errors import ConfigError
from ..spec import unseen_domains
from .selection import CRITERIA, DEFAULT, Line, chosen, judged

Rule = Callable[[Sequence[Line]], Line]


def by_validation(metric: str) -> Rule:
    """Make the rule that selects a round by a metric on the source domains' validation samples."""

    def rule(run: Sequence[Line]) -> Line:
        try:
            return chosen(whole(run), metric)
        except KeyError:
            raise ConfigError(
                f"the results of {run[0]['method']}, {run[0]['target']} unseen, hold no {metric} for validation, "
                f"because an older version made them; give --select {DEFAULT}, or run them again"
            ) from None

    return rule


RULES: dict[str, Rule] = {name: by_validation(metric) for name, metric in CRITERIA.items()} | {
    "last": lambda run: run[-1],
    "oracle": lambda run: max(whole(run), key=lambda line: unseen(line)),
}
CAPTIONS = {
    "source-validation": "round chosen by source-validation accuracy",
    "source-validation-balanced": "round chosen by source-validation balanced accuracy",
    "last": "last round",
    "oracle": "ORACLE: round chosen by looking at the unseen domain itself; an upper line, not a result",
}


def own_rule(every: Iterable[Sequence[Line]]) -> str:
    """Return the rule that the runs name themselves (train.select), by which their models were saved."""
    rules = sorted({run[-1].get("select", DEFAULT) for run in every})
    if len(rules) > 1:
        raise ConfigError(f"the runs differ in train.select ({', '.join(rules)}); choose one with --select")
    return rules[0] if rules else DEFAULT


def whole(run: Sequence[Line]) -> list[Line]:
    """The rounds that the unseen domains judged, too, of a federation whose guests may be away; else all judged."""
    every = judged(run)
    return [line for line in every if {*unseen_domains(line["target"])} <= line["scores"].keys()] or every


def unseen(line: Line, domain: str = "", metric: str = "accuracy") -> float:
    """Accuracy (or another metric) on a domain that took no part; on all of them together if none is named."""
    names = (domain,) if domain else unseen_domains(line["target"])
    found = [line["scores"].get(name, {}).get("test", {}).get(metric) for name in names]
    if None in found:
        raise ConfigError(
            f"the results of {line['method']}, {line['target']} unseen, hold no {metric}: an older version made them, "
            "or no guest judged that round; choose another --metric, or run them again"
        )
    return mean(map(float, found))
