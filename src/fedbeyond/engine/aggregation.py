"""Receive the replies to a request: all at once, or folded into their mean one by one.

If a method is linear in its replies and there are many, each reply is added to a running mean and dropped. Each
reply's body is then replaced by the mean. A weighted mean of equal trees is that tree, bit for bit, so averaging
servers get the same result as with single replies.
"""

from .. import timer, tree
from .._method import Method
from ..errors import FederationError
from ..server import Envelope, Reply, Request, by_size, uniform
from .gate import Gate, Verdict
from .protocol import Federation, Streaming

MIN_CLIENTS = 16  # in one request, to fold replies


def receive(method: Method, request: Request, envelope: Envelope, federation: Federation, gate: Gate) -> Verdict:
    """Send a request and return what the gate admits of the replies."""
    weighted = request.kind == "train" and method.weighting in (by_size, uniform)
    foldable = method.linear_aggregation and weighted and len(request.to) >= MIN_CLIENTS
    if not (foldable and isinstance(federation, Streaming)):
        replies = federation.ask(request, envelope)
        with timer.section("gate"):
            return gate.admit(request, replies)
    return _fold(method, request, envelope, federation, gate)


def _fold(method: Method, request: Request, envelope: Envelope, federation: Streaming, gate: Gate) -> Verdict:
    """Receive replies one by one; every admitted reply then holds the mean of all."""
    mean = tree.Mean()

    def fold(reply: Reply) -> Reply:
        mean.add(reply.body, reply.weight if method.weighting is by_size else 1.0)
        return reply._replace(body={})

    verdict = gate.admit(request, federation.stream(request, envelope), fold)
    if len(verdict.replies) < mean.count:  # one was folded before its peers showed that it is implausible
        mean = tree.Mean()
        admitted = request._replace(to=tuple(reply.client for reply in verdict.replies))
        # a reply depends on the request alone, so the same replies come again
        for client, reply in federation.stream(admitted, envelope):
            if not isinstance(reply, Reply):
                raise FederationError(f"{client} sent a valid reply, but failed when asked again: {reply.reason}")
            fold(reply)
    return verdict._replace(replies=[reply._replace(body=mean.result) for reply in verdict.replies])
