"""The protocol of an engine: carry requests to clients, and bring back their replies."""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from ..server import Envelope, Failure, Reply, Request
from ..tree import Tree


class Federation(Protocol):
    """Sends a request to clients and returns the reply of each, or the reason why there is none."""

    @property
    def clients(self) -> tuple[str, ...]: ...

    def ask(self, request: Request, envelope: Envelope) -> Mapping[str, Reply | Failure]: ...


@runtime_checkable
class Streaming(Protocol):
    """A federation that can also return replies one by one, so that none has to be kept."""

    def stream(self, request: Request, envelope: Envelope) -> Iterator[tuple[str, Reply | Failure]]:
        """Yield the reply of each client, in the order of the request."""


class Engine(Federation, Protocol):
    """A federation that can run whole experiments: it also knows its sites and manages their private state."""

    @property
    def is_local(self) -> bool:
        """Whether the sites run on this machine: their operations can be counted, their state is in the checkpoint."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of training images of each site."""

    @property
    def private_bytes(self) -> Mapping[str, int]:
        """The bytes of private state at each site."""

    @property
    def replies_counted(self) -> Mapping[str, int]:
        """The number of different replies of each site, if sites count them: with dp, each one spends privacy."""

    def enrol(self) -> None:
        """Start a run: give every site its initial private state."""

    def state(self) -> Tree:
        """Return the private states for a checkpoint; empty if the sites store their own."""

    def restore(self, saved: Tree) -> None:
        """Restore the private states of a checkpoint."""

    def measure(self, request: Request, number: int) -> Mapping[str, Reply | Failure]:
        """Request moments of a model's BatchNorm layers after a round; private states do not change."""

    def count_flops(self) -> Mapping[str, int]:
        """Count operations from here on; return the count of each site, empty if sites do not report theirs."""

    def close(self) -> None:
        """Release what is needed only while a run is running."""
