"""Optimizers as functions from parameters to a new torch optimizer (one per round), and learning-rate schedules."""

import inspect
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn

from .tree import Tree

Rate = Annotated[NonNegativeFloat, "learning rate, which the schedule multiplies"]
Momentum = Annotated[float, Field(ge=0, lt=1), "momentum"]
Decay = Annotated[NonNegativeFloat, "this times the parameters is added to their gradient (L2 penalty)"]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[float], float]  # share of completed rounds -> factor on the learning rate


def without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return a torch optimizer class without the wrappers that import torch's compiler, which takes two seconds."""
    wrapped = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    bare = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    return type(kind.__name__, (kind,), bare | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


SGD, ADAM = without_compiler(torch.optim.SGD), without_compiler(torch.optim.Adam)


def sgd(lr: Rate = 0.05, momentum: Momentum = 0.0, weight_decay: Decay = 0.0) -> Optimizer:
    """Return stochastic gradient descent."""
    return lambda params: SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay)


def adam(lr: Rate = 1e-3, weight_decay: Decay = 0.0) -> Optimizer:
    """Return Adam with torch's default betas."""
    return lambda params: ADAM(params, lr=lr, weight_decay=weight_decay)


def sam(
    rho: Annotated[NonNegativeFloat, "radius of the ascent step, rho"] = 0.05,
    lr: Rate = 0.05,
    momentum: Momentum = 0.0,
    weight_decay: Decay = 0.0,
) -> Optimizer:
    """Return sharpness-aware minimisation (SAM) with SGD; see `sharp`."""
    return sharp(sgd(lr, momentum, weight_decay), rho)


def sharp(optimizer: Optimizer, rho: float) -> Optimizer:
    """Make an optimizer sharpness-aware: it uses the gradient at distance `rho` in the direction of ascent.

    Foret, Kleiner, Mobahi, Neyshabur; ICLR 2021; https://arxiv.org/abs/2010.01412. If the optimizer is already
    sharpness-aware, only its `rho` is replaced.
    """

    def make(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        inner = optimizer(params)
        if not hasattr(inner, "rho"):
            inner.step = partial(_sam_step, inner, inner.step)  # type: ignore[method-assign, assignment]
        inner.rho = rho  # type: ignore[attr-defined]
        return inner

    return make


@torch.no_grad()
def _sam_step(optimizer: torch.optim.Optimizer, step: Callable[[], object], closure: Callable[[], Tensor]) -> Tensor:
    """Take a SAM step: ascend by `rho`, compute the gradient there, return, and descend with that gradient."""
    with torch.enable_grad():
        loss = closure()
    params = [param for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
    gradients = [param.grad for param in params]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
    rho = optimizer.rho  # type: ignore[attr-defined]
    if rho and norm > 0:
        start = [param.clone() for param in params]
        torch._foreach_add_(params, torch._foreach_mul(gradients, float(rho / norm)))
        with torch.enable_grad():
            closure()
        torch._foreach_copy_(params, start)
    step()
    return loss


plain_sgd = sgd()


def constant() -> Schedule:
    """Return a constant schedule."""
    return lambda share: 1.0


def cosine(end: Annotated[NonNegativeFloat, "factor at the end of the run"] = 0.0) -> Schedule:
    """Return a cosine schedule from 1 down to `end`."""
    return lambda share: end + (1 - end) * (1 + math.cos(math.pi * share)) / 2


def step(
    at: Annotated[float, Field(ge=0, le=1), "share of the rounds after which it drops"] = 0.8,
    factor: Annotated[NonNegativeFloat, "factor on the learning rate after that"] = 0.1,
) -> Schedule:
    """Return a schedule that drops to `factor` after the share `at` of the rounds."""
    return lambda share: factor if share >= at else 1.0


def is_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether steps are weighted sums of gradients: SGD with or without momentum, also inside SAM.

    Adam's steps are not: they are as long for small gradients as for large ones. Nesterov momentum and dampening, which
    `sgd` does not offer, weight gradients in another way.
    """
    groups = optimizer.param_groups
    return isinstance(optimizer, torch.optim.SGD) and not any(g["nesterov"] or g["dampening"] for g in groups)


def reach(optimizer: torch.optim.Optimizer, steps: int, pull: float = 0.0) -> float:
    """Compute how far a constant gradient of 1 moves a parameter, in units of the learning rate.

    This is the 1-norm of FedNova's a_i: the number of steps for plain SGD, more with momentum, less with a proximal
    term of strength `pull`, which momentum accumulates too. For optimizers other than SGD it is the number of steps.
    """
    if not is_sgd(optimizer):
        return float(steps)
    group = optimizer.param_groups[0]
    distance = velocity = 0.0
    for _ in range(steps):
        velocity = group["momentum"] * velocity + 1 - group["lr"] * pull * distance
        distance += velocity
    return distance


def travel(optimizer: torch.optim.Optimizer, steps: int) -> float:
    """Compute how far a constant gradient of 1 moves a parameter; a displacement divided by it is a mean gradient.

    Return 0 if a displacement does not determine gradients: no SGD, several learning rates, or a rate of 0.
    """
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    return reach(optimizer, steps) * rates.pop() if is_sgd(optimizer) and len(rates) == 1 else 0.0


def remember(optimizer: torch.optim.Optimizer) -> Tree:
    """Return the optimizer's state per parameter (momentum and similar) as a tree."""
    state = optimizer.state_dict()["state"]
    return {
        str(index): {name: value.clone() for name, value in entry.items()}
        for index, entry in state.items()
        if all(isinstance(value, Tensor) for value in entry.values())
    }


def recall(optimizer: torch.optim.Optimizer, saved: Tree) -> None:
    """Load a state saved by `remember` into an optimizer of the same kind."""
    state = {int(index): {name: value.clone() for name, value in entry.items()} for index, entry in saved.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
