"""Call factories of methods, datasets, networks and other parts: options, presets, checks, and the spec of the result.

A factory is a function with options, for example `fedprox(mu=0.01)`. What it returns has the attribute `spec`, the text
from which the same thing can be built again, here or in another process: `fedprox(mu=0.01)`.
"""

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, wraps
from importlib import import_module
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from . import _plugins
from .errors import ConfigError, nearest
from .spec import Part, format_spec, format_value, parse

Factory = Callable[..., Any]
F = TypeVar("F", bound=Factory)

PROVIDED = ("method", "optimizer")  # parameters that are no options: the wrapped method, and the run's optimizer


def presets(factory: Factory) -> dict[str, dict[str, Any]]:
    """Return a factory's named sets of options; `default` holds the defaults of its signature."""
    return {"default": {}, **getattr(inspect.unwrap(factory), "__globals__", {}).get("PRESETS", {})}


def options(factory: Factory) -> dict[str, inspect.Parameter]:
    """Return the options of a factory: its parameters with a default, except those that the run provides."""
    parameters = inspect.signature(factory).parameters
    return {n: p for n, p in parameters.items() if p.default is not p.empty and n not in PROVIDED}


def types(factory: Factory, extras: bool = False) -> dict[str, Any]:
    """Return the types in a factory's signature; none if they name what only a type checker imports, or a class."""
    try:
        return get_type_hints(inspect.unwrap(factory), include_extras=extras)
    except (NameError, TypeError):
        return {}


def meanings(factory: Factory) -> dict[str, str]:
    """Return the meaning of each option that has one: the text in its type, as in `Annotated[float, "step size"]`."""
    texts = {
        name: [text for text in getattr(kind, "__metadata__", ()) if isinstance(text, str)]
        for name, kind in types(factory, extras=True).items()
    }
    return {name: texts[name][-1] for name in options(factory) if texts.get(name)}


def described(factory: Factory) -> dict[str, str]:
    """Return the meaning of each option, the words to choose from, and its values in presets, all as one text.

    For example: `weights of sites: number of training images, or equal (size, uniform) [official: uniform]`.
    """
    texts, about, kinds = {}, meanings(factory), types(factory)
    for name, option in options(factory).items():
        words = ", ".join(map(format_value, choices(kinds.get(name))))
        values = {preset: given.get(name, option.default) for preset, given in presets(factory).items()}
        others = ", ".join(f"{set_}: {format_value(v)}" for set_, v in values.items() if v != option.default)
        texts[name] = " ".join(filter(None, (about.get(name), words and f"({words})", others and f"[{others}]")))
    return texts


def choices(kind: Any) -> tuple[Any, ...]:
    """Return the values of a `Literal`, and None if it is optional; nothing for any other type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    found = [value for member in get_args(kind) for value in choices(member)]
    return (*found, *([None] if found and type(None) in get_args(kind) else []))


def call(factory: Factory, part: Part, *given: Any, **provided: Any) -> Any:
    """Call a factory with the preset and the options of `part`, and the arguments that the run provides."""
    from pydantic import ValidationError

    factory = inspect.unwrap(factory)
    sets, takes, settable = presets(factory), inspect.signature(factory).parameters, options(factory)
    if "preset" in takes:  # the factory accepts any name and receives it
        sets, provided = {part.preset: {}}, provided | {"preset": part.preset}
    elif part.preset not in sets:
        raise ConfigError(f"{part.name!r} has no preset {part.preset!r}; it has {', '.join(sets)}")
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
        raise ConfigError(f"{part.name}: {key}={shown(first['input'])} is not valid: {first['msg']}") from None
    except ValueError as error:
        line = _plugins.place(error)
        raise ConfigError(f"{part}: {_plugins.describe(error) if line else error}") from (error if line else None)


@cache
def checked(factory: Factory) -> Factory:
    """Wrap a factory so that it rejects options of the wrong type, and numbers that are not finite."""
    from pydantic import validate_call

    if isinstance(factory, type):  # pydantic wraps functions only
        return factory
    return validate_call(config={"arbitrary_types_allowed": True, "allow_inf_nan": False})(factory)


def shown(value: object) -> str:
    """Return a value as text for an error message; of long ones, such as arrays, only the type."""
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"(a {type(value).__name__})"


def exposed(factory: F, name: str = "") -> F:
    """Return a factory as users call it: options are checked, `preset=` chooses a preset, the result has a `spec`.

    A wrapper takes a method as its first argument. A run gives its optimizer to its method; a method that is built with
    an optimizer of its own has no spec.
    """
    signature, name, plain_types = inspect.signature(factory), name or factory.__name__, types(factory)
    wraps_method = "method" in signature.parameters
    settable = options(factory)
    visible = [
        p.replace(annotation=plain_types.get(n, p.annotation))
        for n, p in signature.parameters.items()
        if n in settable or n in ("method", "preset")
    ]
    if "preset" not in signature.parameters:
        visible.append(inspect.Parameter("preset", inspect.Parameter.KEYWORD_ONLY, default="default"))
    shown_signature = signature.replace(parameters=visible)

    @wraps(factory)
    def build(*args: Any, **kwargs: Any) -> Any:
        takes_optimizer = "optimizer" in signature.parameters
        own = {"optimizer": kwargs.pop("optimizer")} if takes_optimizer and "optimizer" in kwargs else {}
        if unknown := next((key for key in kwargs if key not in shown_signature.parameters), None):
            raise ConfigError(f"{name!r} has no option {unknown!r}; {nearest(unknown, shown_signature.parameters)}")
        try:
            bound = shown_signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ConfigError(f"{name}({', '.join(shown_signature.parameters)}): {error}") from None
        inner = (bound.pop("method"),) if wraps_method else ()
        if inner and not hasattr(inner[0], "client"):
            raise ConfigError(f"{name}: got {shown(inner[0])}; give a method, as in {name}(fedavg())")
        part = Part(name, str(bound.pop("preset", "default")), {key: plain(value) for key, value in bound.items()})
        made = wrap(factory, part, *inner) if wraps_method else call(factory, part, **own)
        inside = [*(spec_of(method) for method in inner), *([""] if own else [])]
        made = with_spec(made, "+".join([*inside, str(part)]) if all(inside) else "")
        if code := getattr(inner[0], "spec_code", None) if inner else None:
            object.__setattr__(made, "spec_code", code)  # of own methods in the spec
        return made

    build.__signature__ = shown_signature  # type: ignore[attr-defined]
    build.__name__ = build.__qualname__ = name
    build.__doc__ = documented(factory, shown_signature)
    return build  # type: ignore[return-value]


def documented(factory: Factory, signature: inspect.Signature) -> str:
    """Return a factory's docstring with the meaning of each parameter of `signature`, in Google's style."""
    about = {"method": "the method to wrap", **described(factory)}
    if "preset" in inspect.signature(factory).parameters:
        about["preset"] = "name of the network"
    elif len(presets(factory)) > 1:
        about["preset"] = f"a named set of options: {', '.join(presets(factory))}"
    lines = [f"    {name}: {about[name]}" for name in signature.parameters if about.get(name)]
    return "\n".join([inspect.getdoc(factory) or "", *(["", "Args:", *lines] if lines else [])])


def places(module: str, names: str) -> dict[str, str]:
    """Return "module:function" for functions of a module; a star in `module` stands for the function's name."""
    return {name: f"fedbeyond.{module.replace('*', name)}:{name}" for name in names.split()}


def namespace(
    module: str, places: Mapping[str, str], functions: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module whose names are factories, each imported when it is first used.

    `places` gives each name its "module:function". `functions` are others, which take objects and have no spec.
    """
    known = {**places, **(functions or {})}

    def get(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {module!r} has no attribute {name!r}; {nearest(name, known)}")
        where, _, function = known[name].partition(":")
        found = getattr(import_module(where), function)
        found = exposed(found, name) if name in places else found
        setattr(sys.modules[module], name, found)
        return found

    return get, lambda: sorted(known)


def wrap(factory: Factory, part: Part, method: Any) -> Any:
    """Wrap a method; raise `ConfigError` if something would then leave a site without the noise of `dp`."""
    wrapped = call(factory, part, method)
    if getattr(wrapped, "privacy", None) and not wrapped.keeps_privacy:
        parts = parse(spec_of(method)) if spec_of(method) else ()
        noisy = [each for each in parts if each.name == "dp"]
        better = format_spec((*(each for each in parts if each not in noisy), part, *noisy))
        last = f"dp last, as in {better}" if noisy else "the wrapper that adds noise last"
        raise ConfigError(f"{part.name} changes what leaves a site after noise was added to it; put {last}")
    return wrapped


def plain(value: Any) -> Any:
    """Return a path as text, and anything else as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def with_spec(thing: Any, text: str) -> Any:
    """Give a thing the spec from which it can be built again; empty if there is none."""
    if text:
        with suppress(AttributeError):  # None, for one
            object.__setattr__(thing, "spec", text)  # records are frozen
    return thing


def spec_of(thing: Any) -> str:
    """Return the spec of a thing that a factory built; empty if it was made or changed in another way."""
    return str(getattr(thing, "spec", ""))


def with_defaults(factory: Factory, part: Part) -> Part:
    """Return a part with all its options, those of its preset and defaults included, sorted by name."""
    preset = presets(factory).get(part.preset)
    defaults: Mapping[str, Any] = {name: parameter.default for name, parameter in options(factory).items()}
    every = {**defaults, **(preset or {}), **part.options}
    return Part(part.name, "default" if preset is not None else part.preset, dict(sorted(every.items())))
