"""A site on a machine of its own: prepare it for a run on its own data, and answer every message of the server."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from .. import NUMERICS, WIRE, __version__
from .._method import Method
from ..engine.reestimation import ensure_no_noise, is_reestimated
from ..errors import ApprovalError, ConfigError, FederationError, PolicyError, StorageError
from ..experiment.build import (
    assemble,
    build_method,
    ensure_runnable,
    network_factory,
    public,
    site_options,
    without_weights,
)
from ..experiment.config import Config, parse
from ..site import Site
from .answers import Node, reply
from .approvals import ensure_approved
from .compute_limits import ensure_networks_allowed, limit_epochs
from .failures import failure_message
from .messages import WAITING, Message
from .policy import Policy, audit
from .site_config import SiteConfig
from .site_data import count_groups, own_domain, read_secret, site_splits, split_rows
from .work import Limit, limited


def prepare_node(site_config: SiteConfig, config: Config, sources: int, is_run: bool = True) -> Node:
    """Prepare a site for a run on its own data, or to list what one would send; raise if its policy forbids it."""
    method = federated_method(config)
    policy = Policy.read(site_config.policy) if site_config.policy else Policy()
    policy.ensure_allowed(config, method)
    if policy.approval and is_run:
        ensure_approved(site_config.folder, config)
    domains = own_domain(site_config)
    splits = site_splits(site_config, config, domains)
    if policy.min_groups is not None:
        policy.ensure_enough_groups(count_groups(domains, split_rows(site_config, config, domains)))
    shape = tuple(next(iter(splits.values()))[0].shape[1:])
    ensure_networks_allowed(policy, config, method, domains.classes, shape, sources)
    with faults_of_the_run():
        assembly = assemble(config, domains.classes, shape, sources, site_config.device, method=method)
    net = assembly.nets["model"]
    facts: dict[str, Any] = {"site": site_config.site, "role": site_config.role, "shape": list(shape)}
    facts |= {"fedbeyond": __version__, "wire": WIRE, "numerics": NUMERICS}
    facts |= {"classes": list(domains.classes), "domain": site_config.domain or site_config.site}
    if site_config.role == "guest":
        return Node(site_config.site, method, None, net, splits, site_config.folder, facts, policy, config, sources)
    if is_reestimated(method, net):  # the levels themselves would cost a forward pass for every message
        with faults_of_the_run():
            ensure_no_noise(method)
        policy.ensure_statistics_allowed()
    policy.ensure_enough_images(len(splits["train"][1]))
    policy.ensure_enough_evaluated(method, {part: len(split[1]) for part, split in splits.items()})
    facts |= {"images": {part: len(split[1]) for part, split in splits.items()}}
    evaluated = {part: split for part, split in splits.items() if part != "train"}
    with faults_of_the_run():
        ensure_runnable(method, config, max(sources, method.min_clients))  # the server checks the number of sites
    data = {part: splits[part] for part in ("train", "val")}
    data |= {"public": public(config, shape)} if method.public else {}
    secret = read_secret(site_config) if method.privacy else b""
    options = site_options(config, method, site_config.device)
    site = Site(site_config.site, data, assembly.nets, secret=secret, **options)
    limit_epochs(policy, config, site)
    return Node(site_config.site, method, site, net, evaluated, site_config.folder, facts, policy, config, sources)


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


def respond(site_config: SiteConfig, message: Message, is_stopped: Callable[[], bool] = lambda: False) -> Message:
    """Answer a message of the server, and log both in the audit log; an error becomes the reply.

    The work ends when the reply would be late, or `is_stopped` returns that the run was stopped.
    """
    try:
        audit(site_config.folder, "in", message)
        with limited(site_config.folder, time_limit(site_config, message), is_stopped):
            policy = Policy.read(site_config.policy) if site_config.policy else Policy()
            policy.ensure_message_size(len(message.text) + len(message.content))
            notes = message.notes
            ensure_same_versions(notes)
            config = server_config(notes["config"])
            config = replace(config, data=site_config.data, public=site_config.public)  # the site's own
            answered = reply(prepare_node(site_config, config, int(notes["sources"])), message)
        audit(site_config.folder, "out", answered, message)
        return answered
    except ApprovalError as error:  # the server asks again later
        waiting = Message(WAITING, {"reason": str(error), "site": site_config.site})
        audit(site_config.folder, "out", waiting, message)
        return waiting
    except Exception as error:  # a site that raises replies all the same; what it may say is decided there
        failed = failure_message(error, site_config.folder, message, site=site_config.site)
        with suppress(StorageError):
            audit(site_config.folder, "out", failed, message)
        return failed


def time_limit(site_config: SiteConfig, message: Message) -> Limit:
    """Return how long the site may work on a message: as long as the server waits, and as its policy allows."""
    left = math.inf if message.until is None else message.until - time.time()
    allowed = Policy.read(site_config.policy).max_seconds if site_config.policy else None
    if allowed is not None and allowed < left:
        return Limit(allowed, PolicyError(f"an answer may take {allowed:g} s by the site's policy (max_seconds)"))
    return Limit(left, FederationError("the server waits no longer for a reply; it was not ready in time"))


def server_config(table: Mapping[str, Any]) -> Config:
    """Return the run that the server sent, without the files it names; `FederationError` if it cannot be run here."""
    with faults_of_the_run():
        config = parse({key: value for key, value in table.items() if key not in ("data", "public")}, "the run")
        config = replace(config, network=without_weights(config.network))
        federated_method(config)
        network_factory(config.network)
    return config


@contextmanager
def faults_of_the_run() -> Iterator[None]:
    """Let the server read what is wrong with its run: these errors have nothing of the site's data and files."""
    try:
        yield
    except ConfigError as error:
        raise FederationError(str(error)) from None


def ensure_same_versions(notes: Mapping[str, Any]) -> None:
    """Raise `FederationError` if the server has another version of messages or of results than this site."""
    for key, own in (("wire", WIRE), ("numerics", NUMERICS)):
        if notes.get(key) != own:
            raise FederationError(
                f"the server has {key} version {notes.get(key)} (fedbeyond {notes.get('fedbeyond')}), this site {own} "
                f"(fedbeyond {__version__}): install the same fedbeyond everywhere"
            )
