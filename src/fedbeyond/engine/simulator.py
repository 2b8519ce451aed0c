"""The simulator: an engine whose sites run one after the other in this process."""

from collections.abc import Iterator, Mapping

from .. import _plugins
from ..client import Client, answer, enrol, private_bytes, without_rollback
from ..server import Envelope, Failure, Reply, Request
from ..site import Site
from ..tree import Tree
from .flops import Flops
from .reestimation import SuspendedPasses


class Simulator:
    """An engine in one process; its sites share the same networks."""

    is_local = True

    def __init__(self, client: Client, sites: list[Site]) -> None:
        self.client, self.sites = client, {site.name: site for site in sorted(sites, key=lambda s: s.name)}
        self.passes, self.flops = SuspendedPasses(self.sites), Flops()
        self._states: dict[str, Tree] | None = None

    @property
    def client_states(self) -> dict[str, Tree]:
        """The private state of each site; sites are enrolled when it is first used."""
        if self._states is None:
            self.enrol()
        assert self._states is not None
        return self._states

    @client_states.setter
    def client_states(self, states: dict[str, Tree]) -> None:
        self._states = states

    def enrol(self) -> None:
        """Give every site its initial private state."""
        self._states = {name: enrol(self.client, site) for name, site in self.sites.items()}

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.sites)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: site.size for name, site in self.sites.items()}

    @property
    def private_bytes(self) -> dict[str, int]:
        return {name: private_bytes(state) for name, state in self.client_states.items()}

    @property
    def replies_counted(self) -> dict[str, int]:
        return {}

    def state(self) -> Tree:
        return {name: without_rollback(state) for name, state in self.client_states.items()}

    def restore(self, saved: Tree) -> None:
        self._states = saved

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        return self.passes.measure(request, number)

    def count_flops(self) -> Mapping[str, int]:
        self.flops.active = True
        return self.flops.by_site

    def close(self) -> None:
        self.passes.close()

    def ask(self, request: Request, envelope: Envelope) -> dict[str, Reply | Failure]:
        return dict(self.stream(request, envelope))

    def stream(self, request: Request, envelope: Envelope) -> Iterator[tuple[str, Reply | Failure]]:
        """Yield replies one by one, so that the caller need not keep them."""
        return ((name, self._answer(name, request, envelope)) for name in request.to)

    def _answer(self, name: str, request: Request, envelope: Envelope) -> Reply | Failure:
        states, site = self.client_states, self.sites[name]
        try:
            with self.flops.count(site, request.kind):
                reply, states[name] = answer(self.client, site, states[name], request, envelope)
        except Exception as error:  # a site that raises gives no reply, as over a network
            return Failure(name, _plugins.describe(error), error)
        return reply
