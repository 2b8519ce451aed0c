"""Count the floating-point operations that sites need for their replies, with torch's own formulas.

torch's FlopCounterMode also tracks modules, which doubles the time of a round with small networks. This counter uses
its formulas only, and runs every operation unchanged: results are equal to the bit.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from .. import tree
from ..server import Envelope, Failure, Reply, Request

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten.convolution_backward}


class FlopCounter(TorchDispatchMode):
    """Counts multiplications and additions of matrix products, convolutions and attention, and nothing else."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total, self.formulas = 0, FlopCounterMode(display=False).flop_registry
        self.known: dict[Any, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # without this, torch would import its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func._overloadpacket)
        if formula:
            self.total += self._count(formula, func, args, kwargs or {}, out)
        return out

    def _count(self, formula: Any, func: Any, args: Any, kwargs: Any, out: Any) -> int:
        """Count one operation; counts that depend on shapes alone are cached, as formulas are slow."""
        if kwargs or func._overloadpacket not in PRODUCTS:
            return int(formula(*args, **kwargs, out_val=out))
        key = (func, *(tuple(one) if isinstance(one, list) else getattr(one, "shape", one) for one in args))
        if key not in self.known:
            self.known[key] = int(formula(*args, out_val=out))
        return self.known[key]


class Countable(Protocol):
    """A federation that can count the operations of its sites' replies."""

    @property
    def clients(self) -> tuple[str, ...]: ...

    def ask_counting(self, request: Request, envelope: Envelope) -> Iterator[tuple[str, Reply | Failure, int]]:
        """Yield the replies in the order of the request, each with its operations."""


class CountingEngine:
    """A local federation that counts what its sites compute and send."""

    def __init__(self, federation: Countable) -> None:
        self.federation = federation
        self.flops: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()  # numbers in replies

    @property
    def clients(self) -> tuple[str, ...]:
        return self.federation.clients

    def ask(self, request: Request, envelope: Envelope) -> Mapping[str, Reply | Failure]:
        return dict(self.stream(request, envelope))

    def stream(self, request: Request, envelope: Envelope) -> Iterator[tuple[str, Reply | Failure]]:
        for name, reply, flops in self.federation.ask_counting(request, envelope):
            self.flops[name] += flops
            if isinstance(reply, Reply):
                self.sent[name] += sum(leaf.numel() for leaf in tree.leaves(reply.body))
            yield name, reply
