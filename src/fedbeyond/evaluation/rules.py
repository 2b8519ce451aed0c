"""Selection rules: which round of a finished run is reported."""

from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from ..errors import ConfigError
from ..spec import unseen_domains
from .selection import CRITERIA, DEFAULT, Line, evaluated, select_round

Rule = Callable[[Sequence[Line]], Line]


def by_validation(metric: str) -> Rule:
    """Return the rule that selects a round by a metric on the source domains' validation samples."""

    def rule(run: Sequence[Line]) -> Line:
        try:
            return select_round(complete_rounds(run), metric)
        except KeyError:
            raise ConfigError(
                f"the results of {run[0]['method']}, {run[0]['target']} unseen, hold no {metric} for validation, "
                f"which the selection rule needs; select {DEFAULT}, or run them again"
            ) from None

    return rule


RULES: dict[str, Rule] = {name: by_validation(metric) for name, metric in CRITERIA.items()} | {
    "last": lambda run: run[-1],
    "oracle": lambda run: max(complete_rounds(run), key=lambda line: unseen(line)),
}
UNVALIDATED = "no validation scores: last round"
CAPTIONS = {
    "source-validation": "round chosen by source-validation accuracy",
    "source-validation-balanced": "round chosen by source-validation balanced accuracy",
    "last": "last round",
    "oracle": "ORACLE: round chosen by looking at the unseen domain itself; an upper line, not a result",
}


def configured_rule(runs: Iterable[Sequence[Line]]) -> str:
    """Return the rule of the runs' train.select, by which their models were saved."""
    rules = sorted({run[-1].get("select", DEFAULT) for run in runs})
    if len(rules) > 1:
        raise ConfigError(f"the runs differ in train.select ({', '.join(rules)}); choose one with select")
    return rules[0] if rules else DEFAULT


def complete_rounds(run: Sequence[Line]) -> list[Line]:
    """Return the rounds evaluated on the unseen domains too (guests may be absent); if none, all evaluated rounds."""
    lines = evaluated(run)
    return [line for line in lines if {*unseen_domains(line["target"])} <= line["scores"].keys()] or lines


def unseen_if_known(line: Line) -> float | None:
    """Return the mean accuracy on the unseen domains; None if a guest sent no scores of this round."""
    return unseen(line) if {*unseen_domains(line["target"])} <= line["scores"].keys() else None


def unseen(line: Line, domain: str = "", metric: str = "accuracy") -> float:
    """Return the accuracy (or another metric) on an unseen domain; without `domain`, the mean over all of them."""
    names = (domain,) if domain else unseen_domains(line["target"])
    values = [line["scores"].get(name, {}).get("test", {}).get(metric) for name in names]
    if None in values:
        raise ConfigError(
            f"the results of {line['method']}, {line['target']} unseen, hold no {metric}: they were made without it, "
            "or a guest did not evaluate that round or withheld its scores; choose another metric, or run them again"
        )
    return mean(map(float, values))
