"""Record what a method uses of a network beyond logits, and compare it with `Method.needs`."""

import sys
from collections.abc import Callable, Set
from typing import Any

from torch import Tensor, nn

from .._method import Method
from ..classifier import INCLUDED, Classifier, Task
from ..errors import FedbeyondError
from . import toy
from .compare import LawBroken

USED_BY = {  # attributes of a `Classifier`: what of `classifier.PARTS` the user of one uses
    "features": "features",
    "head": "features",
    "maps": "maps",
    "maps_and_logits": "maps",
    "attentive": "maps",
    "pooled": "pooled",
    "stages": "stages",
}


def recording(uses: set[str]) -> Task:
    """Return the toy task with a network that adds to `uses` what is used of it beyond logits."""

    class Recording(Classifier):
        def __init__(self, net: Classifier) -> None:
            nn.Module.__init__(self)
            self._parameters, self._buffers, self._modules = net._parameters, net._buffers, net._modules
            self.__dict__["net"] = net  # not a part: what it uses of itself is not recorded

        def __getattribute__(self, name: str) -> Any:
            if name in USED_BY:
                by_torch = sys._getframe(1).f_globals["__name__"].startswith("torch.")  # functional_call, for one
                uses.update(() if by_torch else {USED_BY[name]})
                return getattr(self.__dict__["net"], name)
            return super().__getattribute__(name)

        @property
        def provides(self) -> Set[str]:
            return self.__dict__["net"].provides  # type: ignore[no-any-return]

        @property
        def cuts(self) -> tuple[str, ...]:
            return self.__dict__["net"].cuts  # type: ignore[no-any-return]

        def forward(self, x: Tensor) -> Tensor:
            return self.__dict__["net"](x)  # type: ignore[no-any-return]

    return toy.TASK._replace(network=lambda task: Recording(toy.tiny(task)))


def ensure_needs(method: Method, uses: Set[str], run_on_logits: Callable[[], Any]) -> None:
    """Raise `LawBroken` unless a method uses what it declares of its network, and no more.

    A method that declares nothing must also run on a network that gives only logits: it could use a layer by its name.
    """
    used, needs = ({*parts}.union(*(INCLUDED.get(part, ()) for part in parts)) for parts in (uses, method.needs))
    if used - needs:
        raise LawBroken(
            f"it uses {sorted(used - needs)} of its network, which not every network has: declare it with "
            "Method(needs={...}), or in a wrapper with replace(method, needs=method.needs | {...})"
        )
    if needs - used:
        raise LawBroken(
            f"needs declares {sorted(method.needs)}, but it uses {sorted(used) or 'only logits'} of its network: "
            "declare no more than it uses"
        )
    if not needs:
        try:
            run_on_logits()
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, FedbeyondError) as error:
            raise LawBroken(
                f"needs declares nothing, but with a network that gives only logits it raises {type(error).__name__}: "
                f"{error}; if it uses the head by the names of its parameters, declare needs={{'features'}}"
            ) from error
