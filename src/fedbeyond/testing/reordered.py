"""Methods whose servers hear replies otherwise than they came: in the opposite order, or all of them blended."""

from collections.abc import Callable
from dataclasses import replace

from .. import tree
from ..method import Method
from ..server import Conversation, Reply, Request, Round, Weighting
from ..tree import Tree

Retell = Callable[[Request, list[Reply]], list[Reply]]


def backwards(method: Method) -> Method:
    """The same method, its server hearing every reply in the opposite order."""

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        assert method.weighting
        weights, memory = method.weighting.update(replies[::-1], memory, now)
        return weights[::-1], memory

    weighting = method.weighting and Weighting(method.weighting.init, update)
    return replace(retold(method, lambda request, replies: replies[::-1]), weighting=weighting)


def blended(method: Method, even: bool) -> Method:
    """The same method, its server hearing the weighted mean of all replies from each; who weighs them hears nothing.

    `even`: all replies count the same, but for those to "train", which are weighed.
    """

    def blend(request: Request, replies: list[Reply]) -> list[Reply]:
        weights = [1.0 if even and request.kind != "train" else reply.weight for reply in replies]
        middle = tree.mean([reply.body for reply in replies], weights)
        return [reply._replace(body=middle) for reply in replies]

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        assert method.weighting
        return method.weighting.update([reply._replace(body={}) for reply in replies], memory, now)

    weighting = method.weighting and Weighting(method.weighting.init, update)
    return replace(retold(method, blend), weighting=weighting)


def retold(method: Method, retell: Retell) -> Method:
    """The same method, its server hearing what `retell` makes of the replies."""

    def round(state: Tree, now: Round) -> Conversation:
        conversation = method.server.round(state, now)
        request = next(conversation)
        while True:
            replies = yield request
            try:
                request = conversation.send(retell(request, replies))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    return replace(method, server=method.server._replace(round=round))
