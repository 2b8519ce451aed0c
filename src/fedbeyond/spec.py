"""How parts are spelled, in files and tables alike: `fedprox(mu=0.1)`, `fedsb:official`, `fedavg+ga`."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .errors import ConfigError

PART = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)(?::(?P<preset>[\w.-]+))?(?:\((?P<options>.*)\))?", re.DOTALL)

POOLED = "pooled"  # the name of the one site, where the data of all are in one place


class Part(NamedTuple):
    """A registered name, perhaps one of its presets, and options that differ from it."""

    name: str
    preset: str = "default"
    options: Mapping[str, Any] = {}

    def __str__(self) -> str:
        preset = "" if self.preset == "default" else f":{self.preset}"
        options = ", ".join(f"{key}={spell_value(value)}" for key, value in self.options.items())
        return f"{self.name}{preset}" + (f"({options})" if options else "")


def parse(text: str) -> tuple[Part, ...]:
    """The parts of a spelling, in the order they are applied."""
    return tuple(_part(piece.strip(), text) for piece in _split(text, "+"))


def spell(parts: tuple[Part, ...]) -> str:
    """The canonical spelling, which names a method in tables and folders."""
    return "+".join(str(part) for part in parts)


def from_table(table: Mapping[str, Any]) -> str:
    """The spelling of a TOML table: `name`, `preset`, options, and a table of options for each further part."""
    if not isinstance(table.get("name"), str):
        raise ConfigError(f"a table that describes a part needs a 'name', got {dict(table)}")
    first, *others = parse(table["name"])
    rest = {key: value for key, value in table.items() if key not in ("name", "preset")}
    own = {key: rest.pop(key) for key in list(rest) if not isinstance(rest[key], dict)}
    parts = [Part(first.name, table.get("preset", first.preset), {**first.options, **own})]
    for part in others:
        options = dict(rest.pop(part.name, {}))
        preset = options.pop("preset", part.preset)
        parts.append(Part(part.name, preset, {**part.options, **options}))
    if rest:
        raise ConfigError(f"{table['name']!r} has no part called {', '.join(map(repr, rest))}")
    return spell(tuple(parts))


def to_table(text: str) -> dict[str, Any]:
    """The inverse of `from_table`, so that `--set method.mu=0.1` can reach inside a spelling."""
    first, *others = parse(text)
    table: dict[str, Any] = {"name": "+".join(part.name for part in (first, *others)), "preset": first.preset}
    table |= first.options
    for part in others:
        table[part.name] = {"preset": part.preset, **part.options}
    return table


def _part(piece: str, text: str) -> Part:
    found = PART.fullmatch(piece)
    if not found:
        raise ConfigError(f"cannot read {piece!r} in {text!r}; spell it as name, name(key=value) or name+name")
    options = {}
    for pair in filter(str.strip, _split(found["options"] or "", ",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"cannot read {pair.strip()!r} in {text!r}; options are spelled key=value")
        options[key.strip()] = read_value(value.strip())
    return Part(found["name"], found["preset"] or "default", options)


def read_value(text: str) -> Any:
    """A TOML value; a bare word is a string, `none` is None."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip("'\"")


def spell_value(value: Any) -> str:
    """A value as it is written in a spelling: the inverse of `read_value`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        bare = re.fullmatch(r"[A-Za-z_./][\w./-]*", value) and read_value(value) == value
        return value if bare else _quote(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_quote(item) if isinstance(item, str) else spell_value(item) for item in value)}]"
    return str(value)


def _quote(text: str) -> str:
    """A TOML string: literal if it can be, escaped as in JSON otherwise."""
    return f"'{text}'" if "'" not in text and text.isprintable() else json.dumps(text)


def _split(text: str, mark: str) -> Iterator[str]:
    """`text` cut at `mark`, but not inside brackets or quotes."""
    depth, quote, escaped, begin = 0, "", False, 0
    for place, letter in enumerate(text):
        if quote:
            if not escaped and letter == quote:
                quote = ""
            escaped = not escaped and letter == "\\" and quote == '"'
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == mark and depth == 0:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def unseen_domains(target: str | None) -> tuple[str, ...]:
    """The domains that a target names."""
    return tuple(target.split("+")) if target else ()
