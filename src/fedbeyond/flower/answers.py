"""Answer every kind of message for a run that a site is prepared for: requests, evaluations, moments of layers."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from .. import _io, tree
from .._method import Method
from ..classifier import batchnorm_layers, shapes_of
from ..client import answer, enrol, private_bytes
from ..engine.gate import differences
from ..engine.reestimation import is_reestimated, moments_of
from ..errors import FederationError
from ..evaluation.evaluators import evaluate_at_site
from ..evaluation.metrics import rounded
from ..experiment import checkpoint
from ..experiment.config import Config
from ..experiment.outputs import outputs_of
from ..images import Split
from ..server import Envelope, Request
from ..site import Site
from ..tree import Tree
from . import answer_limits, frozen_part, site_ledger
from .messages import ASK, ENROL, EVALUATE, FROZEN, MEASURE, REPLY, Message
from .policy import Policy
from .shared_config import config_digest, splits_digest

STATE_LOST = "restore it from a backup; without one, the site can take part again only in a new run"
MAX_KIND = 64  # characters of a kind of request in the ledger
MEASURED_AT_ONCE = 4  # runs whose models a site stores while it measures them


class Node(NamedTuple):
    """Everything that a site needs to answer the messages of one run."""

    name: str
    method: Method
    site: Site | None  # a guest has none
    net: nn.Module
    splits: Mapping[str, Split]  # that it evaluates models on
    folder: Path
    facts: dict[str, Any]  # that it reports when it enrols
    policy: Policy = Policy()  # what the site allows
    config: Config = Config()  # of the run
    sources: int = 1  # sites that train


def reply(node: Node, message: Message) -> Message:
    """Answer a message for a run that the site is prepared for."""
    notes = message.notes
    wanted = notes.get("site", node.name)
    if wanted != node.name:
        raise FederationError(f"this is {node.name!r}, but the message is for {wanted!r}")
    if not re.fullmatch(r"\w{1,64}", str(notes["run"])):  # it becomes the name of a file
        raise FederationError(f"{notes['run']!r} is not the name of a run")
    path = node.folder / f"{notes['run']}.safetensors"
    config = config_digest(node.config)
    with site_ledger.opened(node.folder) as ledger:
        answer_limits.ensure_same_configuration(ledger, str(notes["run"]), config, node.sources)
        answer_limits.ensure_same_splits(ledger, node.policy, splits_digest(node.config))
        if message.subject == ENROL and node.site:
            answer_limits.ensure_affordable_run(ledger, node.policy, config, node.method, node.config.train.rounds)
    if message.subject == ENROL:
        kept = private_bytes(_load_state(node, path)) if node.site else 0
        return Message(REPLY, node.facts | {"private_bytes": kept})
    if message.subject == FROZEN:
        if message.body:
            frozen_part.receive(node.net, node.folder, notes.get("frozen"), message.body)
        return Message(REPLY, {"has_frozen": frozen_part.is_at_hand(node.net, node.folder, notes.get("frozen"))})
    answer_limits.ensure_planned(node.config, message.subject, int(notes["round"]))
    frozen_part.use(node.net, node.folder, str(notes["run"]), notes.get("frozen"))
    node = with_features(node, str(notes.get("frozen")))
    if message.subject == EVALUATE:
        return _scores(node, message)
    if message.subject == MEASURE and node.site is not None:
        return _moments(node, path.with_suffix(".evaluated"), message)
    if message.subject != ASK or node.site is None:
        raise FederationError(f"{node.name!r} does not answer {message.subject!r}: its role is {node.facts['role']}")
    return _reply(node, path, message)


def with_features(node: Node, frozen: str) -> Node:
    """Return the node with the outputs of the network's frozen layers instead of images, if its network gets these."""
    outputs = outputs_of(node.method, node.net, frozen, str(next(node.net.parameters()).device))
    if outputs is None:
        return node
    outputs.require_space(node.site.data if node.site else {}, node.splits)
    if node.site:
        node.site.data = outputs.of_site(node.site.data)
    return node._replace(splits=outputs.of_site(node.splits))


def _reply(node: Node, path: Path, message: Message) -> Message:
    """Answer a request of the method; the new private state is in the file `path` before the reply leaves."""
    assert node.site
    request = Request(str(message.notes["kind"]), message.body, (node.name,))
    envelope = Envelope.from_dict(message.notes)
    answered, client_state = answer(node.method.client, node.site, _load_state(node, path), request, envelope)
    scores = answer_limits.count_scores(node.method, request.kind, answered.body, node.sources)
    entry = entry_for(node, message, tree.digest(answered.body).hex())._replace(evaluated=scores)
    count = answer_limits.admit_reply(node.folder, node.policy, entry)
    _save(path, client_state)  # before the reply: a state that was not stored must not be accepted
    reply_notes = {"client": answered.client, "weight": answered.weight, "private_bytes": private_bytes(client_state)}
    reply_notes |= {"replies_counted": count} if node.method.privacy else {}
    return Message(REPLY, reply_notes, answered.body)


def entry_for(
    node: Node, message: Message, digest: str, models: str = "", layers: tuple[str, ...] = ()
) -> site_ledger.Entry:
    """Return the entry of the site ledger for the answer to a message."""
    notes, private = message.notes, node.method.privacy if message.subject == ASK else None
    return site_ledger.Entry(
        run=str(notes["run"]),
        config=config_digest(node.config),
        sources=node.sources,
        subject=message.subject,
        kind=str(notes["kind"])[:MAX_KIND] if message.subject == ASK else "",
        round=int(notes["round"]),
        digest=digest,
        models=models,
        layers=layers,
        noise=private.noise if private else 0.0,
        delta=private.delta if private else 0.0,
        splits=splits_digest(node.config),
    )


def _scores(node: Node, message: Message) -> Message:
    """Answer a request to evaluate models: with scores, or with the reason why they do not leave."""
    names = [str(name) for name in message.notes["models"]]
    answer_limits.ensure_known_models(node.method, names, node.sources)
    models = {name: message.body[str(place)] for place, name in enumerate(names)}
    digest = tree.digest(models).hex()
    reason = node.policy.why_withheld({part: len(split[1]) for part, split in node.splits.items()})
    if not reason:
        sets = 1 + is_reestimated(node.method, node.net)  # with averaged, and with re-estimated statistics
        entry = entry_for(node, message, digest, models=digest)
        reason = answer_limits.admit_scores(node.folder, node.policy, entry, sets)
    if reason:
        return Message(REPLY, {"client": node.name, "withheld": reason})
    scores = evaluate_at_site(node.net, models, node.name, node.splits)
    if (digits := node.policy.round_scores) is not None:
        scores = {part: rounded(metrics, digits) for part, metrics in scores.items()}
    return Message(REPLY, {"client": node.name, "scores": scores})


def _moments(node: Node, path: Path, message: Message) -> Message:
    """Answer a request for one level of BatchNorm layers; the model comes with the first and is kept to the last."""
    assert node.site
    if not node.method.reestimate:
        raise FederationError(f"{node.name} sends no statistics: this run's train.batchnorm is not 'reestimate'")
    node.policy.ensure_statistics_allowed()
    number, body = int(message.notes["round"]), message.body
    model = body["model"] if "model" in body else _measured(node, path, number)
    if fault := next(differences(model, shapes_of(node.net), "model"), None):
        raise FederationError(f"this is no model of this run's network: {fault}")
    requested, layers = tree.digest({**body, "model": {}}).hex(), tuple(body["wanted"])
    if unknown := len({*layers} - {name for name, _ in batchnorm_layers(node.net)}):
        raise FederationError(f"{unknown} layers to measure are no BatchNorm layers of this run's network")
    entry = entry_for(node, message, requested, tree.digest(model).hex(), layers)
    answer_limits.admit_moments(node.folder, node.policy, entry)
    if "model" in body:  # not before: what a policy does not allow takes no space
        _save(path, model, round=number)
        _remove_leftovers(node.folder)
    answered = moments_of(node.site, model, Request(str(message.notes["kind"]), body, (node.name,)))
    if not body["remaining"]:
        path.unlink(missing_ok=True)
    return Message(REPLY, {"client": answered.client, "weight": answered.weight}, answered.body)


def _measured(node: Node, path: Path, number: int) -> Tree:
    """Return the model that is being measured, which came with the first level of its layers."""
    if not path.exists():
        raise FederationError(f"{node.name} has not received the model whose moments are requested")
    model, notes = checkpoint.load(path, "delete it: the server sends it again")
    if notes["round"] != number:
        raise FederationError(f"{node.name} has the model of round {notes['round']}, not of round {number}")
    return model


def _remove_leftovers(folder: Path) -> None:
    """Remove models that runs, under whatever names, left unmeasured; the newest may still be measured."""
    with _io.storage_errors(folder):
        stored = sorted(folder.glob("*.evaluated"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in stored[MEASURED_AT_ONCE:]:
            path.unlink(missing_ok=True)


def _save(path: Path, content: Tree, **notes: int) -> None:
    """Write a tree to the site's folder."""
    with _io.storage_errors(path.parent):
        _io.create_private(path.parent)
    _io.write(path, checkpoint.content(content, **notes), private=True)


def _load_state(node: Node, path: Path) -> Tree:
    """Load the private state of a site for this run, or its initial one."""
    assert node.site
    return checkpoint.load(path, STATE_LOST)[0] if path.exists() else enrol(node.method.client, node.site)
