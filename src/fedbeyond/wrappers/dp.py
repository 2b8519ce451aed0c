"""Learning Differentially Private Recurrent Language Models.

McMahan, Ramage, Talwar, Zhang; ICLR 2018; https://arxiv.org/abs/1710.06963

Whole sites are protected, as in the paper and in Geyer, Klein and Nabi (2017, https://arxiv.org/abs/1712.07557): a
site's update is clipped, and Gaussian noise is added (Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133). Here
each site adds its own noise, so that sites need not trust the server. With any method: everything in one reply is one
vector; values that were received and trained enter it as their change. The vector is clipped to the length C, and
noise N(0, (2 C z)^2) is added.
"""

import hmac
import math
from dataclasses import replace
from functools import partial
from hashlib import shake_256
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from .. import tree
from .._method import Method, Privacy, starting_point
from ..classifier import batchnorm_layers
from ..errors import ConfigError
from ..server import MAX_WEIGHT, Request
from ..site import Site
from ..tree import Tree
from .privacy import epsilon

LEAST = 0.01  # lower bound of values that must be positive, relative to clip + std: noise may make them negative


def dp(
    method: Method,
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False), "length to which a reply is clipped, C"] = 1.0,
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False), "standard deviation z, over the sensitivity 2 C"] = 1.0,
    delta: Annotated[float, Field(gt=0, lt=1), "delta at which epsilon is computed"] = 1e-5,
) -> Method:
    """Clip each reply to the length `clip` and add Gaussian noise of standard deviation 2 * clip * `noise` to it."""
    if method.pooled:
        raise ConfigError(
            "dp adds noise to what leaves a site, but this method pools the data of all sites in one place: remove dp"
        )
    if method.public:
        raise ConfigError(
            "dp cannot be combined with this method: it would add noise to the public-image count that the server "
            "needs; remove one of the two"
        )
    if method.privacy:
        raise ConfigError("dp is given twice, but epsilon is computed for one noise only: remove one of the two")
    std = noise * 2 * clip  # replacing a site's data moves a clipped vector by at most 2 * clip

    def postprocess(site: Site, number: int, request: Request, reply: Tree) -> Tree:
        declared = method.sends[request.kind]
        flat = tree.flatten(reply)
        received = tree.flatten({name: starting_point(request.body, declared[name].since) for name in reply})
        start = {path: leaf for path, leaf in received.items() if path in flat and leaf.shape == flat[path].shape}
        released = {path: leaf for path, leaf in flat.items() if leaf.is_floating_point() or path not in start}
        steps = clipped({path: leaf.double() - start.get(path, 0) for path, leaf in released.items()}, clip)
        key = noise_key(site, number, request, steps, std)
        positive = {name for name, sent in declared.items() if sent.positive}
        layers = (name for net in site.nets.values() for name, _ in batchnorm_layers(net))
        variances = {f"{name}.running_var" for name in layers}  # not negative: BatchNorm takes their square root

        def with_noise(path: str, leaf: Tensor) -> Tensor:
            if path not in steps:
                return start[path]  # a counter that came with the request is sent back unchanged
            moved = steps[path] + std * gaussian(key, path, leaf.shape) + start.get(path, 0)
            if path.partition("/")[0] in positive:
                moved = moved.clamp(min=LEAST * (clip + std))
            elif path.partition("/buffers/")[2] in variances:
                moved = moved.clamp(min=0)
            elif not leaf.is_floating_point():
                moved = moved.round().clamp(0, MAX_WEIGHT)
            return moved.to(leaf.dtype)

        return tree.unflatten({path: with_noise(path, leaf) for path, leaf in flat.items()})

    client = method.client._replace(postprocess=postprocess)
    sends = {
        kind: {name: sent._replace(within=None) for name, sent in names.items()}  # noise leaves every range
        for kind, names in method.sends.items()
    }
    privacy = Privacy(partial(epsilon, noise, delta), delta, client, sends, noise)
    return replace(method, client=client, sends=sends, privacy=privacy)


def clipped(steps: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Scale the steps, as one vector, to at most the length `clip`; set numbers that are not finite to 0."""
    finite = {path: step.nan_to_num(0.0, 0.0, 0.0) for path, step in steps.items()}
    length = math.sqrt(math.fsum(float(step.square().sum()) for step in finite.values()))
    return {path: step * min(1.0, clip / length) for path, step in finite.items()} if length else finite


def noise_key(site: Site, number: int, request: Request, steps: dict[str, Tensor], std: float) -> bytes:
    """Return the key of one reply's noise, which only a holder of the site's secret can compute.

    No two different replies have the same noise. A server that repeats a round receives the same reply and learns
    nothing new. If the request, the standard deviation or the site's state differs, the noise differs too. Without a
    secret nothing is protected; the key then does not depend on any tensors, so that rounding does not change it.
    """
    message = f"{site.seed}/{number}/{site.name}/{request.kind}/{std!r}/".encode()
    if site.secret:
        message += tree.digest(request.body) + tree.digest(tree.unflatten(steps))
    return hmac.digest(site.secret, message, "sha256")


def gaussian(key: bytes, path: str, shape: torch.Size) -> Tensor:
    """Draw from N(0, 1) by the Box-Muller transform of SHAKE-256 output: torch's generator has only 2^32 seeds."""
    pairs = -(-shape.numel() // 2)
    bits = np.frombuffer(shake_256(key + path.encode()).digest(16 * pairs), "<u8").reshape(2, pairs)
    first, second = (bits >> np.uint64(11)) * 2.0**-53  # in [0, 1)
    length, angle = np.sqrt(-2 * np.log1p(-first)), 2 * np.pi * second
    drawn = np.concatenate((length * np.cos(angle), length * np.sin(angle)))
    return torch.from_numpy(drawn)[: shape.numel()].reshape(shape)
