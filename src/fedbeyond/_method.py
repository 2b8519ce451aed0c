"""The `Method` record, and the declaration of what leaves a site."""

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field

from .batch import Augment, Sampler, chain, plain, shuffled
from .classifier import Networks, Task, classifier, for_images
from .client import Client
from .server import Server, Weighting, by_size
from .tree import Tree

Share = Annotated[float, Field(ge=0, le=1)]  # an option from 0 to 1
BelowOne = Annotated[float, Field(ge=0, lt=1)]  # an option from 0 to less than 1

Kind = Literal["parameters", "statistics", "scalars", "data-derived"]


class Sent(NamedTuple):
    """The declaration of one entry of a reply: its kind and its shape.

    `like` returns an example with the right keys, shapes and dtypes, given the shared networks as trees and the body
    of the request.
    """

    kind: Kind
    like: Callable[[Tree, Tree], Any]
    positive: bool = False  # a scalar that the server divides by or multiplies with: must be > 0
    within: tuple[float, float] | None = None  # the range of every number in it, both ends included
    since: tuple[str, ...] = ()  # path in the request's body that training started from; (): it did not
    evaluates: str = ""  # the split of the site whose samples it scores models on, "train" or "val"; "": it is no score


def parameters(*path: str) -> Sent:
    """Declare a network (`"model"`) or a part of it (`"model", "params"`), trained from what was received there."""

    def like(nets: Tree, body: Tree) -> Any:
        for key in path:
            nets = nets[key]
        return nets

    return Sent("parameters", like, since=path)


def starting_point(body: Tree, path: tuple[str, ...]) -> Tree:
    """Return the values at `path` of a request from which training started, or {} if there are none.

    If the request has a `start`, training started from these parameters instead of the model's.
    """
    values = body | ({"model": body["model"] | {"params": body["start"]}} if "start" in body else {})
    for key in path:
        values = values.get(key, {})
    return values if path else {}


scalar = Sent("scalars", lambda nets, body: torch.zeros(()))
positive = scalar._replace(positive=True)
MAX_LOSS = 1e8  # a larger loss is a lie, or training that diverged
loss = scalar._replace(within=(0.0, MAX_LOSS))

Sends = Mapping[str, Mapping[str, Sent]]  # kind of request -> entry of the reply -> declaration


def also(sends: Sends, kind: str, **more: Sent) -> Sends:
    """Return the declaration with the entries `more` added to the reply to `kind`."""
    return {**sends, kind: {**sends.get(kind, {}), **more}}


class Privacy(NamedTuple):
    """A differential privacy guarantee, and the client and declaration that it holds for."""

    epsilon: Callable[[int], float]  # number of replies of one site -> epsilon; infinite: no guarantee
    delta: float
    client: Client
    sends: Sends
    noise: float  # standard deviation of the noise of one reply, over the sensitivity


def global_model(state: Tree) -> Tree:
    """Return the global model as the only model to evaluate."""
    return {"model": state["model"]}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of federated domain generalization: client, server, and what surrounds them."""

    client: Client
    server: Server
    weighting: Weighting | None = by_size  # None: the server computes its own weights
    sends: Sends = field(default_factory=lambda: {"train": {"model": parameters("model")}})
    keeps: Set[str] = frozenset()  # names of the entries of a site's private state
    uses_total: Set[str] = frozenset()  # what depends on the total number of rounds, as in "ga(decay=true)"
    networks: Callable[[Task], Networks] = classifier
    needs: Set[str] = frozenset()  # what it uses of a network beyond logits: features, maps, pooled, stages
    shapes_features: bool = False  # it acts on features alone, so that it does nothing if only the head is trained
    inputs_unchanged: bool = False  # inputs reach networks as they are: frozen layers may be computed once for each
    shared: tuple[str, ...] = ("model",)  # networks that the server holds
    augment: Augment = plain
    sampler: Sampler = shuffled
    eval_models: Callable[[Tree], Mapping[str, Tree]] = global_model  # server state -> models; mean score is reported
    min_clients: int = 1  # minimum number of sites; of domains, for a pooled method
    pooled: bool = False  # no federation: one site holds all data, and `batch.origin` is the domain of each image
    amplitudes: bool = True  # False: the method gives all images the same Fourier amplitudes
    public: bool = False  # every site also holds the same unlabelled images, `site.data["public"]`
    linear_aggregation: bool = False  # the server uses only weighted means of the replies, never a single reply
    privacy: Privacy | None = None  # guarantee for everything that leaves a site
    reestimate: bool = False  # the sites re-estimate BatchNorm statistics of evaluated models

    @property
    def keeps_privacy(self) -> bool:
        """Whether client and declaration are still those of the privacy guarantee; true without a guarantee."""
        return self.privacy is None or (self.client is self.privacy.client and self.sends is self.privacy.sends)

    def epsilon_after(self, rounds: int) -> float:
        """Return epsilon for a site that replies to each kind of request once in each of `rounds` rounds."""
        return self.privacy.epsilon(rounds * len(self.sends)) if self.privacy else math.inf


def augmented(method: Method, name: str, augment: Augment) -> Method:
    """Return the method with an augmentation of images after its own; `name` is that of the wrapper, for errors."""
    networks = for_images(name, method.networks)
    return replace(method, augment=chain(method.augment, augment), networks=networks, inputs_unchanged=False)
