"""Limits of a site's answers: every one is checked against the policy and the site ledger, and written down.

A server may ask whatever it likes, under any name of a run and any number of a round. What counts is what has left.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .. import tree
from .._method import Method, global_model
from ..errors import FederationError, PolicyError
from ..experiment.config import Config
from ..tree import Tree
from ..wrappers.privacy import composed_epsilon
from . import site_ledger
from .messages import ASK, EVALUATE, MEASURE
from .policy import Policy
from .site_ledger import Entry, SiteLedger

REPEATED = 3  # times that a round of a run may have other models: a server was killed, or a run is started again


def ensure_planned(config: Config, subject: str, number: int) -> None:
    """Raise `FederationError` if a run has no such round, or evaluates no models after it."""
    train = config.train
    if not 0 <= number < train.rounds:
        raise FederationError(f"round {number + 1} is requested of a run of {train.rounds} rounds (train.rounds)")
    if subject != ASK and (number + 1) % train.evaluate_every and number + 1 != train.rounds:
        raise FederationError(
            f"models of round {number + 1} are to be evaluated; this run evaluates every {train.evaluate_every} rounds "
            "(train.evaluate_every) and after the last"
        )


def ensure_known_models(method: Method, names: Sequence[str], sources: int) -> None:
    """Raise `FederationError` if other models are to be evaluated than those that the method has."""
    if method.eval_models is global_model:
        if [*names] != ["model"]:
            raise FederationError(f"{len(names)} models are to be evaluated; this method has one, 'model'")
    elif not 0 < len(names) == len({*names}) <= sources:
        raise FederationError(
            f"{len(names)} models are to be evaluated; this method has one of each of {sources} sites"
        )


def ensure_same_configuration(ledger: SiteLedger, run: str, config: str, sources: int) -> None:
    """Raise `FederationError` if a run that this site has answered began with another configuration."""
    began = next(ledger.entries(run=run), None)
    if began and (began.config, began.sources) != (config, sources):
        raise FederationError(
            f"run {run} began at this site with another configuration or number of sites; a run cannot change them. "
            "Submit a new run: change its seed, for example"
        )


def ensure_same_splits(ledger: SiteLedger, policy: Policy, splits: str) -> None:
    """Raise `PolicyError` if the policy fixes the site's splits, and the last answer that left was for other ones."""
    known = [entry.splits for entry in ledger.entries() if entry.splits] if policy.fixed_splits else []
    if known and known[-1] != splits:
        raise PolicyError(
            "the run divides the site's samples otherwise than those before, and the difference of two answers can be "
            "that of one patient; the site's policy fixes its splits (fixed_splits): keep seed, train.validation, "
            "train.test, train.clients_per_domain, train.label_skew, train.target_part and train.disjoint"
        )


def ensure_affordable_run(ledger: SiteLedger, policy: Policy, config: str, method: Method, rounds: int) -> None:
    """Raise `PolicyError` if a run, after all that has left in others, would spend a larger epsilon than allowed."""
    if policy.max_epsilon is None or method.privacy is None:
        return
    asked = list(ledger.entries(subject=ASK))
    noises = Counter(entry.noise for entry in asked if entry.config != config)
    own = sum(entry.config == config for entry in asked)
    noises[method.privacy.noise] += max(own, rounds * len(method.sends))
    _ensure_within(policy, noises, f"with all {rounds} rounds of this run")


def admit_reply(folder: Path, policy: Policy, entry: Entry) -> int:
    """Write down a reply to a request that is about to leave; return how many of this configuration have left.

    A reply that has left before reveals nothing new, and is free. `PolicyError` if the policy allows no other reply.
    """
    with site_ledger.opened(folder) as ledger:
        ensure_same_configuration(ledger, entry.run, entry.config, entry.sources)
        ensure_same_splits(ledger, policy, entry.splits)
        asked = list(ledger.entries(subject=ASK))
        own = [each for each in asked if each.config == entry.config]
        if all(each.digest != entry.digest for each in asked):
            same = sum(each.kind == entry.kind for each in own)
            if policy.max_rounds is not None and same >= policy.max_rounds:
                raise PolicyError(
                    f"{same} different replies to {entry.kind!r} have left under this configuration; the site's policy "
                    f"allows {policy.max_rounds} rounds"
                )
            if policy.max_epsilon is not None:
                _ensure_within(policy, Counter(each.noise for each in [*asked, entry]), "with this reply")
            _ensure_scores_left(policy, ledger, entry)
            ledger.add(entry)
            own.append(entry)
        return len(own)


def count_scores(method: Method, kind: str, body: Tree, sources: int) -> int:
    """Count the scores of models in a reply; `FederationError` if there are more than one of each site's model."""
    declared = method.sends.get(kind, {}).items()
    scores = {name: sum(leaf.numel() for leaf in tree.leaves(body[name])) for name, sent in declared if sent.evaluates}
    for name, count in scores.items():
        if count > sources:
            raise FederationError(
                f"{count} models are to be evaluated for {name!r}; this method has one of each of {sources} sites"
            )
    return sum(scores.values())


def _ensure_scores_left(policy: Policy, ledger: SiteLedger, entry: Entry) -> None:
    """Raise `PolicyError` if a reply has scores of models, and the policy allows no more of them.

    A round that a server repeats after it was killed may have other models, if other sites replied.
    """
    if not entry.evaluated:
        return
    before = [each for each in ledger.entries(run=entry.run, subject=ASK) if each.evaluated]
    same = sum((each.round, each.kind) == (entry.round, entry.kind) for each in before)
    if same >= REPEATED * policy.evaluations_per_round:
        raise PolicyError(
            f"{same} different replies to {entry.kind!r} with scores of models have left in round {entry.round + 1} of "
            f"this run; the site's policy allows {REPEATED} for each of evaluations_per_round"
        )
    if reason := _why_no_more(policy, ledger, entry.evaluated):
        raise PolicyError(reason)


def admit_scores(folder: Path, policy: Policy, entry: Entry, sets: int) -> str:
    """Write down that models are evaluated; return why their scores are withheld, if the policy allows no more of them.

    A run has as many different `sets` of models for each round, and a round may be repeated with others. A set that was
    evaluated before is free.
    """
    with site_ledger.opened(folder) as ledger:
        ensure_same_configuration(ledger, entry.run, entry.config, entry.sources)
        ensure_same_splits(ledger, policy, entry.splits)
        scored = {each.models for each in ledger.entries(run=entry.run, subject=EVALUATE) if each.round == entry.round}
        if entry.models in scored:
            return ""
        if len(scored) >= REPEATED * sets * policy.evaluations_per_round:
            return (
                f"{len(scored)} other sets of models of round {entry.round + 1} of this run were evaluated before, and "
                f"the site's policy allows {REPEATED} for each of evaluations_per_round; to start it again, change its "
                "seed"
            )
        if reason := _why_no_more(policy, ledger):
            return reason
        ledger.add(entry)
    return ""


def admit_moments(folder: Path, policy: Policy, entry: Entry) -> None:
    """Write down that layers of a model are measured; `PolicyError` if the policy allows no more of it.

    One model may be measured after a round, which may be repeated, and each of its layers once. The same request again
    is free.
    """
    with site_ledger.opened(folder) as ledger:
        ensure_same_configuration(ledger, entry.run, entry.config, entry.sources)
        ensure_same_splits(ledger, policy, entry.splits)
        measured = [each for each in ledger.entries(run=entry.run, subject=MEASURE) if each.round == entry.round]
        if any(each.digest == entry.digest and each.models == entry.models for each in measured):
            return
        models, same = {each.models for each in measured}, [each for each in measured if each.models == entry.models]
        if not same and len(models) >= REPEATED * policy.evaluations_per_round:
            raise PolicyError(
                f"{len(models)} other models of round {entry.round + 1} of this run were measured before, and the "
                f"site's policy allows {REPEATED} for each of evaluations_per_round"
            )
        if {*entry.layers} & {layer for each in same for layer in each.layers}:
            raise PolicyError(f"a layer of the model of round {entry.round + 1} was measured before, otherwise")
        if not same and (reason := _why_no_more(policy, ledger)):
            raise PolicyError(reason)
        ledger.add(entry)


def describe_spending(entries: Sequence[Entry], policy: Policy) -> str:
    """Say what has left a site in all runs: replies with the epsilon that they spent, and evaluations."""
    asked = [entry for entry in entries if entry.subject == ASK]
    noises = Counter(entry.noise for entry in asked)
    plain = noises.pop(0.0, 0)
    limits = {"epsilon": policy.max_epsilon, "evaluations": policy.max_evaluations}
    of = {key: f" of {limit:g}" if limit is not None else "" for key, limit in limits.items()}
    parts = [f"{len(asked)} replies in {len({entry.run for entry in entries})} runs"]
    if noises or policy.max_epsilon is not None:
        spent = composed_epsilon(noises, policy.max_delta)
        parts.append(f"epsilon {spent:.3g}{of['epsilon']} at delta {policy.max_delta:g}")
    parts += [f"{plain} replies without noise, for which no epsilon holds"] if plain else []
    return "; ".join([*parts, f"{count_evaluations(entries)}{of['evaluations']} evaluations of models"])


def count_evaluations(entries: Iterable[Entry]) -> int:
    """Count the sets of models that were evaluated, the models that were measured, and the scores in replies."""
    entries = list(entries)
    sets = {(each.subject, each.run, each.round, each.models) for each in entries if each.subject != ASK}
    return len(sets) + sum(each.evaluated for each in entries if each.subject == ASK)


def _why_no_more(policy: Policy, ledger: SiteLedger, more: int = 1) -> str:
    if policy.max_evaluations is None or count_evaluations(ledger.entries()) + more <= policy.max_evaluations:
        return ""
    return f"the site's policy allows {policy.max_evaluations} evaluations of models in all runs (max_evaluations)"


def _ensure_within(policy: Policy, noises: Mapping[float, int], when: str) -> None:
    """Raise `PolicyError` if answers with these noises spend a larger epsilon than allowed."""
    assert policy.max_epsilon is not None
    if plain := noises.get(0.0, 0):
        raise PolicyError(
            f"{plain} replies without noise have left this site, for which no epsilon holds; the site's policy allows "
            f"{policy.max_epsilon:g}. If its operator accepts that, a new ledger begins (docs/deployment.md)"
        )
    spent = composed_epsilon(noises, policy.max_delta)
    if spent > policy.max_epsilon:
        raise PolicyError(
            f"{when}, {sum(noises.values())} replies of this site in all runs would spend an epsilon of {spent:.3g} at "
            f"delta {policy.max_delta:g}; the site's policy allows {policy.max_epsilon:g}"
        )
