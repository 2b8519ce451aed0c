"""Optimizers as functions: given parameters they return a torch optimizer, fresh in every round; and their pace."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from .tree import Tree

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[float], float]  # share of the rounds played -> factor on the learning rate


def eager(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """A torch optimizer without the wrappers that speak to torch's compiler, which take two seconds to import it."""
    wrapped = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    bare = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    return type(kind.__name__, (kind,), bare | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


SGD, ADAM = eager(torch.optim.SGD), eager(torch.optim.Adam)


def sgd(lr: float = 0.05, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Stochastic gradient descent."""
    return lambda params: SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay)


def adam(lr: float = 1e-3, weight_decay: float = 0.0) -> Optimizer:
    """Adam with torch's moments."""
    return lambda params: ADAM(params, lr=lr, weight_decay=weight_decay)


def sam(
    rho: Annotated[float, Field(ge=0)] = 0.05, lr: float = 0.05, momentum: float = 0.0, weight_decay: float = 0.0
) -> Optimizer:
    """Sharpness-aware minimisation: SGD with the gradient found `rho` uphill of where the parameters are."""
    return sharp(sgd(lr, momentum, weight_decay), rho)


def sharp(optimizer: Optimizer, rho: float) -> Optimizer:
    """An optimizer that goes by the gradient found `rho` uphill of where the parameters are.

    Foret, Kleiner, Mobahi, Neyshabur; ICLR 2021; https://arxiv.org/abs/2010.01412. One that does so already takes
    this `rho` in the place of its own.
    """

    def make(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        stepper = optimizer(params)
        if not hasattr(stepper, "rho"):
            stepper.step = partial(_climb, stepper, stepper.step)  # type: ignore[method-assign, assignment]
        stepper.rho = rho  # type: ignore[attr-defined]
        return stepper

    return make


@torch.no_grad()
def _climb(stepper: torch.optim.Optimizer, step: Callable[[], object], closure: Callable[[], Tensor]) -> Tensor:
    """Look at the gradient, climb, look again, come back and descend by what was seen there."""
    with torch.enable_grad():
        loss = closure()
    moved = [param for group in stepper.param_groups for param in group["params"] if param.grad is not None]
    slopes = [param.grad for param in moved]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(slope) for slope in slopes]))
    rho = stepper.rho  # type: ignore[attr-defined]
    if rho and norm > 0:
        here = [param.clone() for param in moved]
        torch._foreach_add_(moved, torch._foreach_mul(slopes, float(rho / norm)))
        with torch.enable_grad():
            closure()
        torch._foreach_copy_(moved, here)
    step()
    return loss


plain_sgd = sgd()


def separable(stepper: torch.optim.Optimizer) -> bool:
    """Whether an optimizer looks once, and moves each parameter by its own gradient alone."""
    return type(stepper) in (SGD, ADAM) and "step" not in vars(stepper)  # SAM puts another step in its place


@contextmanager
def in_passing(stepper: torch.optim.Optimizer) -> Iterator[None]:
    """Within the block, a backward pass moves each parameter once its gradient is known, and forgets the gradient.

    The steps are the same to the bit where an optimizer is `separable`; there are never all gradients at once.
    """

    def move(group: dict[str, Any], param: Tensor) -> None:
        every, group["params"] = group["params"], [param]
        try:
            stepper.step()
        finally:
            group["params"] = every
        param.grad = None

    hooks = [
        param.register_post_accumulate_grad_hook(partial(move, group))
        for group in stepper.param_groups
        for param in group["params"]
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def constant() -> Schedule:
    """The same learning rate in every round."""
    return lambda played: 1.0


def cosine(end: float = 0.0) -> Schedule:
    """From the whole learning rate down to `end` of it, along half a cosine."""
    return lambda played: end + (1 - end) * (1 + math.cos(math.pi * played)) / 2


def step(at: float = 0.8, factor: float = 0.1) -> Schedule:
    """`factor` of the learning rate once `at` of the rounds are played."""
    return lambda played: factor if played >= at else 1.0


def is_sgd(stepper: torch.optim.Optimizer) -> bool:
    """Return whether steps are weighted sums of gradients: SGD with or without momentum, also inside SAM.

    Adam's steps are not: they are as long for small gradients as for large ones. Nesterov momentum and dampening, which
    `sgd` does not offer, weight gradients in another way.
    """
    groups = stepper.param_groups
    return isinstance(stepper, torch.optim.SGD) and not any(g["nesterov"] or g["dampening"] for g in groups)


def reach(stepper: torch.optim.Optimizer, steps: int, pull: float = 0.0) -> float:
    """Compute how far a constant gradient of one carries a parameter, in learning rates.

    This is the 1-norm of FedNova's a_i: the number of steps for plain SGD, more with momentum, less if a proximal term
    of strength `pull` draws the parameter back; momentum accumulates that term too. For optimizers other than SGD it is
    the number of steps.
    """
    if not is_sgd(stepper):
        return float(steps)
    group = stepper.param_groups[0]
    moved = speed = 0.0
    for _ in range(steps):
        speed = group["momentum"] * speed + 1 - group["lr"] * pull * moved
        moved += speed
    return moved


def travel(stepper: torch.optim.Optimizer, steps: int) -> float:
    """Compute how far a constant gradient of one carries a parameter: a displacement divided by it is a mean gradient.

    Return 0 if a displacement does not determine gradients: without SGD, or without one positive learning rate for all.
    """
    rates = {float(group["lr"]) for group in stepper.param_groups}
    return reach(stepper, steps) * rates.pop() if is_sgd(stepper) and len(rates) == 1 else 0.0


def remember(stepper: torch.optim.Optimizer) -> Tree:
    """What an optimizer knows of each parameter (momentum and the like), as a tree to keep."""
    known = stepper.state_dict()["state"]
    return {
        str(place): {name: value.clone() for name, value in entry.items()}
        for place, entry in known.items()
        if all(isinstance(value, Tensor) for value in entry.values())
    }


def recall(stepper: torch.optim.Optimizer, kept: Tree) -> None:
    """Give back to an optimizer what an earlier one of the same kind knew."""
    state = {int(place): {name: value.clone() for name, value in entry.items()} for place, entry in kept.items()}
    stepper.load_state_dict({"state": state, "param_groups": stepper.state_dict()["param_groups"]})
