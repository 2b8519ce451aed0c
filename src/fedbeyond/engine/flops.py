"""Count the floating-point operations that sites need for their replies, with torch's own formulas.

Every operation runs unchanged: results are equal to the bit. Counting slows training, so the work on a batch is counted
once for each kind of request and size of batch, and added for all other batches of that size.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..batch import Batch
from ..site import Site


class FlopCounter(TorchDispatchMode):
    """Counts multiplications and additions of matrix products, convolutions and attention, and nothing else.

    torch's FlopCounterMode also tracks modules, which is slower. This counter uses its formulas only.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total, self.active, self.formulas = 0, False, FlopCounterMode(display=False).flop_registry

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # without this, torch would import its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := self.formulas.get(func._overloadpacket):
            self.total += int(formula(*args, **(kwargs or {}), out_val=out))
        return out

    def switch(self, active: bool) -> None:
        """Count from here on, or stop counting."""
        if active != self.active:
            self.active = active
            self.__enter__() if active else self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class Flops:
    """The operations of each site's replies, counted while `active`."""

    def __init__(self) -> None:
        self.active = False
        self.by_site: Counter[str] = Counter()
        self.by_batch: dict[tuple[str, int, int], int] = {}  # (kind of request, its n-th loop, size) -> of one batch

    @contextmanager
    def count(self, site: Site, kind: str) -> Iterator[None]:
        """Within the block, count the operations of a site that handles a request of this kind."""
        if not self.active:
            yield
            return
        counter, loops, batches = FlopCounter(), count(), site.batches

        def sampled(epochs: int | None = None) -> Iterator[Batch]:
            loop = next(loops)
            for batch in batches(epochs):  # augmentation is always counted
                key, before = (kind, loop, len(batch.y)), counter.total
                counter.switch(key not in self.by_batch)
                yield batch
                counter.switch(True)
                self.by_batch.setdefault(key, counter.total - before)
                counter.total = before + self.by_batch[key]

        site.batches = sampled  # type: ignore[method-assign]
        counter.switch(True)
        try:
            yield
        finally:
            counter.switch(False)
            del site.batches
            self.by_site[site.name] += counter.total
