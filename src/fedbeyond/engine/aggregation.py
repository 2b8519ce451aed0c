"""What a federation is to a server, and what a method hears of it.

Many replies to a server that needs their mean alone are taken in one by one, and none is kept. The mean then stands
in the place of every reply: the server's arithmetic gives, to the bit, what it would have given.
"""

from contextlib import nullcontext

from .. import _memory, tree
from ..errors import FederationError
from ..method import Method
from ..server import Post, Reply, Request, by_size, uniform
from ..timer import part
from .gate import Gate, Verdict
from .protocol import Federation, Streaming

FROM = 16  # sites asked at once
LARGE = 2**24  # bytes of what they are asked with, from which on room counts for more than the calls that save it


def heard(method: Method, request: Request, post: Post, federation: Federation, gate: Gate) -> Verdict:
    """What a method may see of the answers to a request."""
    weighed = request.kind == "train" and method.weighting in (by_size, uniform)
    if not (method.sums and weighed and len(request.to) >= FROM and isinstance(federation, Streaming)):
        answers = federation.ask(request, post)
        with part("gate"):
            return gate.admit(request, answers)
    with _memory.sparing() if tree.size(request.body) >= LARGE else nullcontext():
        return _folded(method, request, post, federation, gate)


def _folded(method: Method, request: Request, post: Post, federation: Streaming, gate: Gate) -> Verdict:
    """The same, if all that the method needs is a mean."""
    mean = tree.Mean(_memory.copied)

    def fold(reply: Reply) -> Reply:
        mean.add(reply.body, reply.weight if method.weighting is by_size else 1.0)
        if _memory.scarce:
            _memory.give_back()
        return reply._replace(body={})

    verdict = gate.admit(request, federation.stream(request, post), fold)
    if len(verdict.replies) < mean.count:  # one was taken in before its peers showed that it is not to be believed
        mean = tree.Mean(_memory.copied)
        believed = request._replace(to=tuple(reply.client for reply in verdict.replies))
        for client, answer in federation.stream(believed, post):  # the same answers: they depend on what is asked alone
            if not isinstance(answer, Reply):
                raise FederationError(f"{client} answered, but when it was asked again: {answer.reason}")
            fold(answer)
    return verdict._replace(replies=[reply._replace(body=mean.result) for reply in verdict.replies])
