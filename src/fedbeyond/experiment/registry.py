"""The registry of methods, wrappers, datasets, networks, optimizers, schedules and transforms, plugins included."""

import inspect
import runpy
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..errors import ConfigError, nearest
from ..spec import Part, format_spec, format_value, parse

Factory = Callable[..., Any]

# group -> name -> "module:function" (imported on first use), or the function itself
REGISTRY: dict[str, dict[str, str | Factory]] = {
    "methods": {
        # federated optimisation
        "fedavg": "fedbeyond.methods.fedavg:fedavg",
        "fedavgm": "fedbeyond.methods.fedavgm:fedavgm",
        "fedadam": "fedbeyond.methods.fedopt:fedadam",
        "fedyogi": "fedbeyond.methods.fedopt:fedyogi",
        "fedadagrad": "fedbeyond.methods.fedopt:fedadagrad",
        "fedprox": "fedbeyond.methods.fedprox:fedprox",
        "fednova": "fedbeyond.methods.fednova:fednova",
        "scaffold": "fedbeyond.methods.scaffold:scaffold",
        "feddyn": "fedbeyond.methods.feddyn:feddyn",
        "fedsam": "fedbeyond.methods.fedsam:fedsam",
        "moon": "fedbeyond.methods.moon:moon",
        "perfedavg": "fedbeyond.methods.perfedavg:perfedavg",
        "fedbn": "fedbeyond.methods.fedbn:fedbn",
        # weighting of the clients
        "arfl": "fedbeyond.methods.arfl:arfl",
        "afl": "fedbeyond.methods.afl:afl",
        "fedcsa": "fedbeyond.methods.fedcsa:fedcsa",
        "fedgma": "fedbeyond.methods.fedgma:fedgma",
        # federated domain generalization
        "fedsb": "fedbeyond.methods.fedsb:fedsb",
        "fedgca": "fedbeyond.methods.fedgca:fedgca",
        "fedadg": "fedbeyond.methods.fedadg:fedadg",
        "feddag": "fedbeyond.methods.feddag:feddag",
        "ndag": "fedbeyond.methods.ndag:ndag",
        "fedsr": "fedbeyond.methods.fedsr:fedsr",
        "fediir": "fedbeyond.methods.fediir:fediir",
        "harmofl": "fedbeyond.methods.harmofl:harmofl",
        "elcfs": "fedbeyond.methods.elcfs:elcfs",
        "ccst": "fedbeyond.methods.ccst:ccst",
        "csac": "fedbeyond.methods.csac:csac",
        "g2g": "fedbeyond.methods.g2g:g2g",
        "fccl": "fedbeyond.methods.fccl:fccl",
        # domain generalization inside each site
        "rsc": "fedbeyond.methods.rsc:rsc",
        "jigen": "fedbeyond.methods.jigen:jigen",
        "mixup": "fedbeyond.methods.mixup:mixup",
        "randconv": "fedbeyond.methods.randconv:randconv",
        "ddaig": "fedbeyond.methods.ddaig:ddaig",
        "ats": "fedbeyond.methods.ats:ats",
        # references: no federation
        "local": "fedbeyond.methods.local:local",
        "erm": "fedbeyond.methods.erm:erm",
        "dann": "fedbeyond.methods.dann:dann",
        "coral": "fedbeyond.methods.coral:coral",
        "mmd": "fedbeyond.methods.mmd:mmd",
        "irm": "fedbeyond.methods.irm:irm",
        "vrex": "fedbeyond.methods.vrex:vrex",
        "groupdro": "fedbeyond.methods.groupdro:groupdro",
    },
    "wrappers": {
        "ga": "fedbeyond.wrappers.ga:ga",
        "rc": "fedbeyond.wrappers.rc:rc",
        "am": "fedbeyond.wrappers.am:am",
        "sha": "fedbeyond.wrappers.sha:sha",
        "mixstyle": "fedbeyond.wrappers.mixstyle:mixstyle",
        "augmix": "fedbeyond.wrappers.augmix:augmix",
        "dp": "fedbeyond.wrappers.dp:dp",
    },
    "datasets": {
        "styles": "fedbeyond.data.datasets._styles:styles",
        "folder": "fedbeyond.data.datasets._folder:folder",
        "npz": "fedbeyond.data.datasets.readers.arrays:npz",
        "pacs": "fedbeyond.data.datasets._benchmarks:pacs",
        "vlcs": "fedbeyond.data.datasets._benchmarks:vlcs",
        "officehome": "fedbeyond.data.datasets._benchmarks:officehome",
        "terraincognita": "fedbeyond.data.datasets._benchmarks:terraincognita",
        "domainnet": "fedbeyond.data.datasets._benchmarks:domainnet",
        "digits": "fedbeyond.data.datasets._benchmarks:digits",
        "camelyon17": "fedbeyond.data.datasets._benchmarks:camelyon17",
        "midog": "fedbeyond.data.datasets._benchmarks:midog",
        "gdrbench": "fedbeyond.data.datasets._benchmarks:gdrbench",
        "isic2019": "fedbeyond.data.datasets._benchmarks:isic2019",
        "table": "fedbeyond.data.datasets._table:table",
        "heart": "fedbeyond.data.datasets._heart:heart",
    },
    "networks": {
        "convnet": "fedbeyond.networks._convnet:convnet",
        "resnet18": "fedbeyond.networks._resnet:resnet18",
        "resnet34": "fedbeyond.networks._resnet:resnet34",
        "resnet50": "fedbeyond.networks._resnet:resnet50",
        "resnet101": "fedbeyond.networks._resnet:resnet101",
        "resnet152": "fedbeyond.networks._resnet:resnet152",
        "alexnet": "fedbeyond.networks._alexnet:alexnet",
        "vit_b_16": "fedbeyond.networks._vit:vit_b_16",
        "vit_b_32": "fedbeyond.networks._vit:vit_b_32",
        "mobilenet_v2": "fedbeyond.networks._mobilenet:mobilenet_v2",
        "mlp": "fedbeyond.networks._mlp:mlp",
        "timm": "fedbeyond.networks.external:timm",
        "torchvision": "fedbeyond.networks.external:torchvision",
    },
    "optimizers": {
        "sgd": "fedbeyond.optimizers:sgd",
        "adam": "fedbeyond.optimizers:adam",
        "sam": "fedbeyond.optimizers:sam",
    },
    "schedules": {
        "constant": "fedbeyond.optimizers:constant",
        "cosine": "fedbeyond.optimizers:cosine",
        "step": "fedbeyond.optimizers:step",
    },
    "transforms": {
        name: f"fedbeyond.data.augment.transforms:{name}"
        for name in ("none", "custom", "ga", "domainbed", "fedsb", "fedadg", "rsc", "fact", "ccst", "digits")
    },
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
        module, _, attribute = factory.partition(":")
        factory = getattr(import_module(module), attribute)
    assert callable(factory)
    return factory


def presets(factory: Factory) -> dict[str, dict[str, Any]]:
    """Return a factory's named sets of options; `default` holds the defaults of its signature."""
    return {"default": {}, **getattr(factory, "__globals__", {}).get("PRESETS", {})}


def options(factory: Factory) -> dict[str, inspect.Parameter]:
    """Return the options of a factory: its parameters with a default, except those that the run provides."""
    parameters = inspect.signature(factory).parameters
    return {n: p for n, p in parameters.items() if p.default is not p.empty and n != "optimizer"}


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
        raise ConfigError(f"{part}: {error}") from None


@cache
def checked(factory: Factory) -> Factory:
    """Wrap a factory so that it rejects options of the wrong type."""
    from pydantic import validate_call

    return validate_call(config={"arbitrary_types_allowed": True})(factory)


def make_one(group: str, text: str, **provided: Any) -> Any:
    """Build a dataset, a network, an optimizer, a schedule or a transform from its spec."""
    return make(group, single(text), **provided)


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
    method, private = make("methods", first, **provided), None
    for part in others:
        if part.name in known("methods"):
            raise ConfigError(f"{text!r}: {part.name!r} is a method, not a wrapper; give one method, then wrappers")
        method = make("wrappers", part, method)
        private = private or (part if method.privacy else None)
        if private and not method.keeps_privacy:  # something would leave the site without noise
            wrappers = (wrapper for wrapper in others if wrapper is not private)
            raise ConfigError(
                f"{text!r}: {part.name} changes what leaves a site after {private.name} added noise to it; put "
                f"{private.name} last, as in {format_spec((first, *wrappers, private))}"
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
        try:
            runpy.run_path(plugin) if is_file else import_module(plugin)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"plugin {plugin} cannot be loaded: {type(error).__name__}: {error}") from error
        LOADED.add(plugin)
