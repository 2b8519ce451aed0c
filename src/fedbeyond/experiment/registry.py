"""The registry of methods, wrappers, datasets, networks, parts, optimizers, schedules and transforms, with plugins."""

import re
import runpy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from .. import _factory, _plugins, datasets, methods, networks, wrappers
from .._factory import F, Factory, call, places, spec_of, with_spec, wrap
from ..errors import ConfigError, FedbeyondError, nearest
from ..spec import Part, format_spec, parse
from .code import CODE, digest, registered

if TYPE_CHECKING:
    from .._method import Method

# group -> name -> "module:function" (imported on first use), or the function itself
REGISTRY: dict[str, dict[str, str | Factory]] = {
    "methods": {**methods.PLACES},
    "wrappers": {**wrappers.PLACES},
    "datasets": {**datasets.PLACES},
    "networks": {**networks.PLACES},
    "parts": {"all": "fedbeyond.networks.part:everything", **places("networks.part", "head last norm lora")},
    "optimizers": {**places("optimizers", "sgd adam sam")},
    "schedules": {**places("optimizers", "constant cosine step")},
    "transforms": {
        **places("data.augment.transforms", "none custom ga domainbed fedsb fedadg rsc fact ccst digits"),
    },
}

Entries = Mapping[tuple[str, str], tuple[str | Factory, str]]  # group and name -> what is registered, and its digest
LOADED: set[str] = set()  # plugins that this process has loaded
NAME = re.compile(r"[A-Za-z_][\w.-]*")
_LOADING: list[str] = []  # the plugin that is being loaded


@overload
def register(group: str, name: str, factory: F) -> F: ...
@overload
def register(group: str, name: str = "") -> Callable[[F], F]: ...
def register(group: str, name: str = "", factory: Factory | None = None) -> Any:
    """Add a factory to a group under a name; as a decorator, `@register("methods")`, under the function's own name.

    A name that was registered before is replaced, so that a cell of a notebook can be run again. The results of a run
    that used the earlier code are not continued. Names of fedbeyond and of installed packages cannot be replaced.
    """
    if not isinstance(group, str) or not isinstance(name, str):
        raise ConfigError('register takes a group, a name and a function, as in register("methods", "mine", function)')
    if group not in REGISTRY:
        raise ConfigError(f"group {group!r} is not known; {nearest(str(group), REGISTRY)}")
    if factory is None:
        return lambda function: register(group, name or function.__name__, function)
    if not callable(factory):
        raise ConfigError(
            f"{group[:-1]} {name!r} is a {type(factory).__name__}, which cannot be called; give a function"
        )
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot be a name; use letters, digits, dots, hyphens and underscores")
    before = known(group).get(name, factory)
    if isinstance(before, str) or (before is not factory and _LOADING):
        raise ConfigError(f"{group} already has a {name!r}; choose another name")
    REGISTRY[group][name] = factory
    if not _LOADING:  # a plugin's file has a digest of its own
        CODE[group, name] = digest(factory)
    return factory


def register_object(group: str, name: str, thing: Any, content: str, given: Any, keep: bool = False) -> None:
    """Let a name stand for an object, whose `content` has this digest.

    `given` is what the user passed: exported models name its module and function. Without `keep`, the registry does not
    keep the object alive: the caller does, as long as it is needed.
    """
    held: Callable[[], Any] = (lambda: thing) if keep else weakref.ref(thing)

    def build() -> Any:
        if (found := held()) is None:
            raise ConfigError(
                f"{group[:-1]} {name!r} was an object of this process, which no longer exists; make it again"
            )
        return found

    origin = given if hasattr(given, "__qualname__") else type(given)
    build.__module__, build.__qualname__ = origin.__module__, origin.__qualname__
    build.holds_object = True  # type: ignore[attr-defined]
    register(group, name, build)
    CODE[group, name] = content


def registrations(code: Mapping[str, str]) -> Entries:
    """Return what is registered now under the names of `code`, a table of digests by "group.name"."""
    keys = [(group, name) for group, _, name in (each.partition(".") for each in code)]
    return {(group, name): (REGISTRY[group][name], CODE[group, name]) for group, name in keys}


@contextmanager
def restored(held: Entries) -> Iterator[None]:
    """While the block runs, let names stand for what they stood for earlier: cells of a notebook replace them."""
    now = {(group, name): (REGISTRY[group].get(name), CODE.get((group, name))) for group, name in held}
    try:
        for (group, name), (factory, content) in held.items():
            REGISTRY[group][name], CODE[group, name] = factory, content
        yield
    finally:
        for (group, name), (before, digested) in now.items():
            if before is None or digested is None:
                del REGISTRY[group][name], CODE[group, name]
            else:
                REGISTRY[group][name], CODE[group, name] = before, digested


def known(group: str) -> Mapping[str, str | Factory]:
    """Return all entries of a group: those of fedbeyond, of `register` and of installed packages."""
    return {**installed(group), **REGISTRY[group]}


@cache
def installed(group: str) -> Mapping[str, str]:
    """Return the entries that installed packages add to a group; cached, because the search is slow."""
    return {point.name: point.value for point in entry_points(group=f"fedbeyond.{group}")}


def find(group: str, name: str) -> Factory:
    """Return the factory of that name; raise `ConfigError` with the nearest name if there is none."""
    factory = known(group).get(name)
    if factory is None:
        raise ConfigError(f"{group[:-1]} {name!r} is not known; {nearest(name, known(group))} (fedbeyond list {group})")
    if isinstance(factory, str):
        factory = _imported(group, name, factory)
    if not callable(factory):
        raise ConfigError(f"{group[:-1]} {name!r} is {factory!r}, which cannot be called; give a function")
    return factory


def _imported(group: str, name: str, place: str) -> Any:
    """Import "module:function"; `ConfigError` if an installed package cannot be imported."""
    module, _, attribute = place.partition(":")
    if module.startswith("fedbeyond."):
        return getattr(import_module(module), attribute)
    _plugins.PLUGINS.add(module)
    try:
        return getattr(import_module(module), attribute)
    except FedbeyondError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{group[:-1]} {name!r} of the installed package {module} cannot be loaded: {_plugins.describe(error)}"
        ) from error


def with_defaults(group: str, part: Part) -> Part:
    """Return a part with all its options, those of its preset and defaults included, sorted by name."""
    return _factory.with_defaults(find(group, part.name), part)


def make(group: str, part: Part, *given: Any, **provided: Any) -> Any:
    """Call the factory named by `part` with its preset, its options and the arguments that the run provides."""
    factory = find(group, part.name)
    made = call(factory, part, *given, **provided)
    if given or getattr(factory, "holds_object", False):  # a user's object: its name may stand for another one later
        return made
    return with_spec(made, str(part))


def make_one(group: str, text: str) -> Any:
    """Build a dataset, a network, a part of it, an optimizer, a schedule or a transform from its spec."""
    return make(group, single(text))


def single(text: str) -> Part:
    """Parse a spec that must name one thing; `ConfigError` if several are joined with '+'."""
    part, *others = parse(text)
    if others:
        raise ConfigError(f"{text!r}: only a method and wrappers can be joined with '+'; give one name")
    return part


def build(text: str, **provided: Any) -> Any:
    """Build a method from its spec: the first part, wrapped in each of the others in turn."""
    first, *others = parse(text)
    if first.name in known("wrappers"):
        raise ConfigError(f"{first.name!r} is a wrapper and needs a method before it; write fedavg+{first.name}")
    method = _ensure_method("methods", first.name, make("methods", first, **provided))
    for number, part in enumerate(others, 2):
        if part.name in known("methods"):
            raise ConfigError(f"{text!r}: {part.name!r} is a method, not a wrapper; give one method, then wrappers")
        method = _ensure_method("wrappers", part.name, wrap(find("wrappers", part.name), part, method))
        with_spec(method, format_spec((first, *others)[:number]))
    if spec_of(method):
        object.__setattr__(method, "spec_code", registered(("methods", spec_of(method))))  # methods are frozen
    return method


def _ensure_method(group: str, name: str, method: object) -> "Method":
    """Return a method; raise `ConfigError` if the factory of that name returned something else."""
    from .._method import Method  # imports torch, which names alone do not need

    if not isinstance(method, Method):
        code = getattr(find(group, name), "__code__", None)
        file = f" in {Path(code.co_filename).name}" if code else ""
        what = "None" if method is None else f"a {type(method).__name__}"
        raise ConfigError(
            f"{group[:-1]} {name!r}{file} returned {what}, not a Method; end its function with "
            f"{'return Method(...)' if group == 'methods' else 'return replace(method, ...)'}"
        )
    return method


def load_plugins(plugins: Iterable[str]) -> None:
    """Run plugin files or import plugin modules, which call `register`; each once in a process."""
    for plugin in plugins:
        is_file = plugin.endswith(".py")
        if is_file and not Path(plugin).is_file():
            raise ConfigError(f"plugin {plugin} is not a file; give a path to a .py file or the name of a module")
        if plugin in LOADED:
            continue
        _plugins.PLUGINS.add(plugin)
        _LOADING.append(plugin)
        try:
            runpy.run_path(plugin) if is_file else import_module(plugin)
        except FedbeyondError:
            raise
        except Exception as error:
            raise ConfigError(f"plugin {plugin} cannot be loaded: {_plugins.describe(error)}") from error
        finally:
            _LOADING.remove(plugin)
        LOADED.add(plugin)
