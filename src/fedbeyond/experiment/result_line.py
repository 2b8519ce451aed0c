"""Evaluate the models of a round and describe the round in a result line."""

from collections.abc import Iterable
from typing import Any

from .. import timer, tree
from ..engine.gate import LedgerEntry
from ..engine.reestimation import reestimate_models
from ..evaluation.evaluators import Models
from ..evaluation.selection import DEFAULT, Line
from ..server import Failure, Round
from ..tree import Tree
from ..wrappers.privacy import spent
from .prepare import Experiment


def describe_round(experiment: Experiment, now: Round, state: Tree, round_log: dict[str, Any]) -> tuple[Line, Tree]:
    """Return the result line of a round, and the global model as it was evaluated.

    The models are evaluated every `train.evaluate_every` rounds and after the last one.
    """
    config, train, number = experiment.config, experiment.config.train, now.number
    scores: dict[str, Any] = {}
    model = state["server"]["model"]
    if (number + 1) % train.evaluate_every == 0 or number + 1 == train.rounds:
        with timer.section("evaluation"):
            scores, models = score_models(experiment, now, experiment.method.eval_models(state["server"]), round_log)
            model = models.get("model", model)
    numbers = diagnostics(state["weighting"]) | diagnostics(state["server"])
    numbers |= spent(experiment.method, state["exchange"], experiment.engine.replies_counted)
    line = {
        "method": config.method,
        "target": config.target,
        "seed": config.seed,
        "setting": config.setting(),
        "round": number,
        "rounds": train.rounds,
        **({"select": train.select} if train.select != DEFAULT else {}),
        **scores,
        "weights": round_log["weights"] or numbers.get("weights", {}),
        "diagnostics": numbers,
        "rejected": round_log["rejected"],
        "bytes_up": bytes_by_kind(round_log["ledger"]),
        "bytes_down": dict(round_log["bytes_down"]),
        "private_bytes": dict(experiment.engine.private_bytes),
    }
    return line, model


def score_models(
    experiment: Experiment, now: Round, models: Models, round_log: dict[str, Any]
) -> tuple[dict[str, Any], Models]:
    """Evaluate models after a round; return the scores by their key in the result line, and the models as evaluated.

    If BatchNorm is re-estimated, they are evaluated with re-estimated and with averaged statistics; sites have the
    weights that they had in training. What sites send for this, and which ones fail, is added to the round log.
    """
    engine, number = experiment.engine, now.number
    averaged, absent, withheld = experiment.evaluator(models, number)
    scores = {"scores": averaged}
    if experiment.levels:
        weights = round_log["weights"] or {name: float(engine.sizes[name]) for name in now.clients}
        outcome = reestimate_models(models, experiment.levels, weights, engine.measure, experiment.gate, number)
        models = outcome.models
        reestimated, missing, also_withheld = experiment.evaluator(models, number)
        scores = {"scores": reestimated, "scores_average": averaged}
        absent = absent + [failure for failure in missing if failure not in absent]
        withheld = {**withheld, **also_withheld}
        round_log["ledger"] += outcome.ledger
        round_log["bytes_down"].update(outcome.received)
        round_log["rejected"] += _entries("statistics", outcome.rejected)
    round_log["rejected"] += _entries("evaluate", absent)
    return scores | ({"withheld": dict(sorted(withheld.items()))} if withheld else {}), models


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
