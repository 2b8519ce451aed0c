"""Methods whose server receives changed replies: in reverse order, or all replaced by their mean."""

from collections.abc import Callable
from dataclasses import replace

from .. import tree
from .._method import Method
from ..server import Conversation, Reply, Request, Round, Weighting
from ..tree import Tree

Change = Callable[[Request, list[Reply]], list[Reply]]


def with_reversed_replies(method: Method) -> Method:
    """Return the method with a server that receives the replies in reverse order."""

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        assert method.weighting
        weights, memory = method.weighting.update(replies[::-1], memory, now)
        return weights[::-1], memory

    weighting = method.weighting and Weighting(method.weighting.init, update)
    return replace(with_changed_replies(method, lambda request, replies: replies[::-1]), weighting=weighting)


def with_mean_replies(method: Method, even: bool) -> Method:
    """Return the method with a server that receives the weighted mean of all replies instead of each reply.

    The weighting receives empty replies. With `even`, all replies except those to "train" have the same weight.
    """

    def average(request: Request, replies: list[Reply]) -> list[Reply]:
        weights = [1.0 if even and request.kind != "train" else reply.weight for reply in replies]
        mean = tree.mean([reply.body for reply in replies], weights)
        return [reply._replace(body=mean) for reply in replies]

    def update(replies: list[Reply], memory: Tree, now: Round) -> tuple[list[float], Tree]:
        assert method.weighting
        return method.weighting.update([reply._replace(body={}) for reply in replies], memory, now)

    weighting = method.weighting and Weighting(method.weighting.init, update)
    return replace(with_changed_replies(method, average), weighting=weighting)


def with_changed_replies(method: Method, change: Change) -> Method:
    """Return the method with a server that receives `change(request, replies)` instead of the replies."""

    def round(state: Tree, now: Round) -> Conversation:
        conversation = method.server.round(state, now)
        request = next(conversation)
        while True:
            replies = yield request
            try:
                request = conversation.send(change(request, replies))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    return replace(method, server=method.server._replace(round=round))
