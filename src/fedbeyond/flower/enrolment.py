"""Enrol the sites of a run and prepare the server's side of it; no data are on the server."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import NUMERICS, WIRE, __version__, _io
from ..errors import FederationError
from ..experiment.build import assemble, without_weights
from ..experiment.config import Config
from ..experiment.prepare import Experiment
from ..experiment.run_folder import ENROLLED, ensure_same_run
from ..server import Failure
from .messages import ENROL, REPLY, Message
from .node import federated_method
from .remote import Answers, RemoteEngine, Transport, reply_or_failure

RETURNING = 120.0  # seconds to wait for known sites when a run is resumed


def prepare(
    config: Config, transport: Transport, sites: Sequence[str], guests: Sequence[str] = (), home: Path | None = None
) -> Experiment:
    """Prepare a run whose sites are on other machines.

    The run's folder `home` stores which sites enrolled. When a run is resumed, known sites may be absent and come back.
    """
    method = federated_method(config, len(sites))
    run = {"config": shared_config(config), "run": config.digest(), "sources": len(sites)}
    run |= {"fedbeyond": __version__, "wire": WIRE, "numerics": NUMERICS}
    answers = enrol_sites(transport, Message(ENROL, run), (*sites, *guests), config, home)
    facts = ensure_agreement(answers, sites, guests)
    if home:
        write_enrolled(home, answers, config)
    assembly = assemble(config, tuple(facts["classes"]), tuple(facts["shape"]), len(sites), method=method)
    engine = RemoteEngine(transport, run, {name: answers[name] for name in sites}, guests)
    domains = {name: str(own["domain"]) for name, own in engine.facts.items()}
    return Experiment(
        assembly, engine, assembly.gate(engine.sizes), engine.evaluate, assembly.levels(), client_domains=domains
    )


def shared_config(config: Config) -> dict[str, Any]:
    """Return what sites receive of a configuration: no files, which each site has for itself."""
    shared = {key: value for key, value in config.identity().items() if key not in ("data", "public")}
    return shared | {"network": without_weights(config.network)}


def enrol_sites(
    transport: Transport, hello: Message, names: Sequence[str], config: Config, home: Path | None
) -> Answers:
    """Return what every site reports; for a known site that is absent, what it reported when the run began."""
    known: dict[str, Message] = {}
    if home and (home / ENROLLED).exists():
        ensure_same_run(home, config)
        before = _io.read_json(home / ENROLLED)
        known = {name: Message(REPLY, facts) for name, facts in before["facts"].items()}
        known = known if before["run"] == config.digest() else {}
    given = transport.enrol(hello, names, RETURNING if known.keys() >= {*names} else None)
    answers = {name: reply_or_failure(name, given.get(name, Failure(name, "is not connected"))) for name in names}
    for name, answer in answers.items():
        if isinstance(answer, Failure) and name in known:
            print(f"the run continues without {name} for now: {answer.reason}", flush=True)
            answers[name] = known[name]
    return answers


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
                raise FederationError(
                    f"{name} has {key} {own.get(key)}, the federation needs {value}; fix it there, then submit again"
                )
    return first
