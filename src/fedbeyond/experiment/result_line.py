"""Evaluate the models of a round and describe the round in a result line."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .. import timer, tree
from ..engine.gate import LedgerEntry
from ..engine.reestimation import Outcome, reestimate_models
from ..evaluation.evaluators import Evaluator, Models
from ..evaluation.selection import DEFAULT, Line
from ..server import Failure, Round
from ..tree import Tree
from ..wrappers.privacy import spent
from .prepare import Experiment


class RoundScores(NamedTuple):
    """The scores of a round's models, the models as they were evaluated, and how they were evaluated."""

    scores: Mapping[str, Any]  # by their key in the result line
    models: Models
    absent: list[Failure]  # sites that did not evaluate
    outcome: Outcome | None = None  # of re-estimation


def describe_round(experiment: Experiment, now: Round, state: Tree, round_log: dict[str, Any]) -> tuple[Line, Tree]:
    """Return the result line of a round, and the global model as it was evaluated.

    The models are evaluated every `train.evaluate_every` rounds and after the last one.
    """
    config, train, number = experiment.config, experiment.config.train, now.number
    evaluated = RoundScores({}, {}, [])
    if (number + 1) % train.evaluate_every == 0 or number + 1 == train.rounds:
        with timer.section("evaluation"):
            models = experiment.method.eval_models(state["server"])
            evaluated = score_models(models, number, experiment.evaluator, reestimator(experiment, now, round_log))
    if evaluated.outcome:
        round_log["ledger"] += evaluated.outcome.ledger
        round_log["bytes_down"].update(evaluated.outcome.received)
        round_log["rejected"] += _entries("statistics", evaluated.outcome.rejected)
    numbers = diagnostics(state["weighting"]) | diagnostics(state["server"])
    numbers |= spent(experiment.method, state["exchange"], experiment.engine.replies_counted)
    line = {
        "method": config.method,
        "target": config.target,
        "seed": config.seed,
        "setting": config.setting(),
        "round": number,
        "rounds": config.train.rounds,
        **({"select": train.select} if train.select != DEFAULT else {}),
        **evaluated.scores,
        "weights": round_log["weights"] or numbers.get("weights", {}),
        "diagnostics": numbers,
        "rejected": round_log["rejected"] + _entries("evaluate", evaluated.absent),
        "bytes_up": bytes_by_kind(round_log["ledger"]),
        "bytes_down": dict(round_log["bytes_down"]),
        "private_bytes": dict(experiment.engine.private_bytes),
    }
    return line, evaluated.models.get("model", state["server"]["model"])


def score_models(
    models: Models, number: int, evaluator: Evaluator, reestimate: Callable[[Models, int], Outcome] | None
) -> RoundScores:
    """Evaluate models after a round; if BatchNorm is re-estimated, with re-estimated and with averaged statistics."""
    averaged, absent = evaluator(models, number)
    if reestimate is None:
        return RoundScores({"scores": averaged}, models, absent)
    outcome = reestimate(models, number)
    scores, missing = evaluator(outcome.models, number)
    absent = absent + [failure for failure in missing if failure not in absent]
    return RoundScores({"scores": scores, "scores_average": averaged}, outcome.models, absent, outcome)


def reestimator(
    experiment: Experiment, now: Round, round_log: dict[str, Any]
) -> Callable[[Models, int], Outcome] | None:
    """Return the function that re-estimates the BatchNorm statistics of this round's models; None if none are.

    Sites have the weights that they had in training.
    """
    if not experiment.levels:
        return None
    engine = experiment.engine
    weights = round_log["weights"] or {name: float(engine.sizes[name]) for name in now.clients}
    return lambda models, number: reestimate_models(
        models, experiment.levels, weights, engine.measure, experiment.gate, number
    )


def diagnostics(state: Tree) -> dict[str, Any]:
    """Return the scalars that a method logs under "diagnostics" in its state."""
    return tree.map(lambda leaf: leaf.item(), state.get("diagnostics", {}))  # type: ignore[no-any-return]


def bytes_by_kind(ledger: Iterable[LedgerEntry]) -> dict[str, dict[str, dict[str, int]]]:
    """Sum the bytes that left: by site, by kind, by name."""
    sums: dict[str, dict[str, dict[str, int]]] = {}
    for entry in ledger:
        names = sums.setdefault(entry.client, {}).setdefault(entry.kind, {})
        names[entry.name] = names.get(entry.name, 0) + entry.bytes
    return sums


def _entries(request: str, failures: Iterable[Failure]) -> list[dict[str, str]]:
    return [{"site": failure.client, "request": request, "reason": failure.reason} for failure in failures]
