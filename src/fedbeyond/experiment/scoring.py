"""Evaluate the models of a round: as they are, and with BatchNorm statistics measured anew where the run wants that."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..engine.reestimation import Outcome
from ..evaluation.evaluators import Judges, Models
from ..server import Failure


class Evaluation(NamedTuple):
    """The scores of a round's models, the models as they were evaluated, and what it took."""

    scores: Mapping[str, Any]  # by their name in the result line
    models: Models
    absent: list[Failure]  # sites that did not evaluate
    outcome: Outcome | None = None  # of re-estimation


def evaluated(
    models: Models, number: int, judges: Judges, reestimate: Callable[[Models, int], Outcome] | None
) -> Evaluation:
    """Score models after a round; where statistics are measured anew, with these and, beside it, with the average."""
    averaged, absent = judges(models, number)
    if reestimate is None:
        return Evaluation({"scores": averaged}, models, absent)
    outcome = reestimate(models, number)
    scores, missing = judges(outcome.models, number)
    absent = absent + [failure for failure in missing if failure not in absent]
    return Evaluation({"scores": scores, "scores_average": averaged}, outcome.models, absent, outcome)
