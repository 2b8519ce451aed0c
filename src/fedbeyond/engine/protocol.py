"""The protocol of an engine: carry requests to clients, and bring back their replies."""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from ..server import Failure, Post, Reply, Request
from ..tree import Tree


class Federation(Protocol):
    """Carries a request to the clients and brings back what each one asked answered, or why it did not."""

    @property
    def clients(self) -> tuple[str, ...]: ...

    def ask(self, request: Request, post: Post) -> Mapping[str, Reply | Failure]: ...


@runtime_checkable
class Streaming(Protocol):
    """A federation that can also hand over answers one by one."""

    def stream(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure]]:
        """The answer of each client that is asked, in the order of the request."""


class Engine(Federation, Protocol):
    """A federation on which whole runs are played: it also knows what its sites hold, here or elsewhere."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many images each site trains on."""

    @property
    def kept(self) -> Mapping[str, int]:
        """Bytes of private state at each site."""

    @property
    def answered(self) -> Mapping[str, int]:
        """How many different answers each site has given, where it counts them itself: under noise, each costs."""

    def enrol(self) -> None:
        """Begin a run: every site has the private state it starts with."""

    def state(self) -> Tree:
        """What a checkpoint has to hold of the sites; nothing if they keep it themselves."""

    def restore(self, saved: Tree) -> None:
        """Go on from what a checkpoint held of them."""

    def measure(self, request: Request, number: int) -> Mapping[str, Reply | Failure]:
        """Ask sites for moments of a model after a round; it changes nothing that they keep."""

    def close(self) -> None:
        """Let go of what it needs only while a run goes on."""
