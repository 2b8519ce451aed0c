"""FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

Che, Wu, Jin, Xia, Chen; 2025.

SHA, Sharpness-aware Hierarchical Aggregation: FedDAG's way to weigh models (see feddag for the whole).
Every site perturbs its model a little uphill; all sites say how well they do with the perturbed models of all. Who
scores well counts more, and each site's model is first averaged with its own better ones of earlier rounds.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from .. import tree
from ..errors import ConfigError
from ..method import Method, Sent, also, parameters
from ..server import Conversation, Reply, Request, Round, Server, by_size, uniform
from ..site import Site, derive
from ..tree import Tree

PRESETS = {"paper": {"rho": 1e-7}}

Norm = Literal["linf", "l2"]
OWNER = "sha"  # of what is on the shelf: a site's model of a round, by the names of both
LEAST, MOST = 1e-8, 1e8  # of a loss, which is divided by and may not be finite


def sha(
    method: Method,
    rho: Annotated[float, Field(ge=0)] = 0.05,
    norm: Norm = "l2",
    beta: Annotated[float, Field(ge=0)] = 0.3,
    history: Annotated[int, Field(ge=0)] = 4,
    evaluators: Annotated[int, Field(gt=0)] | None = None,
    exclude_self: bool = False,
    warmup: Annotated[int, Field(ge=0)] = 0,
) -> Method:
    """Weights by how well all sites do with each site's perturbed model, on top of any method that can be weighed."""
    if method.pooled:
        raise ConfigError("sha weighs sites, but this method pools the data of all in one place: leave one out")
    if method.weighting not in (by_size, uniform):
        raise ConfigError(
            "sha chooses how much replies count, but this method or a wrapper of it does that itself: leave one out"
        )

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        site.keeps_slopes = True
        site.nets["model"].zero_grad()  # what is found there afterwards is this site's
        reply, kept = method.client.handlers["train"](site, received, private)
        return reply | {"sha_sharp": uphill(reply["model"]["params"], site.nets["model"], rho, norm)}, kept

    def weigh(replies: list[Reply], kept: Tree, now: Round) -> Conversation:  # Algorithm 2
        sharp = {r.client: r.body["model"] | {"params": r.body["sha_sharp"]} for r in replies}
        verdicts = yield Request("sha_score", {"models": sharp}, judges(replies, evaluators, now), quorum=1)
        moves = {r.client: tree.sub(r.body["sha_sharp"], r.body["model"]["params"]) for r in replies}
        if now.number == 0 and rho:
            warn(min(map(share_changed, moves.values())), rho, norm)
        scores = {r.client: score(r.client, verdicts, exclude_self) for r in replies}  # line 2
        past, weights, models = kept["history"], {}, {}
        for name, own in ((r.client, {"model": r.body["model"], "score": scores[r.client]}) for r in replies):
            earlier, this = past.get(name, {}), f"{now.number:06}"
            merged = own if now.number < warmup else within(own, earlier, history, taker(now, name))  # lines 3 and 4
            models[name] = merged["model"]
            weights[name] = 1.0 if now.number < warmup else float(merged["score"]) ** beta  # line 6, Eq. 6
            past = past | {name: pruned(earlier | {this: own["score"]}, history)}
            if this in past[name]:
                now.shelf.put(OWNER, f"{name}/{this}", own["model"])
        shares = {name: torch.tensor(weight / sum(weights.values())) for name, weight in weights.items()}
        moved = {name: torch.tensor(length(move)) for name, move in moves.items()}
        told = {"scores": scores, "weights": shares, "moved": moved}
        return {"models": models, "weights": weights, "history": past, "told": told}

    def round(state: Tree, now: Round) -> Conversation:  # whatever the method says and hears, with replies weighed
        before = shelved(state["sha_history"], now)
        kept = {"history": before, "told": state["told"]}
        conversation = method.server.round(without(state, "sha_history", "told"), now)
        request = next(conversation)
        while True:
            replies = yield request
            if request.kind == "train":
                kept = yield from weigh(replies, kept, now)
                replies = [
                    Reply(r.client, r.body | {"model": kept["models"][r.client]}, kept["weights"][r.client], r.body)
                    for r in replies
                ]
            try:
                request = conversation.send(replies)
            except StopIteration as end:  # lines 7 and 8
                now.shelf.keep(OWNER, chain(named(before), named(kept["history"])))
                told = {**end.value.get("told", {}), **kept["told"]}  # what the method logs stays
                return {**end.value, "sha_history": kept["history"], "told": told}

    sends = also(method.sends, "train", sha_sharp=parameters("model", "params"))
    return replace(
        method,
        client=method.client._replace(handlers={**method.client.handlers, "train": train, "sha_score": judge}),
        server=Server(lambda nets: method.server.init(nets) | {"sha_history": {}, "told": {}}, round),
        weighting=None,
        sums=False,  # every site's model goes to all
        sends=also(sends, "sha_score", losses=Sent("scalars", one_for_each, positive=True)),
    )


def without(state: Tree, *names: str) -> Tree:
    return {name: part for name, part in state.items() if name not in names}


def one_for_each(nets: Tree, body: Tree) -> Any:
    """A loss for each model that is asked about."""
    return {name: torch.zeros(()) for name in body["models"]} if "models" in body else torch.zeros(())


def judge(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
    """How a site does with the models of all sites, on its validation images."""
    losses = {name: site.loss(model) for name, model in sorted(received["models"].items())}
    return {"losses": tree.map(lambda loss: loss.nan_to_num(MOST, MOST).clamp(LEAST, MOST), losses)}, private


def judges(replies: list[Reply], count: int | None, now: Round) -> tuple[str, ...]:
    """Who evaluates: all who trained in this round, or `count` of them drawn for it."""
    names = sorted(reply.client for reply in replies)
    if count is None or count >= len(names):
        return tuple(names)
    rng = torch.Generator().manual_seed(derive(now.seed, now.number, "sha"))
    return tuple(sorted(names[i] for i in torch.randperm(len(names), generator=rng)[:count].tolist()))


def uphill(params: Tree, net: nn.Module, rho: float, norm: Norm) -> Tree:
    """The parameters, `rho` along the gradient that the last step left in the network that was trained."""
    slopes = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in net.named_parameters()}
    if norm == "linf":
        return tree.map(lambda param, slope: param + rho * slope.sign(), params, slopes)  # type: ignore[no-any-return]
    steepness = float(tree.dot(slopes, slopes).sqrt())
    return tree.add(params, tree.scale(rho / max(steepness, 1e-12), slopes))


def length(move: Tree) -> float:
    """The l2 norm of a tree, whatever the order of its leaves."""
    return math.sqrt(math.fsum(float(leaf.double().square().sum()) for leaf in tree.leaves(move)))


def share_changed(move: Tree) -> float:
    """How many of the numbers a perturbation really moved, as floats go."""
    leaves = tree.leaves(move)
    return sum(int(leaf.count_nonzero()) for leaf in leaves) / sum(leaf.numel() for leaf in leaves)


def warn(changed: float, rho: float, norm: Norm) -> None:
    """Say that a perturbation is lost in rounding, if it is."""
    if changed < 0.5:
        logging.getLogger("fedbeyond").warning(
            "sha: a perturbation of rho=%g (norm=%s) changes only %.0f %% of the weights; the rest is lost in "
            "rounding, so that sharpness does not count: try a larger rho, as rho=0.05",
            *(rho, norm, 100 * changed),
        )


def score(
    name: str, verdicts: list[Reply], exclude_self: bool
) -> Tensor:  # Eq. 5, with the mean of losses for their sum
    """The better the judges do with a model, the higher its score."""
    others = [r.body["losses"][name] for r in verdicts if not (exclude_self and r.client == name)]
    losses = others or [r.body["losses"][name] for r in verdicts]  # judged by nobody but itself
    return 1 / torch.stack(losses).mean()


def within(own: Tree, scores: Tree, history: int, take: Callable[[str], Tree]) -> Tree:  # Sec. III-C3
    """A site's model and score, averaged with its latest ones of a higher score; models are taken one at a time."""
    better = [key for key in sorted(scores, reverse=True) if scores[key] > own["score"]][:history]
    earlier = ({"model": take(key), "score": scores[key]} for key in better)
    return tree.mean(chain([own], earlier), [1.0] * (1 + len(better)))


def pruned(scores: Tree, history: int) -> Tree:
    """Without the models that can never be chosen again, since enough newer ones score at least as high."""
    kept: Tree = {}
    for key in sorted(scores, reverse=True):
        if sum(bool(newer >= scores[key]) for newer in kept.values()) < history:
            kept[key] = scores[key]
    return kept


def taker(now: Round, client: str) -> Callable[[str], Tree]:
    """What takes a site's model of an earlier round from the shelf."""
    return lambda key: now.shelf.get(OWNER, f"{client}/{key}")


def named(past: Tree) -> Iterator[str]:
    """What a history has on the shelf."""
    return (f"{client}/{key}" for client, scores in past.items() for key in scores)


def shelved(past: Tree, now: Round) -> Tree:
    """A history as scores alone; a run that an earlier version began still has models beside them in its state."""
    for name in named(past):
        client, _, key = name.rpartition("/")
        if isinstance(entry := past[client][key], dict):
            now.shelf.put(OWNER, name, entry["model"])
            past = past | {client: past[client] | {key: entry["score"]}}
    return past
