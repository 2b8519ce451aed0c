"""Enrol the sites of a run and prepare the server's side of it; no data are on the server."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictInt, StrictStr, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from .. import NUMERICS, WIRE, __version__, _io
from ..errors import FederationError, printable
from ..experiment.build import assemble
from ..experiment.config import Config
from ..experiment.prepare import Experiment
from ..experiment.run_folder import ENROLLED, ensure_same_run
from ..networks.frozen import frozen_part
from ..server import Failure
from .messages import ENROL, REPLY, Message
from .node import federated_method
from .remote import MAX_PRIVATE, Answers, Check, RemoteEngine, Transport, reply_or_failure
from .shared_config import shared_config
from .site_config import Role

RETURNING = 120.0  # seconds to wait for known sites when a run is resumed
MAX_IMAGES, MAX_CLASSES, MAX_SIDE = 10**8, 10**4, 2**16  # largest plausible numbers of a site


def _ensure_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has control characters")
    return text


Text = Annotated[StrictStr, Field(min_length=1, max_length=200)]
Name = Annotated[Text, AfterValidator(_ensure_printable)]
Count = Annotated[StrictInt, Field(ge=1, le=MAX_IMAGES)]


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Images:
    """The number of images of each split of a site."""

    train: Count
    val: Count
    local_test: Count = 0


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Facts:
    """Everything that a site says of itself when it enrols, and nothing else."""

    site: Name
    role: Role
    shape: Annotated[list[Annotated[StrictInt, Field(ge=1, le=MAX_SIDE)]], Field(min_length=1, max_length=4)]
    classes: Annotated[list[Text], Field(min_length=1, max_length=MAX_CLASSES)]  # compared with those of all sites
    domain: Name
    fedbeyond: Name
    wire: StrictInt
    numerics: StrictInt
    private_bytes: Annotated[StrictInt, Field(ge=0, le=MAX_PRIVATE)]
    images: Images | None = None  # a guest has none


CHANGING = ("fedbeyond", "wire", "private_bytes")  # what may change during a run: all may be upgraded in between


def prepare(
    config: Config,
    transport: Transport,
    sites: Sequence[str],
    guests: Sequence[str] = (),
    home: Path | None = None,
    agreed: Mapping[str, int] | None = None,
) -> Experiment:
    """Prepare a run whose sites are on other machines; `agreed`: how many images sites have, if that was agreed on.

    The run's folder `home` stores which sites enrolled. When a run is resumed, known sites may be absent and come back.
    """
    method = federated_method(config, len(sites))
    run = {"config": shared_config(config), "run": config.digest(), "sources": len(sites)}
    run |= {"fedbeyond": __version__, "wire": WIRE, "numerics": NUMERICS}
    answers = enrol_sites(transport, Message(ENROL, run), (*sites, *guests), config, home, agreed or {})
    facts = ensure_agreement(answers, sites, guests)
    ensure_own_domains(answers, sites, config.train.clients_per_domain)
    if home:
        write_enrolled(home, answers, config)
    assembly = assemble(config, tuple(facts["classes"]), tuple(facts["shape"]), len(sites), method=method)
    trained = {name: answer for name, answer in answers.items() if isinstance(answer, Message) and name in sites}
    gate = assembly.gate({name: answer.notes["images"]["train"] for name, answer in sorted(trained.items())})
    run |= {"frozen": assembly.frozen} if assembly.frozen else {}
    engine = RemoteEngine(transport, run, trained, gate, guests, frozen_part(assembly.nets["model"]))
    domains = {name: str(own["domain"]) for name, own in engine.facts.items()}
    return Experiment(assembly, engine, gate, engine.evaluate, assembly.levels(), client_domains=domains)


def enrol_sites(
    transport: Transport,
    hello: Message,
    names: Sequence[str],
    config: Config,
    home: Path | None,
    agreed: Mapping[str, int],
) -> Answers:
    """Return what every site reports; for a known site that is absent, what it reported when the run began."""
    known: dict[str, Message] = {}
    if home and (home / ENROLLED).exists():
        ensure_same_run(home, config)
        before = _io.read_json(home / ENROLLED)
        known = {name: Message(REPLY, facts | {"wire": WIRE}) for name, facts in before["facts"].items()}
        known = known if before["run"] == config.digest() else {}
    check = site_check(agreed, {name: message.notes for name, message in known.items()})
    given = transport.enrol(hello, names, RETURNING if known.keys() >= {*names} else None, check)
    answers = {name: reply_or_failure(name, given.get(name, Failure(name, "is not connected"))) for name in names}
    for name, answer in answers.items():
        if isinstance(answer, Failure) and name in known:
            print(f"the run continues without {name} for now: {answer.reason}", flush=True)
            answers[name] = known[name]
    return answers


def site_check(agreed: Mapping[str, int], known: Mapping[str, Mapping[str, Any]]) -> Check:
    """Return the check of what sites say of themselves: of the right form, as agreed, and the same during a run."""
    frozen = dict(known)

    def check(name: str, answer: Message) -> Message | Failure:
        reason = fault_of(answer.notes, agreed.get(name)) or change_in(answer.notes, frozen.get(name, answer.notes))
        if reason:
            return Failure(name, printable(reason))
        frozen.setdefault(name, answer.notes)
        return answer

    return check


def fault_of(notes: Mapping[str, Any], agreed: int | None = None) -> str | None:
    """Return why what a site says of itself cannot be used; None if it can. What it says is not repeated."""
    try:
        facts = TypeAdapter(Facts).validate_python(notes)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        known = first["type"] != "unexpected_keyword_argument"  # an unexpected name is not repeated either
        where = ".".join(str(step) for step in first["loc"]) if known else "a name that is not asked for"
        return f"what it says of itself is malformed: {where}: {first['msg']}"
    if len(set(facts.classes)) < len(facts.classes):
        return "what it says of itself is malformed: classes: one is named twice"
    if (facts.images is None) != (facts.role == "guest"):
        return "what it says of itself is malformed: images: a site that trains has them, a guest has none"
    total = facts.images.train + facts.images.val + facts.images.local_test if facts.images else 0
    if facts.images and agreed is not None and total != agreed:
        return f"it claims {total} images, agreed are {agreed} (images in federation.toml)"
    return None


def change_in(notes: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """Return what differs from what a site said when the run began; None if nothing does."""
    changed = [key for key in before if key not in CHANGING and notes.get(key) != before[key]]
    changed += [key for key in notes if key not in before]
    if not changed:
        return None
    key = changed[0]
    return (
        f"its {key} changed from {before.get(key)} to {notes.get(key)} during the run; restore it, or start a new run"
    )


def write_enrolled(home: Path, answers: Answers, config: Config) -> None:
    """Write what each site reported, for a server that is started again."""
    with _io.storage_errors(home):
        home.mkdir(parents=True, exist_ok=True)
    ensure_same_run(home, config)
    facts = {name: message.notes for name, message in answers.items() if isinstance(message, Message)}
    _io.write(home / ENROLLED, json.dumps({"run": config.digest(), "facts": facts}, indent=1).encode())


def ensure_agreement(answers: Answers, sites: Sequence[str], guests: Sequence[str]) -> dict[str, Any]:
    """Return what all sites have in common; `FederationError` if one is absent, or has another task or version."""
    missing = [f"{name}: {answer.reason}" for name, answer in answers.items() if isinstance(answer, Failure)]
    if missing:
        raise FederationError(f"not all sites enrolled ({'; '.join(missing)}); start or fix them, then submit again")
    facts = {name: answer.notes for name, answer in answers.items() if isinstance(answer, Message)}
    first = facts[sites[0]]
    for name, own in facts.items():
        wanted = {"role": "guest" if name in guests else "train", "wire": WIRE, "numerics": NUMERICS}
        wanted |= {"classes": first["classes"], "shape": first["shape"]}
        for key, value in wanted.items():
            if own.get(key) != value:
                given, needed = printable(str(own.get(key)), 200), printable(str(value), 200)
                raise FederationError(
                    f"{name} has {key} {given}, the federation needs {needed}; fix it there, then submit again"
                )
    return first


def ensure_own_domains(answers: Answers, sites: Sequence[str], clients: int) -> None:
    """Raise `FederationError` if a site claims a domain that is not its own: it would count among another's clients.

    A domain has the name of its site. Several clients of a domain are named as in the simulator: photo-0, photo-1.
    """
    for name in sites:
        answer = answers[name]
        claimed = str(answer.notes["domain"]) if isinstance(answer, Message) else name
        width = len(str(clients - 1))
        own = [claimed] if clients == 1 else [f"{claimed}-{number:0{width}}" for number in range(clients)]
        if name not in own:
            raise FederationError(
                f"{name} says that its domain is {printable(claimed)!r}; with train.clients_per_domain = {clients} a "
                f"site of that domain has the name {' or '.join(map(repr, map(printable, own[:2])))}: fix domain in "
                "its site.toml, then submit again"
            )
