"""Decide whether a run can continue with another number of rounds.

It can if its finished rounds are bit for bit those of a run that had the new number from the start. A method declares
what depends on the number of rounds (`Method.uses_total`); the law `declared` in testing/laws.py checks that.
"""

from collections.abc import Iterator

from . import build, registry
from .config import Config


def why_different(config: Config, before: int, done: int) -> str:
    """Return why the first `done` rounds of a run of `before` rounds are not those of `config`; empty if they are."""
    if config.train.rounds < done or (config.train.rounds == done < before):
        least = done if done == before else done + 1
        return f"{done} rounds are done; set train.rounds to at least {least}"
    return "; ".join(_differences(config, before, done))


def _differences(config: Config, before: int, done: int) -> Iterator[str]:
    train = config.train
    schedule = registry.make_one("schedules", train.schedule)
    if any(schedule(number / before) != schedule(number / train.rounds) for number in range(done)):
        yield f"the learning rate depends on the total number of rounds (train.schedule = {train.schedule})"
    if used := sorted(build.build_method(config).uses_total):
        yield f"{config.method} depends on the total number of rounds: {', '.join(used)}"
    if done == before and done % train.evaluate_every:
        yield (
            f"round {done} was evaluated only because it was the last (train.evaluate_every = {train.evaluate_every})"
        )
