"""Digests of code and objects that are registered in a running process: changed code never shows old results."""

import dataclasses
import dis
import functools
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..spec import parse

INSTALLED = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}  # code with versions of its own
Seen = dict[int, object]  # by id, and held: an id is used again once its object is gone
SKIPPED = ("__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__")  # of a class


CODE: dict[tuple[str, str], str] = {}  # group and name of what was registered in this process, not by a plugin


def registered(*specs: tuple[str, str | None]) -> dict[str, str]:
    """Return the digests of the registered code in the specs of some groups, by "group.name"."""
    found = {}
    for group, text in specs:
        for part in parse(text) if text and CODE else ():
            for each in (group, "wrappers") if group == "methods" else (group,):
                if (each, part.name) in CODE:
                    found[f"{each}.{part.name}"] = CODE[each, part.name]
    return found


def digest(thing: object) -> str:
    """Return a digest of a function, class, module or record: its bytecode, its constants, and what these refer to.

    Two equal digests mean equal code, as far as it can be followed: through closures, defaults, fields, and the
    globals that it reads. Of installed packages only names count.
    """
    content = sha256()
    for token in _tokens(thing, {}):
        content.update(token + b"\0")
    return content.hexdigest()[:16]


def _tokens(thing: Any, seen: Seen) -> Iterator[bytes]:
    """Yield what a digest is made of."""
    if thing is None or isinstance(thing, bool | int | float | str | bytes):
        yield repr(thing).encode()
        return
    if id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, FunctionType | MethodType):
        yield from _tokens(getattr(thing, "__self__", None), seen)
        yield from _function(inspect.unwrap(thing), seen)
    elif isinstance(thing, ModuleType):
        if _is_installed(thing.__name__):
            yield thing.__name__.encode()
        else:
            members = {name: each for name, each in vars(thing).items() if not name.startswith("__")}
            yield from _tokens({name: each for name, each in members.items() if _is_part(each)}, seen)
    elif isinstance(thing, functools.partial):
        yield from _all((thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, type):
        yield from _class(thing, seen)
    elif isinstance(thing, classmethod | staticmethod):
        yield from _tokens(thing.__func__, seen)
    elif isinstance(thing, property):
        yield from _tokens(thing.fget, seen)
    elif isinstance(thing, Mapping):
        yield from _all(sorted(thing.items(), key=lambda item: str(item[0])), seen)
    elif isinstance(thing, set | frozenset):
        yield from _all(sorted(thing, key=str), seen)
    elif isinstance(thing, list | tuple):
        yield from _all((type(thing).__qualname__, *thing), seen)
    elif dataclasses.is_dataclass(thing):
        yield from _all([getattr(thing, field.name) for field in dataclasses.fields(thing)], seen)
    elif hasattr(thing, "state_dict"):  # a network, an optimizer
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(thing))  # addresses of functions
        yield from _all((type(thing), text, thing.state_dict(), _attributes(thing)), seen)
    elif hasattr(thing, "detach"):  # a tensor
        import torch

        array = thing.detach().cpu().contiguous()
        yield f"{array.dtype} {tuple(array.shape)}".encode()
        yield array.view(-1).view(torch.uint8).numpy().tobytes() if array.numel() else b""
    elif hasattr(thing, "__array_interface__"):
        yield f"{thing.dtype} {thing.shape}".encode()
        yield thing.tobytes()
    else:
        yield from _all((type(thing), vars(thing) if hasattr(thing, "__dict__") else ()), seen)


def _attributes(net: Any) -> dict[str, Any]:
    """Return what a network and its parts hold besides parameters and buffers: numbers, texts and functions."""
    parts = net.named_modules() if hasattr(net, "named_modules") else ()
    return {
        f"{path}.{name}": value
        for path, part in parts
        for name, value in vars(part).items()
        if not name.startswith("_") and name != "training" and _is_part(value)
    }


def _all(things: Any, seen: Seen) -> Iterator[bytes]:
    for thing in things:
        yield from _tokens(thing, seen)


def _function(function: Any, seen: Seen) -> Iterator[bytes]:
    """Yield the code of a function, its defaults, what its closure holds, and the globals that it reads."""
    function = getattr(function, "__func__", function)
    if _is_ours(function):
        yield f"{function.__module__}:{function.__qualname__}".encode()
    else:
        yield from _code(function.__code__)
    yield from _all((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _tokens(cell.cell_contents, seen)
        except ValueError:  # an empty cell: a name that is not bound yet
            continue
    for name in [] if _is_ours(function) else sorted(_names(function.__code__)):
        named = function.__globals__.get(name)
        if isinstance(named, ModuleType) or _is_part(named):
            yield name.encode()
            yield from _tokens(named, seen)


def _class(kind: type, seen: Seen) -> Iterator[bytes]:
    """Yield the name of a class, and its functions and constants."""
    yield f"{kind.__module__}:{kind.__qualname__}".encode()
    if not _is_ours(kind):
        constants = (FunctionType, bool, int, float, str, classmethod, staticmethod, property)
        members = {name: member for name, member in vars(kind).items() if isinstance(member, constants)}
        yield from _all((kind.__bases__, {name: members[name] for name in members if name not in SKIPPED}), seen)


def _code(code: CodeType) -> Iterator[bytes]:
    """Yield bytecode with its names and constants; neither comments nor line numbers."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        elif isinstance(constant, frozenset):  # its order depends on the process
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


def _names(code: CodeType) -> set[str]:
    """Return the global names that code reads, inner functions included."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    read = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return read.union(*map(_names, inner))


def _is_part(thing: object) -> bool:
    """Return whether code depends on a global or an attribute: constants, containers, arrays, networks, own code."""
    if isinstance(thing, FunctionType | type):
        return not _is_installed(str(thing.__module__))
    if isinstance(thing, bool | int | float | str | bytes | list | tuple | set | frozenset | Mapping):
        return True
    if isinstance(thing, functools.partial) or dataclasses.is_dataclass(thing):
        return True
    return any(hasattr(thing, name) for name in ("state_dict", "detach", "__array_interface__"))


def _is_ours(thing: Any) -> bool:
    return _is_installed(str(thing.__module__))


@functools.cache
def _is_installed(module: str) -> bool:
    """Return whether a module belongs to Python, fedbeyond or an installed package, whose versions identify it."""
    top = module.partition(".")[0]
    if top == "__main__":  # a script or a notebook
        return False
    if top == "fedbeyond" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and any(Path(file).is_relative_to(place) for place in INSTALLED)
