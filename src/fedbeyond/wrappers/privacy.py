"""What noise promises: epsilon as an established accountant counts it, and the promise in words."""

import math
from collections.abc import Mapping
from functools import cache

from ..errors import ConfigError
from ..method import Method
from ..tree import Tree

FINENESS = 1e-4  # to which epsilon is found, above 1 in proportion; always from above


@cache
def epsilon(noise: float, delta: float, answers: int) -> float:
    """Epsilon of so many answers with Gaussian noise, `noise` times as wide as one site can move an answer."""
    if not answers:
        return 0.0
    if not noise:
        return math.inf
    try:
        from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise ConfigError("dp needs an accountant to say what it promises; pip install 'fedbeyond[privacy]'") from None
    reach = math.sqrt(answers) / noise
    rough = reach * reach / 2 + reach * math.sqrt(2 * math.log(1 / delta))
    accountant = PLDAccountant(value_discretization_interval=FINENESS * max(1.0, rough))  # or a large one takes minutes
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise), answers))
    return float(accountant.get_epsilon(delta))


def promise(method: Method, rounds: int) -> str | None:
    """What is promised to a site that takes part in so many rounds, in a sentence."""
    if method.privacy is None:
        return None
    answers, spent = rounds * len(method.sends), method.spends(rounds)
    if math.isinf(spent):
        return "no privacy is promised: noise=0 clips and adds nothing (epsilon is infinite)"
    return (
        f"epsilon {spent:.3g} at delta {method.privacy.delta:g} for all data of a site, in {rounds} rounds of at most "
        f"{len(method.sends)} ({answers} answers); numbers of images and scores leave without noise"
    )


def spent(method: Method, post: Tree, answered: Mapping[str, int]) -> dict[str, float]:
    """Epsilon of who was asked most so far, whether or not it answered; nothing where nothing is promised.

    A site that was asked again otherwise, in a round that was played again, has answered more often.
    """
    most = max((int(count) for count in (*post["asked"].values(), *answered.values())), default=0)
    value = method.privacy.epsilon(most) if method.privacy else math.inf
    return {"epsilon": value} if math.isfinite(value) else {}
