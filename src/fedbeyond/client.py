"""The client side of a method: handlers for requests, two-phase private state, and ordinary local training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial, reduce
from itertools import count
from operator import add
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from . import timer, tree
from .batch import Batch
from .classifier import Classifier, read, statistics_kept, write
from .errors import FederationError
from .optimizers import Optimizer, plain_sgd
from .server import Envelope, Reply, Request
from .site import Site, forked_rng
from .tree import Tree

Handler = Callable[[Site, Tree, Tree], tuple[Tree, Tree]]  # (site, received, private) -> (reply, private)
ClientState = Tree  # the private state of a site: committed, pending, and before the current round
Postprocess = Callable[[Site, int, Request, Tree], Tree]  # (site, round, request, reply) -> reply as sent


class Client(NamedTuple):
    """A client as pure functions: initial private state, one handler per kind of request, optional postprocessing."""

    init: Callable[[Site], Tree]
    handlers: Mapping[str, Handler]
    postprocess: Postprocess | None = None  # applied last to every reply, after all wrappers

    def also(self, **handlers: Handler) -> "Client":
        """Return the client with further handlers, or with others in their place."""
        return self._replace(handlers={**self.handlers, **handlers})


def enrol(client: Client, site: Site) -> ClientState:
    """Return the client state at enrolment: the initial private state is committed, nothing is pending."""
    with forked_rng():
        return {"private": tree.to("cpu", client.init(site.reseed(0, "init")))}


def answer(
    client: Client, site: Site, client_state: ClientState, request: Request, envelope: Envelope
) -> tuple[Reply, ClientState]:
    """Handle a request and return the reply and the new client state.

    The new private state is pending until the server's next request confirms that the reply was accepted; otherwise it
    is dropped. So a lost or rejected reply never puts site and server out of step.
    Trees are sent and stored in main memory; handlers receive them on the site's device.
    """
    state = commit(client, site, client_state, envelope)
    with forked_rng():  # restore the global random state afterwards
        site.reseed(envelope.round, request.kind)
        received, previous = request.body, state["private"]
        if site.device != "cpu":
            received, previous = tree.to(site.device, received), tree.to(site.device, previous)
        with site.autocast():
            body, private = client.handlers[request.kind](site, received, previous)
        if site.mixed_precision:
            body, private = tree.map(_to_float32, body), tree.map(_to_float32, private)
        if site.device != "cpu":
            body, private = tree.to("cpu", body), tree.to("cpu", private)
    state["pending"] = {"private": private, "ticket": torch.tensor(envelope.ticket)}
    sent = client.postprocess(site, envelope.round, request, body) if client.postprocess else body
    return Reply(site.name, sent, site.size), state


def _to_float32(leaf: Tensor) -> Tensor:
    return leaf.float() if leaf.dtype == torch.bfloat16 else leaf


def commit(client: Client, site: Site, client_state: ClientState, envelope: Envelope) -> ClientState:
    """Commit or roll back the client state to the ticket of the last reply that the server accepted.

    A server that stops in the middle of a round repeats the whole round. So the state `before` a round is kept until
    the next round begins, even if the server has accepted later replies of the same round.
    """
    accepted = envelope.accepted.get(site.name)
    if accepted is None and "ticket" in client_state:  # the run was restarted from its first round
        client_state = enrol(client, site)
    current = next((state for state in _states(client_state) if _ticket(state) == accepted), None)
    if current is None:
        raise FederationError(
            f"{site.name} has no private state for exchange {accepted}, which the server resumes from; restore the "
            "site's state folder of this run, or restart the run"
        )
    same_round = "round" in client_state and int(client_state["round"]) == envelope.round
    before = client_state.get("before", client_state) if same_round else current
    committed = _state(current) | {"round": torch.tensor(envelope.round)}
    return committed if before is current else committed | {"before": _state(before)}


def without_rollback(client_state: ClientState) -> ClientState:
    """Return the client state without its rollback copy, for use between rounds."""
    return {name: subtree for name, subtree in client_state.items() if name != "before"}


def private_bytes(client_state: ClientState) -> int:
    """Return the size in bytes of the newest private state, pending or committed."""
    return tree.size(client_state.get("pending", client_state)["private"])


def _states(client_state: ClientState) -> Iterator[Tree]:
    """Yield the states the server may resume from: committed, before the round, pending."""
    yield client_state
    yield from (client_state[name] for name in ("before", "pending") if name in client_state)


def _ticket(state: Tree) -> int | None:
    """Return the ticket of the exchange that produced a state, or None for the state of enrolment."""
    return int(state["ticket"]) if "ticket" in state else None


def _state(client_state: ClientState) -> Tree:
    return {name: client_state[name] for name in ("private", "ticket") if name in client_state}


def make_optimizer(
    optimizer: Optimizer, params: Iterable[nn.Parameter], site: Site, rate: float = 1.0
) -> torch.optim.Optimizer:
    """Create an optimizer whose learning rates are scaled by this round's schedule and by `rate`."""
    torch_optimizer = optimizer(params)
    for group in torch_optimizer.param_groups:
        group["lr"] *= site.lr_factor * rate
    return torch_optimizer


def descend(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], *nets: nn.Module) -> None:
    """Take one optimizer step on `loss`; only the parameters in `optimizer` receive gradients.

    If the optimizer evaluates the loss twice (SAM), the second pass leaves the running statistics of `nets` unchanged.
    """
    trained = [param for group in optimizer.param_groups for param in group["params"]]
    evaluations = count()

    def backward() -> Tensor:
        optimizer.zero_grad()
        with timer.section("forward"), statistics_kept(*nets) if next(evaluations) else nullcontext():
            value = loss()
        with timer.section("backward"):
            value.backward(inputs=trained)
        return value

    with timer.section("optimizer"):
        optimizer.step(backward)  # type: ignore[arg-type]


class Local:
    """The state of local training that loss terms and `finish` can read.

    Training starts from the received model, or from the parameters in `received["start"]` if that key is present.
    Networks in `along` are trained with the same loss; they come from the server or from the site's private state.
    """

    def __init__(
        self, site: Site, received: Tree, private: Tree, optimizer: Optimizer, along: Sequence[str] = ()
    ) -> None:
        self.site, self.received, self.private = site, received, private
        self.start: Tree = received.get("start", received["model"]["params"])
        self.net = write(cast(Classifier, site.nets["model"]), received["model"] | {"params": self.start}).train()
        self.along = {name: write(site.nets[name], (private | received)[name]).train() for name in along}
        trained = [param for net in (self.net, *self.along.values()) for param in net.parameters()]
        self.optimizer, self.steps = make_optimizer(optimizer, trained, site), 0
        self._frozen: dict[str, nn.Module] = {}

    @cached_property
    def params(self) -> Tree:
        """The current parameters by name; training updates them in place."""
        return dict(self.net.named_parameters())

    def frozen(self, name: str, state: Tree) -> nn.Module:
        """Return the site's network `name` with `state`, frozen and in evaluation mode; it is written once a round."""
        if name not in self._frozen:
            self._frozen[name] = write(self.site.nets[name], state).eval().requires_grad_(False)
        return self._frozen[name]

    @property
    def guide(self) -> Classifier:
        """The received model as a frozen network."""
        return cast(Classifier, self.frozen("guide", self.received["model"]))


Term = Callable[[Local, Batch], Tensor]


def no_state(site: Site) -> Tree:
    """Return an empty private state."""
    return {}


def zero_params(name: str) -> Callable[[Site], Tree]:
    """Return an `init` for a private state with one entry: zeros in the shape of the model's parameters."""
    return lambda site: {name: tree.zeros(read(site.nets["model"])["params"])}


def upload(local: Local) -> tuple[Tree, Tree]:
    """Send the model and the shared `along` networks; keep private state and the other `along` networks."""
    trained = {name: read(net) for name, net in local.along.items()}
    shared = {name: state for name, state in trained.items() if name in local.received}
    return {"model": read(local.net)} | shared, local.private | {n: t for n, t in trained.items() if n not in shared}


def gradient(local: Local, term: Term) -> Tree:
    """Compute the gradient of a term at the starting parameters, averaged over one pass through the site's images.

    Running statistics do not change. Afterwards the network holds the starting parameters, so read the trained
    parameters first.
    """
    write(local.net, local.received["model"] | {"params": local.start})
    average = tree.Mean()
    with statistics_kept(local.net):
        for batch in local.site.batches(1):
            with timer.section("forward"):
                loss = term(local, batch)
            with timer.section("backward"):
                gradients = torch.autograd.grad(loss, list(local.params.values()), materialize_grads=True)
            average.add(dict(zip(local.params, gradients, strict=True)), len(batch.y))
    return average.result  # type: ignore[no-any-return]


def training(
    *terms: Term,
    optimizer: Optimizer = plain_sgd,
    init: Callable[[Site], Tree] = no_state,
    finish: Callable[[Local], tuple[Tree, Tree]] = upload,
    epochs: int | None = None,
    along: Sequence[str] = (),
) -> Client:
    """Return a client that minimises the sum of `terms`, then calls `finish` for its reply and private state.

    `along` names networks that are trained with the model. Those that the server holds are sent back. The others are
    private to the site, and `init` must create them.
    """

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        local = Local(site, received, private, optimizer, along)

        def loss(batch: Batch) -> Tensor:
            return reduce(add, [term(local, batch) for term in terms])

        for batch in site.batches(epochs):
            descend(local.optimizer, partial(loss, batch), local.net, *local.along.values())
            local.steps += 1
        if not site.keeps_gradients:
            local.optimizer.zero_grad()  # free the gradients before the model is copied
        return finish(local)

    return Client(init, {"train": train})
