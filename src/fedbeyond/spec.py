"""Parse and write specifications of methods and other parts: `fedprox(mu=0.1)`, `fedsb:official`, `fedavg+ga`."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .errors import ConfigError

PART = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)(?::(?P<preset>[\w.-]+))?(?:\((?P<options>.*)\))?", re.DOTALL)

POOLED = "pooled"  # the name of the single site of a pooled run, which holds all data


class Part(NamedTuple):
    """A registered name, one of its presets, and the options that override the preset."""

    name: str
    preset: str = "default"
    options: Mapping[str, Any] = {}

    def __str__(self) -> str:
        preset = "" if self.preset == "default" else f":{self.preset}"
        options = ", ".join(f"{key}={format_value(value)}" for key, value in self.options.items())
        return f"{self.name}{preset}" + (f"({options})" if options else "")


def parse(text: str) -> tuple[Part, ...]:
    """Parse a specification into its parts, in the order they are applied."""
    return tuple(_part(piece.strip(), text) for piece in _split(text, "+"))


def format_spec(parts: tuple[Part, ...]) -> str:
    """Return the canonical specification of `parts`, which names a method in tables and folders."""
    return "+".join(str(part) for part in parts)


def from_table(table: Mapping[str, Any]) -> str:
    """Return the specification of a TOML table: `name`, `preset`, options, and a table for each further part."""
    if not isinstance(table.get("name"), str):
        raise ConfigError(f"a table that describes a part needs a 'name', got {dict(table)}; add name = '...'")
    first, *others = parse(table["name"])
    rest = {key: value for key, value in table.items() if key not in ("name", "preset")}
    first_options = {key: rest.pop(key) for key in list(rest) if not isinstance(rest[key], dict)}
    parts = [Part(first.name, table.get("preset", first.preset), {**first.options, **first_options})]
    for part in others:
        options = dict(rest.pop(part.name, {}))
        preset = options.pop("preset", part.preset)
        parts.append(Part(part.name, preset, {**part.options, **options}))
    if rest:
        raise ConfigError(
            f"{table['name']!r} has no part called {', '.join(map(repr, rest))}; add it to 'name' or delete its table"
        )
    return format_spec(tuple(parts))


def to_table(text: str) -> dict[str, Any]:
    """Invert `from_table`, so that `--set method.mu=0.1` can change an option inside a specification."""
    first, *others = parse(text)
    table: dict[str, Any] = {"name": "+".join(part.name for part in (first, *others)), "preset": first.preset}
    table |= first.options
    for part in others:
        table[part.name] = {"preset": part.preset, **part.options}
    return table


def _part(piece: str, text: str) -> Part:
    match = PART.fullmatch(piece)
    if not match:
        path = f"; a path is an option, as in folder(root={piece})" if "/" in piece else ""
        raise ConfigError(f"cannot read {piece!r} in {text!r}; write it as name, name(key=value) or name+name{path}")
    options = {}
    for pair in filter(str.strip, _split(match["options"] or "", ",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"cannot read {pair.strip()!r} in {text!r}; write options as key=value")
        if key.strip() in options:
            raise ConfigError(f"{key.strip()} is given twice in {text!r}; leave one out")
        options[key.strip()] = read_value(value.strip())
    return Part(match["name"], match["preset"] or "default", options)


def read_value(text: str) -> Any:
    """Parse a TOML value; a bare word is a string, also in a list; `none` is None."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if text.startswith("[") and text.endswith("]"):
            return [read_value(item.strip()) for item in _split(text[1:-1], ",") if item.strip()]
        return text.strip("'\"")


def format_value(value: Any) -> str:
    """Write a value as in a specification: the inverse of `read_value`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        bare = re.fullmatch(r"[A-Za-z_./][\w./-]*", value) and read_value(value) == value
        return value if bare else _quote(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_quote(item) if isinstance(item, str) else format_value(item) for item in value)}]"
    return str(value)


def _quote(text: str) -> str:
    """Write a TOML string: literal if possible, otherwise escaped as in JSON."""
    return f"'{text}'" if "'" not in text and text.isprintable() else json.dumps(text)


def _split(text: str, mark: str) -> Iterator[str]:
    """Split `text` at `mark`, but not inside brackets or quotes."""
    depth, quote, escaped, begin = 0, "", False, 0
    for index, character in enumerate(text):
        if quote:
            if not escaped and character == quote:
                quote = ""
            escaped = not escaped and character == "\\" and quote == '"'
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == mark and depth == 0:
            yield text[begin:index]
            begin = index + 1
    yield text[begin:]


def unseen_domains(target: str | None) -> tuple[str, ...]:
    """Return the domain names in a target: `photo+sketch` names two."""
    return tuple(target.split("+")) if target else ()
