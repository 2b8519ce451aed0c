"""The registry of methods, wrappers, datasets, networks, optimizers, schedules and transforms, plugins included."""

import inspect
import runpy
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from .. import _plugins
from ..errors import ConfigError, FedbeyondError, nearest
from ..method import Method
from ..spec import Part, format_spec, format_value, parse

Factory = Callable[..., Any]


def _entries(module: str, names: str) -> dict[str, str | Factory]:
    """Return "module:function" for functions of a module; a star in `module` stands for the function's name."""
    return {name: f"fedbeyond.{module.replace('*', name)}:{name}" for name in names.split()}


# group -> name -> "module:function" (imported on first use), or the function itself
REGISTRY: dict[str, dict[str, str | Factory]] = {
    "methods": {
        # federated optimisation
        **_entries("methods.*", "fedavg fedavgm"),
        **_entries("methods.fedopt", "fedadam fedyogi fedadagrad"),
        **_entries("methods.*", "fedprox fednova scaffold feddyn fedsam moon perfedavg fedbn"),
        # weighting of the clients
        **_entries("methods.*", "arfl afl fedcsa fedgma"),
        # federated domain generalization
        **_entries("methods.*", "fedsb fedgca fedadg feddag ndag fedsr fediir harmofl elcfs ccst csac g2g fccl"),
        # domain generalization inside each site
        **_entries("methods.*", "rsc jigen mixup randconv ddaig ats"),
        # references: no federation
        **_entries("methods.*", "local erm dann coral mmd irm vrex groupdro"),
    },
    "wrappers": _entries("wrappers.*", "ga rc am sha mixstyle augmix dp"),
    "datasets": {
        **_entries("data.datasets._*", "styles folder"),
        **_entries("data.datasets.readers.arrays", "npz"),
        **_entries("data.datasets._benchmarks", "pacs vlcs officehome terraincognita domainnet digits"),
        **_entries("data.datasets._benchmarks", "camelyon17 midog gdrbench isic2019"),
        **_entries("data.datasets._*", "table heart"),
    },
    "networks": {
        **_entries("networks._*", "convnet"),
        **_entries("networks._resnet", "resnet18 resnet34 resnet50 resnet101 resnet152"),
        **_entries("networks._*", "alexnet"),
        **_entries("networks._vit", "vit_b_16 vit_b_32"),
        **_entries("networks._mobilenet", "mobilenet_v2"),
        **_entries("networks._*", "mlp"),
        **_entries("networks.external", "timm torchvision"),
    },
    "optimizers": _entries("optimizers", "sgd adam sam"),
    "schedules": _entries("optimizers", "constant cosine step"),
    "transforms": _entries("data.augment.transforms", "none custom ga domainbed fedsb fedadg rsc fact ccst digits"),
}

LOADED: set[str] = set()  # plugins that this process has loaded


def register(group: str, name: str, factory: Factory) -> None:
    """Add a factory to a group; raise `ConfigError` if another factory has the name."""
    if known(group).get(name, factory) is not factory:
        raise ConfigError(f"{group} already has a {name!r}; choose another name")
    REGISTRY[group][name] = factory


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
        raise ConfigError(f"{group[:-1]} {name!r} is {factory!r}, which cannot be called; register a function")
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


def presets(factory: Factory) -> dict[str, dict[str, Any]]:
    """Return a factory's named sets of options; `default` holds the defaults of its signature."""
    return {"default": {}, **getattr(factory, "__globals__", {}).get("PRESETS", {})}


def options(factory: Factory) -> dict[str, inspect.Parameter]:
    """Return the options of a factory: its parameters with a default, except those that the run provides."""
    parameters = inspect.signature(factory).parameters
    return {n: p for n, p in parameters.items() if p.default is not p.empty and n != "optimizer"}


def with_defaults(group: str, part: Part) -> Part:
    """Return a part with all its options, those of its preset and defaults included, sorted by name."""
    factory = find(group, part.name)
    preset = presets(factory).get(part.preset)
    defaults = {name: parameter.default for name, parameter in options(factory).items()}
    every = {**defaults, **(preset or {}), **part.options}
    return Part(part.name, "default" if preset is not None else part.preset, dict(sorted(every.items())))


def make(group: str, part: Part, *given: Any, **provided: Any) -> Any:
    """Call the factory named by `part` with its preset, its options and the arguments that the run provides."""
    from pydantic import ValidationError

    factory = find(group, part.name)
    sets = presets(factory)
    takes = inspect.signature(factory).parameters
    if "preset" in takes:  # the factory accepts any name and receives it
        sets, provided = {part.preset: {}}, provided | {"preset": part.preset}
    elif part.preset not in sets:
        raise ConfigError(f"{part.name!r} has no preset {part.preset!r}; it has {', '.join(sets)}")
    settable = options(factory)
    for key in part.options:
        if key not in settable:
            known_options = ", ".join(f"{n}={format_value(p.default)}" for n, p in settable.items()) or "none"
            raise ConfigError(
                f"{part.name!r} has no option {key!r}; {nearest(key, settable)} (its options: {known_options})"
            )
    accepted = {k: v for k, v in provided.items() if k in takes}
    try:
        return checked(factory)(*given, **{**sets[part.preset], **part.options, **accepted})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(step) for step in first["loc"])
        raise ConfigError(f"{part.name}: {key}={first['input']!r} is not valid: {first['msg']}") from None
    except ValueError as error:
        line = _plugins.place(error)
        raise ConfigError(f"{part}: {_plugins.describe(error) if line else error}") from (error if line else None)


@cache
def checked(factory: Factory) -> Factory:
    """Wrap a factory so that it rejects options of the wrong type, and numbers that are not finite."""
    from pydantic import validate_call

    return validate_call(config={"arbitrary_types_allowed": True, "allow_inf_nan": False})(factory)


def make_one(group: str, text: str) -> Any:
    """Build a dataset, a network, an optimizer, a schedule or a transform from its spec."""
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
    method, private = _method("methods", first, **provided), None
    for part in others:
        if part.name in known("methods"):
            raise ConfigError(f"{text!r}: {part.name!r} is a method, not a wrapper; give one method, then wrappers")
        method = _method("wrappers", part, method)
        private = private or (part if method.privacy else None)
        if private and not method.keeps_privacy:  # something would leave the site without noise
            wrappers = (wrapper for wrapper in others if wrapper is not private)
            raise ConfigError(
                f"{text!r}: {part.name} changes what leaves a site after {private.name} added noise to it; put "
                f"{private.name} last, as in {format_spec((first, *wrappers, private))}"
            )
    return method


def _method(group: str, part: Part, *given: Any, **provided: Any) -> Method:
    """Make a method or wrap one; `ConfigError` if the factory returns something else."""
    method = make(group, part, *given, **provided)
    if not isinstance(method, Method):
        code = getattr(find(group, part.name), "__code__", None)
        file = f" in {Path(code.co_filename).name}" if code else ""
        what = "None" if method is None else f"a {type(method).__name__}"
        raise ConfigError(
            f"{group[:-1]} {part.name!r}{file} returned {what}, not a Method; end its function with "
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
        try:
            runpy.run_path(plugin) if is_file else import_module(plugin)
        except FedbeyondError:
            raise
        except Exception as error:
            raise ConfigError(f"plugin {plugin} cannot be loaded: {_plugins.describe(error)}") from error
        LOADED.add(plugin)
