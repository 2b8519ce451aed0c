"""The configuration of runs: a TOML file as frozen records. The error for an unknown key names the nearest one."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic.dataclasses import dataclass

from .. import spec
from ..errors import ConfigError, nearest
from .code import registered
from .figure_kinds import KINDS


def _spec(value: object) -> object:
    if isinstance(value, dict):
        value = spec.from_table(value)
    return spec.format_spec(spec.parse(value)) if isinstance(value, str) else value


def _spec_or_none(value: object) -> object:
    """Treat the value None, as --set reads `none`, as the name "none"."""
    return _spec("none" if value is None else value)


def _joined_targets(value: object) -> object:
    """Join a list of unseen domains with plus signs."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return "+".join(value)
    return value


def _listed(value: object) -> object:
    """Treat a single text or number as a list of one."""
    return (value,) if isinstance(value, str | int) else value


def _share(value: object) -> object:
    if value == "official" or (isinstance(value, int | float) and 0 < value < 1):
        return value
    raise ValueError("give a share between 0 and 1, or 'official' for the dataset's official split")


def _share_or_none(value: object) -> object:
    return 0.0 if value == 0 else _share(value)


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Drop values that are given again."""
    return tuple(dict.fromkeys(values))


def _distinct_targets(targets: tuple[str, ...]) -> tuple[str, ...]:
    """Drop targets that are given again; the order of the domains in a target does not matter."""
    first: dict[frozenset[str], str] = {}
    for target in targets:
        first.setdefault(frozenset(target.split("+")), target)
    return tuple(first.values())


def _figure(value: object) -> object:
    if isinstance(value, str) and value in KINDS:
        return value
    raise ValueError(f"no such figure; {nearest(str(value), KINDS)}")


Spec = Annotated[str, BeforeValidator(_spec)]
Choice = Annotated[str, BeforeValidator(_spec_or_none)]
Target = Annotated[str, BeforeValidator(_joined_targets)]
Count = Annotated[int, Field(gt=0)]
Listed = BeforeValidator(_listed)
FigureKind = Annotated[str, BeforeValidator(_figure)]
Share = float | Literal["official"]
SET_BY_SPLIT = ("validation", "test", "clients_per_domain", "label_skew", "mixing", "disjoint", "target_part")


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Train:
    """How sites train, whatever the method."""

    rounds: Count = 20
    epochs: Count = 1
    batch_size: Count = 32
    schedule: Spec = "constant"  # of the learning rate, over rounds
    validation: Annotated[Share, BeforeValidator(_share)] = 0.1  # share of each domain, or the official split
    test: Annotated[Share, BeforeValidator(_share_or_none)] = 0.0  # share for an in-domain test, or the official split
    evaluate_every: Count = 1  # rounds; the last one is always evaluated
    select: Literal["source-validation", "source-validation-balanced"] = "source-validation"  # of best.safetensors
    clients_per_domain: Count = 1
    label_skew: Annotated[float, Field(gt=0)] | None = None  # Dirichlet concentration; None: spread evenly
    clients_per_round: Count | None = None  # None: all
    quorum: Count | None = None  # None: all but one, at least two
    part: Spec = "all"  # of the network that is trained; the rest is frozen
    transform: Choice = "none"  # of training images, before the method's own
    batchnorm: Literal["average", "reestimate", "local", "frozen"] = "reestimate"
    precision: Literal["float32", "bfloat16"] = "float32"  # of products in training; bfloat16 needs a GPU
    target_part: Literal["whole", "test"] = "whole"  # of the unseen domain; test: the official test part
    mixing: Annotated[float, Field(ge=0, le=1)] = 0.0  # 0: one domain a client; 1: an even mix of all
    disjoint: Literal["groups"] | None = None  # images of a patient, case or slide stay together
    split: str | None = None  # a split file; {target} and {seed} are filled in

    def __post_init__(self) -> None:
        given = [name for name in SET_BY_SPLIT if getattr(self, name) != getattr(Train, name)]
        if self.split is not None and given:
            raise ValueError(
                f"the split file {self.split!r} defines the partition; leave out {', '.join(given)}, or leave out split"
            )
        if self.disjoint and "official" in (self.validation, self.test):
            raise ValueError(
                "the official split cannot be changed; leave out disjoint, or give validation and test a share"
            )
        if self.validation == "official" and self.test not in (0, "official"):
            raise ValueError("the official split cannot be changed; set test = 'official', or give validation a share")
        shares = [share for share in (self.validation, self.test) if share != "official"]
        if sum(shares) >= 1:
            raise ValueError(f"validation and test take {sum(shares):.0%} of the images; leave some to train on")
        if self.label_skew is not None and self.clients_per_domain == 1:
            raise ValueError("label_skew spreads a domain's labels over its clients; set clients_per_domain as well")

    @property
    def plain(self) -> bool:
        """Return whether each source domain is one client, and each unseen domain is evaluated as a whole."""
        keys = ("split", "test", "clients_per_domain", "mixing", "disjoint", "target_part")
        return all(getattr(self, key) == getattr(Train, key) for key in keys)


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Bench:
    """A grid of runs; what is not given is taken from the single run."""

    methods: Annotated[tuple[Spec, ...], Listed, AfterValidator(_distinct)] = ()
    # no targets, and no single target: every domain in turn
    targets: Annotated[tuple[Target, ...], Listed, AfterValidator(_distinct_targets)] = ()
    seeds: Annotated[tuple[int, ...], Listed, AfterValidator(_distinct)] = ()
    figures: Annotated[tuple[FigureKind, ...], Listed] = ()  # drawn for the page after the runs


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Config:
    """One run, and the grid that `bench` makes of it."""

    method: Spec = "fedavg"
    target: Target | None = None  # the domain that takes no part; several as a list
    seed: int = 0
    data: Spec = "styles"
    network: Spec = "convnet"
    optimizer: Spec = "sgd(lr=0.05, momentum=0.9, weight_decay=0.0005)"
    train: Train = Train()
    plugins: Annotated[tuple[str, ...], Listed] = ()
    public: Spec | None = None  # unlabelled images that every site may use, for methods that need them
    bench: Bench = Bench()

    def identity(self) -> dict[str, Any]:
        """Return everything that identifies this run, to compare and to store it."""
        plugins = [f"{plugin} {_digest(plugin)}" if plugin.endswith(".py") else plugin for plugin in self.plugins]
        train = {key: value for key, value in asdict(self.train).items() if (key, value) != ("part", Train.part)}
        if path := self.split_file():
            train["split"] = f"{self.train.split} {_digest(str(path))}"
        others = {key: value for key, value in asdict(self).items() if key != "bench"}
        return others | {"train": train, "plugins": plugins} | ({"code": code} if (code := self.code()) else {})

    def code(self) -> dict[str, str]:
        """Return the digests of the code and objects of this process that the run names, by "group.name"."""
        specs = [("methods", self.method), ("datasets", self.data), ("datasets", self.public)]
        specs += [("networks", self.network), ("parts", self.train.part), ("optimizers", self.optimizer)]
        return registered(*specs, ("schedules", self.train.schedule), ("transforms", self.train.transform))

    def digest(self) -> str:
        """Return a digest that identifies this run."""
        return sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:16]

    def split_file(self) -> Path | None:
        """Return the split file of this run, if it has one."""
        if self.train.split is None:
            return None
        return Path(self.train.split.replace("{target}", str(self.target)).replace("{seed}", str(self.seed)))

    def setting(self) -> str:
        """Return a digest of everything that runs in one table must have in common."""
        common = {k: v for k, v in self.identity().items() if k not in ("method", "target", "seed", "code")}
        shared = {name: value for name, value in self.code().items() if not name.startswith(("methods.", "wrappers."))}
        common |= {"code": shared} if shared else {}
        common["train"].pop("select", None)  # it changes which round is selected, and no round
        if self.train.split is not None:  # by name: its contents may depend on target and seed
            common["train"] |= {"split": self.train.split}
        return sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()[:8]


def load(path: Path | None, settings: Sequence[str] = (), grid: bool | None = None, **given: Any) -> Config:
    """Read a TOML file (None: all defaults), then apply the options `given`, then `key=value` settings.

    A setting that has no effect on a `grid`, or on a single run, is refused; if `grid` is None, both are meant.
    """
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; give the path of a TOML file") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None
    table |= (given := {key: value for key, value in given.items() if value is not None})
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ConfigError(f"--set takes key=value, as in --set train.rounds=5; got {setting!r}")
        if key in given:
            raise ConfigError(f"{key} is given twice, by --{key} {given[key]} and by --set {setting}; leave one out")
        _set(table, key, spec.read_value(value), Config, setting)
    config = parse(table, str(path or "--set"))
    if grid is not None:
        _ensure_used(config, settings, grid)
    return config


def _ensure_used(config: Config, settings: Iterable[str], grid: bool) -> None:
    """Raise `ConfigError` if a setting has no effect on a single run, or on a grid."""
    for setting in settings:
        key = setting.partition("=")[0].partition(".")[0].strip()
        if key == "bench" and not grid:
            raise ConfigError(f"--set {setting} has no effect on a single run; use fedbeyond bench, or leave it out")
        if grid and key in ("method", "target", "seed") and getattr(config.bench, f"{key}s"):
            raise ConfigError(
                f"--set {setting} has no effect, because bench.{key}s lists the {key}s to compare; "
                f"set bench.{key}s instead"
            )


def parse(table: dict[str, Any], source: str = "config") -> Config:
    """Validate a table and return it as a Config."""
    _ensure_known(table, Config, source)
    try:
        return Config(**table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(step) for step in first["loc"])
        given = "" if isinstance(first["input"], dict) else f" = {first['input']!r}"  # a table would be too long
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{source}: {key}{given} is not valid: {reason}") from None


def from_identity(identity: dict[str, Any], source: str) -> Config:
    """Return the Config whose `identity` is given; digests of code, plugins and split files are left out."""
    table, train = {key: value for key, value in identity.items() if key != "code"}, dict(identity.get("train", {}))
    if train.get("split"):
        train["split"] = train["split"].rpartition(" ")[0]
    table |= {"train": train, "plugins": [name.partition(" ")[0] for name in identity.get("plugins", [])]}
    return parse(table, source)


def cells(config: Config, domains: Iterable[str]) -> Iterator[Config]:
    """Yield the runs of a grid: every method on every target with every seed."""
    bench = config.bench
    for seed in bench.seeds or (config.seed,):
        for target in bench.targets or ((config.target,) if config.target else tuple(domains)):
            for method in bench.methods or (config.method,):
                yield replace(config, method=method, target=target, seed=seed, bench=Bench())


def _digest(plugin: str) -> str:
    return sha256(Path(plugin).read_bytes()).hexdigest()[:12] if Path(plugin).is_file() else "missing"


def _ensure_known(table: dict[str, Any], record: type, source: str, path: str = "") -> None:
    allowed = {field.name: field for field in fields(record)}
    for key, value in table.items():
        if key not in allowed:
            raise ConfigError(f"{source}: {path}{key} is not known; {nearest(key, allowed)}")
        inner = allowed[key].default
        if isinstance(value, dict) and is_dataclass(inner):
            _ensure_known(value, type(inner), source, f"{path}{key}.")


def _set(table: dict[str, Any], key: str, value: Any, record: type, setting: str) -> None:
    """Set a dotted key of a record's table; the options of a spec are set inside it."""
    name, dot, rest = key.partition(".")
    known = {field.name: field for field in fields(record)}
    if not dot or name not in known:  # unknown names are refused when the table is validated
        table[name] = value
    elif is_dataclass(default := known[name].default):
        _set(table.setdefault(name, {}), rest, value, type(default), setting)
    elif known[name].type in (Spec, Choice, Spec | None):
        current = table.get(name, default)
        if current is None:
            raise ConfigError(
                f"--set {setting} changes an option of {name}, which is not set; give --set {name}=... first"
            )
        table[name] = options = spec.to_table(current) if isinstance(current, str) else current
        *parts, last = rest.split(".")
        for part in parts:
            options = options.setdefault(part, {})
        options[last] = value
    else:
        place = setting.partition("=")[0].removesuffix(f".{rest}")
        raise ConfigError(f"--set {setting} is not valid: {place} has no options; write --set {place}=VALUE")
