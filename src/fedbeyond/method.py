"""The record that a method is, and the declaration of what leaves a site under it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from .batch import Augment, Sampler, plain, shuffled
from .classifier import Networks, Task, classifier
from .client import Client
from .server import Server, Weighting, by_size
from .tree import Tree

Kind = Literal["parameters", "statistics", "scalars", "data-derived"]


class Sent(NamedTuple):
    """One named thing that leaves a site: what kind it is, and what it looks like.

    `like` makes an example of it from the trees of the shared networks and the body of the request.
    """

    kind: Kind
    like: Callable[[Tree, Tree], Any]
    positive: bool = False  # a scalar that a server divides by, or multiplies with
    since: tuple[str, ...] = ()  # where in the request's body it set out from, if it is a step away from something


def parameters(*path: str) -> Sent:
    """A network (`"model"`) or a part of one (`"model", "params"`), as training left what was received there."""

    def like(nets: Tree, body: Tree) -> Any:
        for key in path:
            nets = nets[key]
        return nets

    return Sent("parameters", like, since=path)


scalar = Sent("scalars", lambda nets, body: torch.zeros(()))
positive = scalar._replace(positive=True)

Sends = Mapping[str, Mapping[str, Sent]]  # kind of request -> name -> what leaves


def also(sends: Sends, kind: str, **more: Sent) -> Sends:
    """The same declaration with `more` leaving in the answer to `kind`."""
    return {**sends, kind: {**sends.get(kind, {}), **more}}


class Privacy(NamedTuple):
    """What noise promises of all that leaves a site, and of what: the answers of this client, as declared there."""

    epsilon: Callable[[int], float]  # after so many answers of one site; infinite, if nothing is promised
    delta: float
    client: Client
    sends: Sends


def the_model(state: Tree) -> Tree:
    """The global model, and no other."""
    return {"model": state["model"]}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of federated domain generalization."""

    client: Client
    server: Server
    weighting: Weighting | None = by_size  # None: the server weighs for itself
    sends: Sends = field(default_factory=lambda: {"train": {"model": parameters("model")}})
    networks: Callable[[Task], Networks] = classifier
    shared: tuple[str, ...] = ("model",)  # the networks the server holds
    augment: Augment = plain
    sampler: Sampler = shuffled
    judged: Callable[[Tree], Mapping[str, Tree]] = the_model  # of the server's state: their mean measure is reported
    least: int = 1  # sites that it needs; of a pooled method: domains
    pooled: bool = False  # no federation: one site holds the data of all, and knows which image is whose
    amplitudes: bool = True  # False: those of an image do not matter, all are given the same
    public: bool = False  # every site also holds the same images without labels, `site.data["public"]`
    sums: bool = False  # the server needs no more than weighted means of what the sites send, never a single reply
    privacy: Privacy | None = None  # what is promised of what leaves a site
    reestimate: bool = False  # BatchNorm statistics of evaluated models are measured anew at the sites

    @property
    def sealed(self) -> bool:
        """Whether what leaves a site is still that of which privacy was promised, if any was."""
        return self.privacy is None or (self.client is self.privacy.client and self.sends is self.privacy.sends)

    def spends(self, rounds: int) -> float:
        """Epsilon for a site that answers whatever it may be asked in so many rounds: each kind of request once."""
        return self.privacy.epsilon(rounds * len(self.sends)) if self.privacy else math.inf
