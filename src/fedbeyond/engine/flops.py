"""How much sites compute: floating-point operations of their answers, by torch's own formulas.

torch's FlopCounterMode also keeps track of modules, which doubles the time of a round of small networks; this counts
with its formulas alone, and hands every operation on as it came: results are the same to the bit.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .. import tree
from ..server import Failure, Post, Reply, Request

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten.convolution_backward}


class Tally(TorchDispatchMode):
    """Counts multiplications and additions of matrix products, convolutions and attention; all else is free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total, self.formulas = 0, FlopCounterMode(display=False).flop_registry
        self.known: dict[Any, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's compiler, which takes seconds to import, is not at work here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func._overloadpacket)
        if formula:
            self.total += self._count(formula, func, args, kwargs or {}, out)
        return out

    def _count(self, formula: Any, func: Any, args: Any, kwargs: Any, out: Any) -> int:
        """Of one operation; formulas take longer to work out than small products do: what goes by shapes is kept."""
        if kwargs or func._overloadpacket not in PRODUCTS:
            return int(formula(*args, **kwargs, out_val=out))
        key = (func, *(tuple(one) if isinstance(one, list) else getattr(one, "shape", one) for one in args))
        if key not in self.known:
            self.known[key] = int(formula(*args, out_val=out))
        return self.known[key]


class Engine(Protocol):
    """A federation that can tell what its sites' answers took."""

    @property
    def clients(self) -> tuple[str, ...]: ...

    def tallied(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure, int]]:
        """The answers in the order of the request, and each one's operations."""


class Counting:
    """A federation on this machine, with a count of what its sites computed and sent."""

    def __init__(self, federation: Engine) -> None:
        self.federation = federation
        self.flops: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()  # numbers, of whatever kind

    @property
    def clients(self) -> tuple[str, ...]:
        return self.federation.clients

    def ask(self, request: Request, post: Post) -> Mapping[str, Reply | Failure]:
        return dict(self.stream(request, post))

    def stream(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure]]:
        for name, reply, flops in self.federation.tallied(request, post):
            self.flops[name] += flops
            if isinstance(reply, Reply):
                self.sent[name] += sum(leaf.numel() for leaf in tree.leaves(reply.body))
            yield name, reply
