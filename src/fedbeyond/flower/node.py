"""A site on a machine of its own: prepare it for a run on its own data, and answer every message of the server."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from .. import NUMERICS, WIRE, __version__, _io, tree
from ..client import answer, enrol, private_bytes
from ..engine.reestimation import ensure_no_noise, is_reestimated, moments_of
from ..errors import ConfigError, FederationError, StorageError
from ..evaluation.evaluators import evaluate_at_site
from ..experiment import checkpoint
from ..experiment.build import assemble, build_method, ensure_runnable, public, site_options, without_weights
from ..experiment.config import Config, parse
from ..images import Split
from ..method import Method
from ..server import Envelope, Request
from ..site import Site
from ..tree import Tree
from .messages import ASK, ENROL, EVALUATE, MEASURE, REPLY, Message, failure_message
from .policy import Policy, audit
from .site_config import SiteConfig
from .site_data import own_domain, read_secret, site_splits


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


def prepare_node(site_config: SiteConfig, config: Config, sources: int, number: int = 0) -> Node:
    """Prepare a site for a run on its own data; raise if its policy does not allow the run."""
    method = federated_method(config)
    policy = Policy.read(site_config.policy) if site_config.policy else Policy()
    policy.ensure_allowed(config, method, number)
    domains = own_domain(site_config)
    splits = site_splits(site_config, config, domains)
    shape = tuple(next(iter(splits.values()))[0].shape[1:])
    assembly = assemble(config, domains.classes, shape, sources, site_config.device, method=method)
    net = assembly.nets["model"]
    facts: dict[str, Any] = {"site": site_config.site, "role": site_config.role, "shape": list(shape)}
    facts |= {"fedbeyond": __version__, "wire": WIRE, "numerics": NUMERICS}
    facts |= {"classes": list(domains.classes), "domain": site_config.domain or site_config.site}
    if site_config.role == "guest":
        return Node(site_config.site, method, None, net, splits, site_config.folder, facts, policy)
    if is_reestimated(method, net):  # the levels themselves would cost a forward pass for every message
        ensure_no_noise(method)
        policy.ensure_statistics_allowed()
    policy.ensure_enough_images(len(splits["train"][1]))
    facts |= {"images": {part: len(split[1]) for part, split in splits.items()}}
    evaluated = {part: split for part, split in splits.items() if part != "train"}
    ensure_runnable(method, config, max(sources, method.min_clients))  # the server checks the number of sites
    data = {part: splits[part] for part in ("train", "val")}
    data |= {"public": public(config, shape)} if method.public else {}
    secret = read_secret(site_config) if method.privacy else b""
    options = site_options(config, method, site_config.device)
    site = Site(site_config.site, data, assembly.nets, secret=secret, **options)
    return Node(site_config.site, method, site, net, evaluated, site_config.folder, facts, policy)


def federated_method(config: Config, sites: int | None = None) -> Method:
    """Build the method of a run; `ConfigError` if it runs only in a simulation, or not on so many sites.

    Plugins are refused before the method is built: a message must not name code to run.
    """
    train = config.train
    given = {"plugins": config.plugins, "train.split": train.split, "train.mixing": train.mixing}
    for key, value in given.items():
        if value:
            raise ConfigError(f"{key} = {value!r} cannot be sent to sites on other machines; leave it out, or simulate")
    method = build_method(config)
    if method.pooled:
        raise ConfigError(f"{config.method} pools the data of all sites, which no federation can; simulate it")
    if sites is not None:
        ensure_runnable(method, config, sites)
    return method


def respond(site_config: SiteConfig, message: Message) -> Message:
    """Answer a message of the server, and log both in the audit log; an error becomes the reply."""
    try:
        audit(site_config.folder, "in", message)
        notes = message.notes
        ensure_same_versions(notes)
        own = {"data": site_config.data, "public": site_config.public}  # the site's own, whatever the server sent
        config = parse(notes["config"] | own, "the server's configuration")
        config = replace(config, network=without_weights(config.network))
        answered = reply(prepare_node(site_config, config, int(notes["sources"]), int(notes.get("round", 0))), message)
        audit(site_config.folder, "out", answered, message)
        return answered
    except Exception as error:  # a site that raises replies with the reason, as in the simulator
        failed = failure_message(error, site=site_config.site)
        with suppress(StorageError):
            audit(site_config.folder, "out", failed, message)
        return failed


def ensure_same_versions(notes: Mapping[str, Any]) -> None:
    """Raise `FederationError` if the server has another version of messages or of results than this site."""
    for key, own in (("wire", WIRE), ("numerics", NUMERICS)):
        if notes.get(key) != own:
            raise FederationError(
                f"the server has {key} version {notes.get(key)} (fedbeyond {notes.get('fedbeyond')}), this site {own} "
                f"(fedbeyond {__version__}): install the same fedbeyond everywhere"
            )


def reply(node: Node, message: Message) -> Message:
    """Answer a message for a run that the site is prepared for."""
    notes = message.notes
    wanted = notes.get("site", node.name)
    if wanted != node.name:
        raise FederationError(f"this is {node.name!r}, but the message is for {wanted!r}")
    if not re.fullmatch(r"\w{1,64}", str(notes["run"])):  # it becomes the name of a file
        raise FederationError(f"{notes['run']!r} is not the name of a run")
    path = node.folder / f"{notes['run']}.safetensors"
    if message.subject == ENROL:
        kept = private_bytes(_load_state(node, path)) if node.site else 0
        return Message(REPLY, node.facts | {"private_bytes": kept})
    if message.subject == EVALUATE:
        node.policy.ensure_scores_allowed()
        models = {str(name): message.body[str(place)] for place, name in enumerate(notes["models"])}
        scores = evaluate_at_site(node.net, models, node.name, node.splits)
        return Message(REPLY, {"client": node.name, "scores": scores})
    if message.subject == MEASURE and node.site is not None:
        return _moments(node, path.with_suffix(".evaluated"), message)
    if message.subject != ASK or node.site is None:
        raise FederationError(f"{node.name!r} does not answer {message.subject!r}: its role is {node.facts['role']}")
    request = Request(str(notes["kind"]), message.body, (node.name,))
    envelope = Envelope.from_dict(notes)
    answered, client_state = answer(node.method.client, node.site, _load_state(node, path), request, envelope)
    _save(path, client_state)  # before the reply: a state that was not stored must not be accepted
    reply_notes = {"client": answered.client, "weight": answered.weight, "private_bytes": private_bytes(client_state)}
    if node.method.privacy:
        reply_notes |= {"replies_counted": count_reply(node, path.with_suffix(".replies"), answered.body)}
    return Message(REPLY, reply_notes, answered.body)


def _moments(node: Node, path: Path, message: Message) -> Message:
    """Answer a request for one level of BatchNorm layers; the model comes with the first and is kept to the last."""
    assert node.site
    if not node.method.reestimate:
        raise FederationError(f"{node.name} sends no statistics: this run's train.batchnorm is not 'reestimate'")
    node.policy.ensure_statistics_allowed()
    number, body = int(message.notes["round"]), message.body
    if "model" in body:
        _save(path, body["model"], round=number)
    if not path.exists():
        raise FederationError(f"{node.name} has not received the model whose moments are requested")
    model, notes = checkpoint.load(path)
    if notes["round"] != number:
        raise FederationError(f"{node.name} has the model of round {notes['round']}, not of round {number}")
    answered = moments_of(node.site, model, Request(str(message.notes["kind"]), body, (node.name,)))
    if not body["remaining"]:
        path.unlink(missing_ok=True)
    return Message(REPLY, {"client": answered.client, "weight": answered.weight}, answered.body)


def count_reply(node: Node, path: Path, body: Tree) -> int:
    """Count the different replies of a run that have left, with this one; a repeated reply reveals nothing new."""
    digests = path.read_text("utf-8").split() if path.exists() else []
    if (name := tree.digest(body).hex()) not in digests:
        node.policy.ensure_affordable(node.method, len(digests) + 1)
        digests.append(name)
        _io.write(path, "\n".join(digests).encode())
    return len(digests)


def _save(path: Path, content: Tree, **notes: int) -> None:
    """Write a tree to the site's folder."""
    with _io.storage_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    checkpoint.save(path, content, **notes)


def _load_state(node: Node, path: Path) -> Tree:
    """Load the private state of a site for this run, or its initial one."""
    assert node.site
    return checkpoint.load(path)[0] if path.exists() else enrol(node.method.client, node.site)
