"""How much sites compute: floating-point operations of their answers, by torch's own formulas.

torch's FlopCounterMode also keeps track of modules, which doubles the time of a round of small networks; this counts
with its formulas alone, and hands every operation on as it came: results are the same to the bit.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from . import tree
from .federation import Federation
from .gate import Failure
from .server import Post, Reply, Request


class Tally(TorchDispatchMode):
    """Counts multiplications and additions of matrix products, convolutions and attention; all else is free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total, self.formulas = 0, FlopCounterMode(display=False).flop_registry

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func._overloadpacket)
        if formula:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


class Counting:
    """A federation in this process whose sites are asked one by one, so that what each answer took is known."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.flops: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()  # numbers, of whatever kind

    @property
    def clients(self) -> tuple[str, ...]:
        return self.federation.clients

    def ask(self, request: Request, post: Post) -> Mapping[str, Reply | Failure]:
        answers: dict[str, Reply | Failure] = {}
        for name in request.to:
            with Tally() as tally:
                answers |= self.federation.ask(request._replace(to=(name,)), post)
            reply = answers[name]
            self.flops[name] += tally.total
            if isinstance(reply, Reply):
                self.sent[name] += sum(leaf.numel() for leaf in tree.leaves(reply.body))
        return answers
