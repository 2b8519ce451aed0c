"""An engine in one process."""

from collections.abc import Iterator

from ..client import Client, answer, enrol, rested, weight
from ..server import Failure, Post, Reply, Request
from ..site import Site
from ..tree import Tree
from .flops import Tally
from .reestimation import SuspendedPasses


class Simulator:
    """A federation in one process: its sites take turns with the same networks."""

    def __init__(self, client: Client, sites: list[Site]) -> None:
        self.client, self.sites = client, {site.name: site for site in sorted(sites, key=lambda s: s.name)}
        self.passes = SuspendedPasses(self.sites)
        self.enrol()

    def enrol(self) -> None:
        """Give every site the private state it starts with."""
        self.slots = {name: enrol(self.client, site) for name, site in self.sites.items()}

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.sites)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: site.size for name, site in self.sites.items()}

    @property
    def kept(self) -> dict[str, int]:
        return {name: weight(slots) for name, slots in self.slots.items()}

    @property
    def answered(self) -> dict[str, int]:
        return {}

    def state(self) -> Tree:
        return {name: rested(slots) for name, slots in self.slots.items()}

    def restore(self, saved: Tree) -> None:
        self.slots = saved

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        return self.passes.measure(request, number)

    def close(self) -> None:
        self.passes.close()

    def ask(self, request: Request, post: Post) -> dict[str, Reply | Failure]:
        return dict(self.stream(request, post))

    def stream(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure]]:
        """Answers one by one, for who keeps none of them."""
        return ((name, self._answer(name, request, post)) for name in request.to)

    def tallied(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure, int]]:
        """Answers one by one, with what each took."""
        for name in request.to:
            with Tally() as tally:
                found = self._answer(name, request, post)
            yield name, found, tally.total

    def _answer(self, name: str, request: Request, post: Post) -> Reply | Failure:
        try:
            reply, self.slots[name] = answer(self.client, self.sites[name], self.slots[name], request, post)
        except Exception as error:  # a site that fails is a site that does not answer, as over a network
            return Failure(name, f"{type(error).__name__}: {error}", error)
        return reply
