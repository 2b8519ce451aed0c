"""FedDAG: Federated Domain Adversarial Generation Towards Generalizable Medical Image Analysis.

Che, Wu, Jin, Xia, Chen; 2025.

SHA, Sharpness-aware Hierarchical Aggregation: FedDAG's aggregation (see feddag for the complete method).
Every site moves its model a little uphill, and all sites evaluate these perturbed models. A model with a better score
gets a larger weight. Before that, each site's model is averaged with its own better models of earlier rounds.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from .. import tree
from .._method import MAX_LOSS, Method, Sent, also, parameters
from ..errors import ConfigError
from ..server import Conversation, Reply, Request, Round, Server, by_size, uniform
from ..site import Site, derive
from ..tree import Tree

PRESETS = {"paper": {"rho": 1e-7}}

Rho = Annotated[NonNegativeFloat, "size of the perturbation, rho"]
Norm = Annotated[Literal["linf", "l2"], "perturb along the gradient's sign, or its direction"]
Beta = Annotated[NonNegativeFloat, "exponent of the scores in the weights, beta in Eq. 6; 0: equal weights"]
History = Annotated[NonNegativeInt, "earlier models of a site that are averaged in, at most; k"]
Evaluators = Annotated[PositiveInt | None, "sites that evaluate the models, drawn for each round; none: all"]
ExcludeSelf = Annotated[bool, "leave a site's own loss out of its model's score"]
OWNER = "sha"  # of entries in the model store: a site's model of one round, named "<site>/<round>"
MIN_LOSS = 1e-8  # scores divide by a loss, which may also not be finite


def sha(
    method: Method,
    rho: Rho = 0.05,
    norm: Norm = "l2",
    beta: Beta = 0.3,
    history: History = 4,
    evaluators: Evaluators = None,
    exclude_self: ExcludeSelf = False,
    warmup: Annotated[NonNegativeInt, "first rounds, with equal weights and without earlier models"] = 0,
) -> Method:
    """Weight each site's model by how well all sites do with a perturbed copy of it."""
    if method.pooled:
        raise ConfigError("sha weights sites, but this method pools the data of all sites in one place: remove sha")
    if method.weighting not in (by_size, uniform):
        raise ConfigError(
            "sha sets the aggregation weights, but this method or a wrapper of it does that itself: remove one of them"
        )

    def train(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        site.keeps_gradients = True
        site.nets["model"].zero_grad()  # gradients found there after training are this site's
        reply, kept = method.client.handlers["train"](site, received, private)
        return reply | {"sha_sharp": perturb(reply["model"]["params"], site.nets["model"], rho, norm)}, kept

    def weigh(replies: list[Reply], kept: Tree, now: Round) -> Conversation:  # Algorithm 2
        sharp = {r.client: r.body["model"] | {"params": r.body["sha_sharp"]} for r in replies}
        evaluations = yield Request(
            "sha_score", {"models": sharp}, choose_evaluators(replies, evaluators, now), quorum=1
        )
        moves = {r.client: tree.sub(r.body["sha_sharp"], r.body["model"]["params"]) for r in replies}
        if now.number == 0 and rho:
            warn(min(map(share_changed, moves.values())), rho, norm)
        scores = {r.client: score(r.client, evaluations, exclude_self) for r in replies}  # line 2
        past, weights, models = kept["history"], {}, {}
        for name, new in ((r.client, {"model": r.body["model"], "score": scores[r.client]}) for r in replies):
            earlier, key = past.get(name, {}), f"{now.number:06}"
            read = partial(stored_model, now, name)
            merged = new if now.number < warmup else average_with_history(new, earlier, history, read)  # lines 3 and 4
            models[name] = merged["model"]
            weights[name] = 1.0 if now.number < warmup else float(merged["score"]) ** beta  # line 6, Eq. 6
            past = past | {name: pruned(earlier | {key: new["score"]}, history)}
            if key in past[name]:
                now.store.put(OWNER, f"{name}/{key}", new["model"])
        shares = {name: torch.tensor(weight / sum(weights.values())) for name, weight in weights.items()}
        moved = {name: torch.tensor(length(move)) for name, move in moves.items()}
        diagnostics = {"scores": scores, "weights": shares, "moved": moved}
        return {"models": models, "weights": weights, "history": past, "diagnostics": diagnostics}

    def round(state: Tree, now: Round) -> Conversation:  # the method's own round, with its training replies weighted
        before = state["sha_history"]
        kept = {"history": before, "diagnostics": state["diagnostics"]}
        own = {name: part for name, part in state.items() if name not in ("sha_history", "diagnostics")}
        conversation = method.server.round(own, now)
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
                now.store.keep(OWNER, chain(stored_names(before), stored_names(kept["history"])))
                diagnostics = {**end.value.get("diagnostics", {}), **kept["diagnostics"]}  # the method's stay
                return {**end.value, "sha_history": kept["history"], "diagnostics": diagnostics}

    sends = also(method.sends, "train", sha_sharp=parameters("model", "params"))
    losses = Sent("scalars", example_losses, positive=True, within=(0.0, MAX_LOSS), evaluates="val")
    return replace(
        method,
        client=method.client.also(train=train, sha_score=evaluate),
        server=Server(lambda nets: method.server.init(nets) | {"sha_history": {}, "diagnostics": {}}, round),
        weighting=None,
        linear_aggregation=False,  # every site's model is sent to all sites
        sends=also(sends, "sha_score", losses=losses),
    )


def example_losses(nets: Tree, body: Tree) -> Any:
    """Return an example of the reply: one loss for each model in the request."""
    return {name: torch.zeros(()) for name in body["models"]} if "models" in body else torch.zeros(())


def evaluate(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
    """Return the losses of all sites' perturbed models on this site's validation images."""
    losses = {name: site.loss(model) for name, model in sorted(received["models"].items())}
    return {
        "losses": tree.map(lambda loss: loss.nan_to_num(MAX_LOSS, MAX_LOSS).clamp(MIN_LOSS, MAX_LOSS), losses)
    }, private


def choose_evaluators(replies: list[Reply], count: int | None, now: Round) -> tuple[str, ...]:
    """Return the sites that evaluate: all that trained in this round, or `count` of them, drawn for this round."""
    names = sorted(reply.client for reply in replies)
    if count is None or count >= len(names):
        return tuple(names)
    rng = torch.Generator().manual_seed(derive(now.seed, now.number, "sha"))
    return tuple(sorted(names[i] for i in torch.randperm(len(names), generator=rng)[:count].tolist()))


def perturb(params: Tree, net: nn.Module, rho: float, norm: Norm) -> Tree:
    """Move the parameters by `rho` along the gradient that the last training step left in the network."""
    slopes = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in net.named_parameters()}
    if norm == "linf":
        return tree.map(lambda param, slope: param + rho * slope.sign(), params, slopes)  # type: ignore[no-any-return]
    steepness = float(tree.dot(slopes, slopes).sqrt())
    return tree.add(params, tree.scale(rho / max(steepness, 1e-12), slopes))


def length(move: Tree) -> float:
    """Return the l2 norm of a tree; it does not depend on the order of the leaves."""
    return math.sqrt(math.fsum(float(leaf.double().square().sum()) for leaf in tree.leaves(move)))


def share_changed(move: Tree) -> float:
    """Return the share of the parameters that a perturbation changed; rounding may cancel it."""
    leaves = tree.leaves(move)
    return sum(int(leaf.count_nonzero()) for leaf in leaves) / sum(leaf.numel() for leaf in leaves)


def warn(changed: float, rho: float, norm: Norm) -> None:
    """Log a warning if most of a perturbation is lost in rounding."""
    if changed < 0.5:
        logging.getLogger("fedbeyond").warning(
            "sha: a perturbation of rho=%g (norm=%s) changes only %.0f %% of the weights; the rest is lost in "
            "rounding, so that sharpness has no effect: try a larger rho, such as rho=0.05",
            *(rho, norm, 100 * changed),
        )


def score(name: str, evaluations: list[Reply], exclude_self: bool) -> Tensor:  # Eq. 5, with the mean instead of the sum
    """Return a model's score: one over its mean loss at the evaluating sites."""
    others = [r.body["losses"][name] for r in evaluations if not (exclude_self and r.client == name)]
    losses = others or [r.body["losses"][name] for r in evaluations]  # only the site itself evaluated it
    return 1 / torch.stack(losses).mean()


def average_with_history(new: Tree, scores: Tree, history: int, read: Callable[[str], Tree]) -> Tree:  # Sec. III-C3
    """Average a site's model and score with its latest earlier ones of a higher score; read one model at a time."""
    better = [key for key in sorted(scores, reverse=True) if scores[key] > new["score"]][:history]
    earlier = ({"model": read(key), "score": scores[key]} for key in better)
    return tree.mean(chain([new], earlier), [1.0] * (1 + len(better)))


def pruned(scores: Tree, history: int) -> Tree:
    """Drop the scores of models that `within` can never use again: enough newer ones score at least as high."""
    kept: Tree = {}
    for key in sorted(scores, reverse=True):
        if sum(bool(newer >= scores[key]) for newer in kept.values()) < history:
            kept[key] = scores[key]
    return kept


def stored_model(now: Round, client: str, key: str) -> Tree:
    """Read a site's model of an earlier round from the model store."""
    return now.store.get(OWNER, f"{client}/{key}")


def stored_names(past: Tree) -> Iterator[str]:
    """Yield the names of a history's models in the model store."""
    return (f"{client}/{key}" for client, scores in past.items() for key in scores)
