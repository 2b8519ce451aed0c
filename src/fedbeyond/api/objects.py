"""Turn the objects that users pass to `run` and `compare` into specs; objects without one are registered by a name."""

import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torch import nn

from .._factory import shown, spec_of
from .._method import Method
from ..errors import ConfigError
from ..experiment import code, registry
from ..experiment.build import LOADED
from ..experiment.config import Config
from ..images import Dataset, content_digest
from ..spec import format_spec, parse

ACCEPTED = {
    "method": 'a Method such as fedavg(), a function that returns one, or text such as "fedavg+ga"',
    "data": 'a Dataset such as datasets.styles() or datasets.from_arrays(...), or text such as "styles"',
    "public": 'a Dataset such as datasets.styles() or datasets.from_arrays(...), or text such as "styles"',
    "network": 'a torch module, a function that returns one, or text such as "convnet"',
    "optimizer": "sgd(lr=0.1) or another optimizer of fedbeyond, a function of parameters that returns one, or text",
}
GROUPS = {"method": "methods", "data": "datasets", "public": "datasets", "network": "networks"}


class Spelled(NamedTuple):
    """The spec of an object, and what has to stay in memory as long as the spec is used."""

    text: str
    kept: object = None


class Own(NamedTuple):
    """The own code and objects of runs, and what their names stood for when the runs began."""

    kept: Sequence[object]  # held here, weakly by the registry
    entries: registry.Entries

    @classmethod
    def of(cls, configs: Iterable[Config], parts: Iterable[Spelled]) -> "Own":
        """Return what runs use of this process."""
        names = {name: digest for config in configs for name, digest in config.code().items()}
        return cls([part.kept for part in parts], registry.registrations(names))

    def restored(self) -> AbstractContextManager[None]:
        """Return a context in which names stand for what they stood for: other runs may have used them since."""
        return registry.restored(self.entries)


def spelled(argument: str, thing: Any, name: str = "", stored: bool = False) -> Spelled:
    """Return the spec of what was passed as `argument`; register it under `name` if it has none.

    If the run is `stored` in a folder, an object without a spec needs a name, under which the run is found again.
    """
    if isinstance(thing, str):
        return Spelled(thing)
    if not isinstance(name, str):
        raise ConfigError(f"name: got {shown(name)}; give a text")
    group = GROUPS.get(argument, f"{argument}s")
    if spec_of(thing) and not isinstance(thing, nn.Module):  # whose attributes are the user's
        if getattr(thing, "spec_code", {}) != code.registered((group, spec_of(thing))):
            raise ConfigError(f"{argument}: {spec_of(thing)} was built by code that was replaced since; build it again")
        if isinstance(thing, Dataset):
            LOADED[format_spec(parse(spec_of(thing)))] = thing  # not loaded again
        return Spelled(spec_of(thing), thing)
    held = _checked(argument, thing)
    name = name or (thing.name if isinstance(thing, Dataset) else own_name(thing))
    digest = content_digest(thing) if isinstance(thing, Dataset) else code.digest(thing)
    if stored and not name:
        raise ConfigError(f"{argument}: an object without a name cannot be stored with out=; {_naming(argument)}")
    name = name or f"{argument}-{digest[:8]}"
    if isinstance(registry.known(group).get(name), str):
        raise ConfigError(f"{argument}: the name {name!r} is one of fedbeyond's; choose another name")
    if argument == "method" and not isinstance(thing, Method):
        registry.register(group, name, thing)  # a factory, with the optimizer of the run
    else:
        keep = bool(own_name(thing))  # a function is small, unlike other objects
        registry.register_object(group, name, held, digest, thing, keep)
    return Spelled(name, held)


def _checked(argument: str, thing: Any) -> Any:
    """Return the thing that a spec will stand for; `ConfigError` if it is of another kind than the argument's."""
    if argument == "method" and isinstance(thing, Method):
        warnings.warn(
            "this method was built with its own optimizer, and the optimizer of the run does not change it; pass the "
            "function that builds it, as in def mine(optimizer): ..., to train all methods with the same one",
            stacklevel=5,
        )
        return thing
    if argument == "method" and hasattr(thing, "__wrapped__"):
        raise ConfigError(f"method: got the function {thing.__name__}; call it, as in {thing.__name__}()")
    if argument in ("data", "public") and isinstance(thing, Dataset):
        return thing
    if argument == "network" and (isinstance(thing, nn.Module) or callable(thing)):
        from ..networks.own import factory_of

        return factory_of(thing)
    if argument in ("method", "optimizer") and callable(thing) and not isinstance(thing, type):
        return thing
    raise ConfigError(f"{argument}: got {_described(thing)}; give {ACCEPTED[argument]}")


def own_name(thing: Any) -> str:
    """Return the name of a function or class; empty for lambdas and other objects."""
    name = str(getattr(thing, "__name__", ""))
    return name if registry.NAME.fullmatch(name) else ""


def _naming(argument: str) -> str:
    how = {
        "method": 'give it one with name="..." (in compare: a dict of names and methods)',
        "data": 'give it one, as in datasets.from_arrays(..., name="...")',
        "public": 'give it one, as in datasets.from_arrays(..., name="...")',
    }
    return how.get(argument, f"define it as a function with a name: def my_{argument}(...)")


def _described(thing: object) -> str:
    text = shown(thing)
    return text if text.startswith("(a ") else f"{text} ({type(thing).__name__})"
