"""Learning Differentially Private Recurrent Language Models.

McMahan, Ramage, Talwar, Zhang; ICLR 2018; https://arxiv.org/abs/1710.06963

Whole sites are protected, as there and in Geyer, Klein and Nabi (2017, https://arxiv.org/abs/1712.07557), by clipping
what a site moves and adding Gaussian noise (Abadi and others, CCS 2016, https://arxiv.org/abs/1607.00133); but here
each site adds its own, so that no server need be trusted. Over any method: all that leaves a site in one answer is a
vector, of what was received and trained the step; it is clipped to the length C, and leaves with noise N(0, (2 C z)^2).
"""

import hmac
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import shake_256
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from .. import tree
from ..classifier import norms
from ..errors import ConfigError
from ..method import Method, Privacy
from ..server import MAX_WEIGHT, Request
from ..site import Site
from ..tree import Tree
from .privacy import epsilon

LEAST = 0.01  # of clip and noise together: what is left of a number that must be positive, when noise takes it below


def dp(
    method: Method,
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0,
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5,
) -> Method:
    """Answers clipped to the length `clip`, with noise 2 * clip * `noise` wide on every number, over any method."""
    if method.pooled:
        raise ConfigError(
            "dp blurs what leaves a site, but this method pools the data of all in one place: leave it out"
        )
    if method.public:
        raise ConfigError("dp would blur how many public images a site holds, by which this method asks: leave one out")
    if method.privacy:
        raise ConfigError("dp is there twice, and what noise promises is reckoned for one: leave one out")
    spread = noise * 2 * clip  # another site's data in the place of its own move a clipped vector by 2 * clip at most

    def seal(site: Site, number: int, request: Request, reply: Tree) -> Tree:
        declared = method.sends[request.kind]
        flat = tree.flatten(reply)
        begun = tree.flatten({name: at(request.body, declared[name].since) for name in reply})
        start = {path: leaf for path, leaf in begun.items() if path in flat and leaf.shape == flat[path].shape}
        told = {path: leaf for path, leaf in flat.items() if leaf.is_floating_point() or path not in start}
        steps = clipped({path: leaf.double() - start.get(path, 0) for path, leaf in told.items()}, clip)
        key = stream(site, number, request, steps, spread)
        positive = {name for name, sent in declared.items() if sent.positive}
        variances = set(spreads(site))

        def leaves(path: str, leaf: Tensor) -> Tensor:
            if path not in steps:
                return start[path]  # a counter that came with the request goes back as it came
            moved = steps[path] + spread * gaussian(key, path, leaf.shape) + start.get(path, 0)
            if path.partition("/")[0] in positive:
                moved = moved.clamp(min=LEAST * (clip + spread))
            elif path.partition("/buffers/")[2] in variances:
                moved = moved.clamp(min=0)
            elif not leaf.is_floating_point():
                moved = moved.round().clamp(0, MAX_WEIGHT)
            return moved.to(leaf.dtype)

        return tree.unflatten({path: leaves(path, leaf) for path, leaf in flat.items()})

    client = method.client._replace(seal=seal)
    privacy = Privacy(partial(epsilon, noise, delta), delta, client, method.sends)
    return replace(method, client=client, privacy=privacy)


def at(body: Tree, path: tuple[str, ...]) -> Tree:
    """What training set out from, if it came with the request: where a model has a `start` of its own, from there."""
    found = body | ({"model": body["model"] | {"params": body["start"]}} if "start" in body else {})
    for key in path:
        found = found.get(key, {})
    return found if path else {}


def clipped(steps: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
    """A vector of the same direction and at most that length; numbers that are not finite count as nothing."""
    finite = {path: step.nan_to_num(0.0, 0.0, 0.0) for path, step in steps.items()}
    length = math.sqrt(math.fsum(float(step.square().sum()) for step in finite.values()))
    return {path: step * min(1.0, clip / length) for path, step in finite.items()} if length else finite


def spreads(site: Site) -> Iterator[str]:
    """The names of running variances, which networks take the root of."""
    for net in site.nets.values():
        yield from (f"{place}.running_var" for place, _ in norms(net))


def stream(site: Site, number: int, request: Request, steps: dict[str, Tensor], spread: float) -> bytes:
    """Names the noise of one answer, for those who know the site's secret.

    No other answer has the same noise: a server that plays a round again hears the same answer, from which it learns
    nothing; one that changes anything about a request, about how wide noise is, or what the site has kept, hears other
    noise. Where there is no secret nothing is protected, and noise follows from what is asked: rounding does not
    change it.
    """
    about = f"{site.seed}/{number}/{site.name}/{request.kind}/{spread!r}/".encode()
    if site.secret:
        about += tree.digest(request.body) + tree.digest(tree.unflatten(steps))
    return hmac.digest(site.secret, about, "sha256")


def gaussian(key: bytes, path: str, shape: torch.Size) -> Tensor:
    """Numbers from N(0, 1): Box and Muller's way from SHAKE-256, for torch's generator has no more than 2^32 seeds."""
    pairs = -(-shape.numel() // 2)
    bits = np.frombuffer(shake_256(key + path.encode()).digest(16 * pairs), "<u8").reshape(2, pairs)
    first, second = (bits >> np.uint64(11)) * 2.0**-53  # in [0, 1)
    length, angle = np.sqrt(-2 * np.log1p(-first)), 2 * np.pi * second
    drawn = np.concatenate((length * np.cos(angle), length * np.sin(angle)))
    return torch.from_numpy(drawn)[: shape.numel()].reshape(shape)
