"""Privacy accounting for dp: epsilon after a number of replies, and the guarantee in one sentence."""

import math
from collections.abc import Mapping
from functools import cache

from .._method import Method
from ..errors import ConfigError
from ..tree import Tree

MAX_NOISES = 8  # different ones that the accountant composes; more are one Gaussian (Dong, Roth, Su 2022), in less time
FINENESS = 1e-4  # precision of epsilon, relative above 1; the result is always an upper bound


@cache
def epsilon(noise: float, delta: float, answers: int) -> float:
    """Return epsilon after `answers` replies with Gaussian noise; its standard deviation is `noise` x sensitivity.

    It is infinite if it is too large to be computed.
    """
    return composed_epsilon({noise: answers}, delta)


def composed_epsilon(answers: Mapping[float, int], delta: float) -> float:
    """Return epsilon after replies with different Gaussian noises: how many replies had each noise."""
    counts = {noise: count for noise, count in answers.items() if count}
    if not counts:
        return 0.0
    if not all(counts):
        return math.inf
    try:
        from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise ConfigError("dp needs dp-accounting to compute epsilon; run pip install 'fedbeyond[privacy]'") from None
    reach = math.hypot(*(math.sqrt(count) / noise for noise, count in counts.items()))
    if len(counts) > MAX_NOISES:
        counts = {1 / reach: 1}
    rough = reach * reach / 2 + reach * math.sqrt(2 * math.log(1 / delta))
    interval = FINENESS * max(1.0, rough)  # with a fixed interval, a large epsilon takes minutes to compute
    accountant = PLDAccountant(value_discretization_interval=interval)
    try:
        for noise, count in sorted(counts.items()):
            accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), count))
        return float(accountant.get_epsilon(delta))
    except OverflowError:
        return math.inf


def describe_guarantee(method: Method, rounds: int) -> str | None:
    """Return one sentence with the guarantee for a site that takes part in `rounds` rounds; None without dp."""
    if method.privacy is None:
        return None
    answers, total = rounds * len(method.sends), method.epsilon_after(rounds)
    if math.isinf(total):
        return "no privacy is guaranteed: noise=0 clips, but adds no noise (epsilon is infinite)"
    return (
        f"epsilon {total:.3g} at delta {method.privacy.delta:g} for all data of a site, in {rounds} rounds of at most "
        f"{len(method.sends)} requests ({answers} replies); image counts and evaluation scores leave without noise"
    )


def spent(method: Method, exchange: Tree, answered: Mapping[str, int]) -> dict[str, float]:
    """Return the epsilon of the site that received most requests so far; {} if it is infinite.

    A request counts even if its reply did not arrive. A site's own count (`answered`) is higher than the server's if a
    round was repeated with a different request.
    """
    requests = max((int(count) for count in (*exchange["asked"].values(), *answered.values())), default=0)
    value = method.privacy.epsilon(requests) if method.privacy else math.inf
    return {"epsilon": value} if math.isfinite(value) else {}
