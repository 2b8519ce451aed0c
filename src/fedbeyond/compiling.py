"""Networks by torch's compiler, in place: whatever the method, with the same names for the same numbers.

Of a classifier the body is compiled, which methods ask apart from the head; of other networks the whole. Compiled
networks cannot be differentiated twice: a method that does so fails, and says why.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .client import Handler
from .data.site import Site
from .errors import FederationError
from .method import Method
from .nets import Classifier, Networks, Task
from .tree import Tree


def compiled(method: Method, backend: str = "inductor") -> Method:
    """The method with networks that are compiled when they first compute."""

    def made(task: Task) -> Networks:
        _prepare()
        nets = method.networks(task)
        for net in nets.values():
            _compile(net.body if isinstance(net, Classifier) else net, backend)
        return nets

    handlers = {kind: explained(handler) for kind, handler in method.client.handlers.items()}
    return replace(method, networks=made, client=method.client._replace(handlers=handlers))


def explained(handler: Handler) -> Handler:
    """The same handler; what fails in it says that networks are compiled, of which torch's own words tell little."""

    def answer(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        try:
            return handler(site, received, private)
        except RuntimeError as error:
            raise FederationError(
                f"with compiled networks, which cannot be differentiated twice, for one: {error}; set "
                "train.compile = false"
            ) from error

    return answer


def _compile(net: nn.Module, backend: str) -> None:
    eager = net.forward

    def forward(*given: Any) -> Any:  # a frame of our own: the compiler passes over those of torch.nn
        return eager(*given)

    net.forward = torch.compile(forward, backend=backend)


def _prepare() -> None:
    """What it keeps on disk from one process to the next are objects, which we do not read: it starts anew each time.

    Hooks, by which some methods look into a network, come after it is compiled, and count all the same.
    """
    from torch._dynamo import config as tracing  # seconds, for those who want it
    from torch._functorch import config as differentiating
    from torch._inductor import config as making

    making.force_disable_caches = True
    making.compile_threads = 1  # others would be sent objects through a pipe
    tracing.skip_nnmodule_hook_guards = False
    tracing.recompile_limit = 64  # networks of one run, in training and not, with whole and last batches
    differentiating.donated_buffer = False  # some methods go through a graph twice
