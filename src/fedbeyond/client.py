"""What a site does: its answer to each kind of request, and the builder for ordinary local training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial, reduce
from itertools import count
from operator import add
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn

from . import _memory, tree
from ._precision import computing, is_halved, whole
from .batch import Batch
from .classifier import read, resting, take, write
from .errors import FederationError
from .optimizers import Optimizer, in_passing, plain_sgd, separable
from .server import Post, Reply, Request
from .site import Site
from .timer import part
from .tree import Tree

Handler = Callable[[Site, Tree, Tree], tuple[Tree, Tree]]  # (site, received, private) -> (reply, private)
Seal = Callable[[Site, int, Request, Tree], Tree]  # (site, round, request, reply) -> what leaves


class Client(NamedTuple):
    """The private state a site starts with, its answer to each kind of request, and what is done to all of them."""

    init: Callable[[Site], Tree]
    handlers: Mapping[str, Handler]
    seal: Seal | None = None  # the last thing that happens to an answer, whoever else has changed it


def enrol(client: Client, site: Site) -> Tree:
    """A site's slots at the start: a private state that counts, and none that is pending."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        return {"private": tree.to("cpu", client.init(site.reseed(0, "init")))}


def answer(client: Client, site: Site, slots: Tree, request: Request, post: Post) -> tuple[Reply, Tree]:
    """A site's reply to a request, and its slots afterwards.

    What a site wants to keep is only pending until the server says, with its next request, that it accepted the
    reply; otherwise it is dropped. So a reply that is lost or refused never leaves site and server out of step.
    Trees travel and rest in main memory; a handler finds them on its site's device.
    """
    kept = settle(client, site, slots, post)
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # reseeding is nobody else's business
        site.reseed(post.round, request.kind)
        received, known = request.body, kept["private"]
        if site.device != "cpu":
            received, known = tree.to(site.device, received), tree.to(site.device, known)
        with computing(site.device, *site.nets.values()):
            body, private = client.handlers[request.kind](site, received, known)
        if is_halved(*site.nets.values()):
            body, private = whole(body), whole(private)
        if site.device != "cpu":
            body, private = tree.to("cpu", body), tree.to("cpu", private)
    kept["pending"] = {"private": private, "ticket": torch.tensor(post.ticket)}
    leaving = client.seal(site, post.round, request, body) if client.seal else body
    return Reply(site.name, leaving, site.size), kept


def settle(client: Client, site: Site, slots: Tree, post: Post) -> Tree:
    """The slots once the state that the server counts on is the one that counts.

    A server that stops in the middle of a round plays the round again. So a site holds on to the state `before` the
    round until the next one begins, though the server accepted more in the meantime.
    """
    named = post.accepted.get(site.name)
    if named is None and "ticket" in slots:  # the run begins again
        slots = enrol(client, site)
    current = next((one for one in _states(slots) if _ticket(one) == named), None)
    if current is None:
        raise FederationError(
            f"{site.name} has no private state of exchange {named}, from which the server goes on; bring back what the "
            "site kept of this run, or begin the run again"
        )
    begun = "round" in slots and int(slots["round"]) == post.round
    before = slots.get("before", slots) if begun else current
    kept = _state(current) | {"round": torch.tensor(post.round)}
    return kept if before is current else kept | {"before": _state(before)}


def rested(slots: Tree) -> Tree:
    """A site's slots between rounds, when nobody goes back to the state before the last one."""
    return {name: part for name, part in slots.items() if name != "before"}


def weight(slots: Tree) -> int:
    """Bytes of what a site keeps for its next answer."""
    return tree.size(slots.get("pending", slots)["private"])


def _states(slots: Tree) -> Iterator[Tree]:
    """The states that a server may name, each with the ticket it was made under but the one from enrolment."""
    yield slots
    yield from (slots[name] for name in ("before", "pending") if name in slots)


def _ticket(state: Tree) -> int | None:
    return int(state["ticket"]) if "ticket" in state else None


def _state(held: Tree) -> Tree:
    return {name: held[name] for name in ("private", "ticket") if name in held}


def stepper(
    optimizer: Optimizer, params: Iterable[nn.Parameter], site: Site, rate: float = 1.0
) -> torch.optim.Optimizer:
    """An optimizer for some parameters at this round's pace, times `rate`."""
    made = optimizer(params)
    for group in made.param_groups:
        group["lr"] *= site.pace * rate
    return made


def descend(stepper: torch.optim.Optimizer, loss: Callable[[], Tensor], *nets: nn.Module) -> None:
    """One step that lowers `loss`, moving only the parameters that `stepper` holds: all else is as if frozen.

    An optimizer that looks twice (SAM) leaves the running statistics of `nets` alone the second time.
    """
    moved = [param for group in stepper.param_groups for param in group["params"]]
    looks = count()

    def backward() -> Tensor:
        stepper.zero_grad()
        with part("forward"), resting(*nets) if next(looks) else nullcontext():
            value = loss()
        with part("backward"):
            value.backward(inputs=moved)
        return value

    with part("optimizer"):
        stepper.step(backward)  # type: ignore[arg-type]


class Local:
    """What a loss term can see while a site trains.

    Training begins with the received model, or with the parameters received as `start` if they differ from its own.
    Networks `along` with it are trained by the same loss; they come from the server, or are the site's own.
    """

    def __init__(
        self, site: Site, received: Tree, private: Tree, optimizer: Optimizer, along: Sequence[str] = ()
    ) -> None:
        self.site, self.received, self.private = site, received, private
        self.start: Tree = received.get("start", received["model"]["params"])
        self.net = write(site.nets["model"], received["model"] | {"params": self.start}).train()
        self.along = {name: write(site.nets[name], (private | received)[name]).train() for name in along}
        moving = [param for net in (self.net, *self.along.values()) for param in net.parameters()]
        self.stepper, self.steps = stepper(optimizer, moving, site), 0
        self.lean = False  # whether room for gradients and copies is saved

    @cached_property
    def params(self) -> Tree:
        """The parameters as they move."""
        return dict(self.net.named_parameters())

    @cached_property
    def guide(self) -> nn.Module:
        """The received model, to be asked but not trained."""
        return write(self.site.nets["guide"], self.received["model"]).eval().requires_grad_(False)


Term = Callable[[Local, Batch], Tensor]
SEPARABLE: WeakSet[Term] = WeakSet()  # terms that take no parameter for a constant: each may move in its turn


def nothing(site: Site) -> Tree:
    """No private state."""
    return {}


def upload(local: Local) -> tuple[Tree, Tree]:
    """Send the model and what came along with it, keep what was kept."""
    trained = {name: read(net) for name, net in local.along.items()}
    sent = {name: tree for name, tree in trained.items() if name in local.received}
    model = take(local.net) if local.lean else read(local.net)
    return {"model": model} | sent, local.private | {n: t for n, t in trained.items() if n not in sent}


def gradient(local: Local, term: Term) -> Tree:
    """Compute the gradient of a term where training started, averaged over one pass through the site's images.

    Running statistics do not change. The network then holds the starting parameters: read the trained ones before.
    """
    write(local.net, local.received["model"] | {"params": local.start})
    average = tree.Mean()
    with resting(local.net):
        for batch in local.site.batches(1):
            with part("forward"):
                loss = term(local, batch)
            with part("backward"):
                slopes = torch.autograd.grad(loss, list(local.params.values()), materialize_grads=True)
            average.add(dict(zip(local.params, slopes, strict=True)), len(batch.y))
    return average.result  # type: ignore[no-any-return]


def training(
    *terms: Term,
    optimizer: Optimizer = plain_sgd,
    init: Callable[[Site], Tree] = nothing,
    finish: Callable[[Local], tuple[Tree, Tree]] = upload,
    epochs: int | None = None,
    along: Sequence[str] = (),
) -> Client:
    """A client that minimises the sum of `terms`; `finish` says what it then sends and keeps.

    `along` names networks that are trained with the model: those that the server holds are sent back, others stay
    with the site, whose `init` then makes the first of them.
    """

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        local = Local(site, received, private, optimizer, along)

        def loss(batch: Batch) -> Tensor:
            return reduce(add, [term(local, batch) for term in terms])

        if _memory.scarce and not site.keeps_slopes:
            local.lean = separable(local.stepper) and all(term in SEPARABLE for term in terms)
        with in_passing(local.stepper) if local.lean else nullcontext():
            for batch in site.batches(epochs):
                descend(local.stepper, partial(loss, batch), local.net, *local.along.values())
                local.steps += 1
        if not site.keeps_slopes:
            local.stepper.zero_grad()  # as large as the model, which is about to be copied
        return finish(local)

    return Client(init, {"train": train})
