"""How much one answer may compute at a site by its policy: passes over its images, and parameters of networks."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from .. import spec
from .._method import Method
from ..errors import PolicyError
from ..experiment.build import assemble
from ..experiment.config import Config
from ..networks.frozen import frozen_part
from ..site import Site
from .policy import Policy


def limit_epochs(policy: Policy, config: Config, site: Site) -> None:
    """Count the training images that a site's answer draws, whatever the method; more than allowed are not drawn.

    A method may train for other epochs than `train.epochs`, so that this is known only when it does.
    """
    if policy.max_epochs is None:
        return
    inner, most, drawn = site.sampler, policy.max_epochs * site.size, 0
    refusal = PolicyError(
        f"{config.method} goes through the site's images more often in a round than the site's policy allows, which "
        f"is {policy.max_epochs} times (max_epochs): train for fewer epochs, or draw fewer batches"
    )

    def sample(labels: Tensor, epochs: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
        nonlocal drawn
        budgets = [part.options["budget"] for part in spec.parse(config.method) if "budget" in part.options]
        if any(isinstance(budget, int) and budget * batch_size > most for budget in budgets):
            raise refusal  # such a sampler draws all numbers of a round at once
        for index in inner(labels, epochs, batch_size, rng):
            drawn += len(index) if rng is site.rng else 0  # with another generator, batches are only counted
            if drawn > most:
                raise refusal
            yield index

    site.sampler = sample


def ensure_networks_allowed(
    policy: Policy, config: Config, method: Method, classes: tuple[str, ...], shape: tuple[int, ...], sources: int
) -> None:
    """Raise `PolicyError` if a run's networks have too many parameters; no memory is allocated for them."""
    most = policy.max_parameters
    if most is None:
        return
    registered = 0

    def refuse(count: int) -> None:
        raise PolicyError(
            f"the networks of {config.method} with {config.network} have {count:,} parameters or more; the site's "
            f"policy allows {most:,} (max_parameters): use a smaller network"
        )

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal registered
        registered += 0 if parameter is None else parameter.numel()
        if registered > 2 * most:  # at once, however many layers follow; layers may be replaced while it is built
            refuse(registered // 2)

    hook = register_module_parameter_registration_hook(count)
    try:
        nets = assemble(config, classes, shape, sources, "meta", method=method).nets
    finally:
        hook.remove()
    tensors = (tensor for net in nets.values() for tensor in (*net.parameters(), *frozen_part(net).values()))
    distinct = {id(tensor): tensor.numel() for tensor in tensors}  # what train.part freezes takes memory as well
    if (total := sum(distinct.values())) > most:
        refuse(total)
