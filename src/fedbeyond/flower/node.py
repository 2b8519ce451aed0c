"""A site on a machine of its own: what it is told of a run, its own data and folder, and its answer to every letter."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from .. import NUMERICS, WIRE, __version__, _io, spec, tree
from ..classifier import Task
from ..client import answer, enrol, weight
from ..data.partition.assignment import Division, completed, hand_out, own_tests, taken
from ..data.partition.splits import holdings, left_out
from ..engine.reestimation import is_measured, moments_of
from ..errors import ConfigError, DataError, FederationError, StorageError
from ..evaluation.evaluators import measured
from ..experiment import checkpoint, registry
from ..experiment.build import dataset, method_of, networks, of_a_site, public, require, rules
from ..experiment.config import Config, parse
from ..images import Domains, Split
from ..method import Method
from ..server import Post, Request
from ..site import Site
from ..tree import Tree
from .messages import ASK, ENROL, EVALUATE, MEASURE, REPLY, Letter, failure
from .policy import Policy, audit
from .site_config import Machine

SECRET = 32  # bytes


class Host(NamedTuple):
    """All that a site needs to answer letters of one run."""

    name: str
    method: Method
    site: Site | None  # a guest has none
    net: nn.Module
    splits: Mapping[str, Split]  # what it judges models on
    folder: Path
    facts: dict[str, Any]  # what it tells when it enrols
    policy: Policy = Policy()  # what it allows


def host(machine: Machine, config: Config, sources: int, number: int = 0) -> Host:
    """The site as a run needs it, on its own data."""
    method = federated(config)
    policy = Policy.read(machine.policy) if machine.policy else Policy()
    policy.allow(config, method, number)
    domains = own_data(machine)
    data = held(machine, config, domains)
    shape = tuple(next(iter(data.values()))[0].shape[1:])
    task = Task(domains.classes, shape, registry.make_one("networks", config.network), sources)
    nets = networks(method, task, config.seed, machine.device)
    facts: dict[str, Any] = {"site": machine.site, "role": machine.role, "shape": list(shape)}
    facts |= {"fedbeyond": __version__, "wire": WIRE, "numerics": NUMERICS}
    facts |= {"classes": list(domains.classes), "domain": machine.domain or machine.site}
    if machine.role == "guest":
        return Host(machine.site, method, None, nets["model"], data, machine.folder, facts, policy)
    if is_measured(method, nets["model"]):  # levels would cost a pass for every message
        policy.measure()
    policy.enough(len(data["train"][1]))
    judged = {part: split for part, split in data.items() if part != "train"}
    facts |= {"images": {part: len(split[1]) for part, split in data.items()}}
    data = {part: data[part] for part in ("train", "val")}
    require(method, config, max(sources, method.least))  # how many sites there are is the server's to know
    if method.public:
        data = data | {"public": public(config, shape)}
    secret = noise_secret(machine) if method.privacy else b""
    site = Site(machine.site, data, nets, secret=secret, **of_a_site(config, method, machine.device))
    return Host(machine.site, method, site, nets["model"], judged, machine.folder, facts, policy)


def noise_secret(machine: Machine) -> bytes:
    """What the server does not know of a site's noise: it could take the noise off again."""
    if machine.secret is None:
        raise ConfigError(
            f"site {machine.site!r} has no secret, and noise that a server can work out protects nothing; make one by "
            "'head -c 32 /dev/urandom > secret; chmod 600 secret' and name it in site.toml, as in secret = \"secret\" "
            '(secret = "" does without, for a trial)'
        )
    if not machine.secret:
        return b""
    try:
        held = Path(machine.secret).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"site {machine.site!r}: its secret cannot be read: {error}; see 'secret' in site.toml"
        ) from None
    if len(held) < SECRET:
        raise ConfigError(
            f"{machine.secret} has {len(held)} bytes, a secret has {SECRET} or more: head -c 32 /dev/urandom"
        )
    return held


def playable(config: Config, sites: int) -> Method:
    """The method of a run on so many sites, unless they cannot play it."""
    method = federated(config)
    require(method, config, sites)
    return method


def unweighted(network: str) -> str:
    """A network without the file that its first numbers are from: a site computes with those that it receives."""
    (part,) = spec.parse(network)
    return str(part._replace(options={key: value for key, value in part.options.items() if key != "weights"}))


def federated(config: Config) -> Method:
    """The method of a run, unless only a simulation can give it; refused before a plugin that a letter names is run."""
    train = config.train
    given = {"plugins": config.plugins, "train.split": train.split, "train.mixing": train.mixing}
    for key, value in given.items():
        if value:
            raise ConfigError(f"{key} = {value!r} cannot be told to sites on other machines; leave it out, or simulate")
    method = method_of(config)
    if method.pooled:
        raise ConfigError(f"{config.method} pools the data of all sites, which no federation can; simulate it")
    return method


def own_data(machine: Machine) -> Domains:
    """The data of the site's own domain, and nobody else's."""
    domains, domain = dataset(machine.data), machine.domain or machine.site
    if domain not in domains.images:
        raise DataError(
            f"site {machine.site!r}: {machine.data} has no domain {domain!r}, it has {', '.join(domains.images)}; name "
            "one of them in the node's config, as in domain='...'"
        )
    if machine.classes and set(machine.classes) != set(domains.classes):
        other = {
            "lacks": set(machine.classes) - set(domains.classes),
            "has": set(domains.classes) - set(machine.classes),
        }
        told = ", ".join(f"{word} {', '.join(sorted(names))}" for word, names in other.items() if names)
        raise DataError(
            f"site {machine.site!r} {told}; the federation's classes are {', '.join(machine.classes)}: rename its own, "
            "or agree on others"
        )
    return domains._replace(images={domain: domains.images[domain]})


def held(machine: Machine, config: Config, domains: Domains) -> dict[str, Split]:
    """What the site trains and validates on, or what a guest judges models on: the rows that a simulation gives it."""
    (domain,) = domains.images
    if machine.role == "guest":
        unseen = taken(domains, {domain: left_out(domains, domain, rules(config.train))})
        return {"test": completed(domains, unseen, unseen)}
    clients = holdings(domains, [domain], config.seed, rules(config.train))
    if machine.site not in clients:
        raise ConfigError(
            f"site {machine.site!r} is none of the clients of {domain!r}: {', '.join(clients)}; rename it, or set "
            "train.clients_per_domain"
        )
    alone = Division({machine.site: clients[machine.site]}, {})
    own = {"own_test": split for split in own_tests(domains, alone).values()}  # noqa: B035 (one, or none)
    return hand_out(domains, alone)[0][machine.site] | own


def respond(machine: Machine, letter: Letter) -> Letter:
    """A site's answer to a letter of the server, and a line of its log for either; what goes wrong is an answer too."""
    try:
        audit(machine.folder, "in", letter)
        notes = letter.notes
        ensure_same_versions(notes)
        own = {"data": machine.data, "public": machine.public}  # whatever the server says of them
        config = parse(notes["config"] | own, "the server's configuration")
        config = replace(config, network=unweighted(config.network))
        answered = reply(host(machine, config, int(notes["sources"]), int(notes.get("round", 0))), letter)
        audit(machine.folder, "out", answered, letter)
        return answered
    except Exception as error:  # a site that fails says why, as in the simulator
        failed = failure(error, site=machine.site)
        with suppress(StorageError):
            audit(machine.folder, "out", failed, letter)
        return failed


def ensure_same_versions(notes: Mapping[str, Any]) -> None:
    """Refuse a server whose messages or whose results are of another version than this site's."""
    for key, own in (("wire", WIRE), ("numerics", NUMERICS)):
        if notes.get(key) != own:
            raise FederationError(
                f"the server has {key} version {notes.get(key)} (fedbeyond {notes.get('fedbeyond')}), this site {own} "
                f"(fedbeyond {__version__}): install the same fedbeyond everywhere"
            )


def reply(host: Host, letter: Letter) -> Letter:
    """The answer of a site that is ready for a run."""
    notes = letter.notes
    wanted = notes.get("site", host.name)
    if wanted != host.name:
        raise FederationError(f"this is {host.name!r}, and the letter is for {wanted!r}")
    if not re.fullmatch(r"\w{1,64}", str(notes["run"])):  # it becomes the name of a file
        raise FederationError(f"{notes['run']!r} is no name of a run")
    path = host.folder / f"{notes['run']}.safetensors"
    if letter.subject == ENROL:
        return Letter(REPLY, host.facts | {"kept": weight(_slots(host, path)) if host.site else 0})
    if letter.subject == EVALUATE:
        host.policy.judge()
        models = {str(name): letter.body[str(place)] for place, name in enumerate(notes["models"])}
        scores = measured(host.net, models, host.name, host.splits)
        return Letter(REPLY, {"client": host.name, "scores": scores})
    if letter.subject == MEASURE and host.site is not None:
        return _moments(host, path.with_suffix(".evaluated"), letter)
    if letter.subject != ASK or host.site is None:
        raise FederationError(f"{host.name!r} does not answer {letter.subject!r}: its role is {host.facts['role']}")
    request = Request(str(notes["kind"]), letter.body, (host.name,))
    accepted = {host.name: int(notes["accepted"])} if "accepted" in notes else {}
    post = Post(int(notes["round"]), int(notes["ticket"]), accepted, str(notes["run"]))
    answered, slots = answer(host.method.client, host.site, _slots(host, path), request, post)
    with _io.storing(host.folder):
        host.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    checkpoint.save(path, slots)  # before it answers: what was never kept cannot be accepted
    told = {"client": answered.client, "weight": answered.weight, "kept": weight(slots)}
    if host.method.privacy:
        told |= {"answers": counted(host, path.with_suffix(".answers"), answered.body)}
    return Letter(REPLY, told, answered.body)


def _moments(host: Host, path: Path, letter: Letter) -> Letter:
    """Answer for one level of BatchNorm layers; the model comes with the first, and is kept for those after it."""
    assert host.site
    if not host.method.reestimate:
        raise FederationError(f"{host.name} sends no statistics: this run's train.batchnorm is not 'reestimate'")
    host.policy.measure()
    number, body = int(letter.notes["round"]), letter.body
    if "model" in body:
        with _io.storing(host.folder):
            host.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        checkpoint.save(path, body["model"], round=number)
    if not path.exists():
        raise FederationError(f"{host.name} has not received the model whose moments are asked for")
    model, notes = checkpoint.load(path)
    if notes["round"] != number:
        raise FederationError(f"{host.name} keeps the model of round {notes['round']}, not of round {number}")
    answered = moments_of(host.site, model, Request(str(letter.notes["kind"]), body, (host.name,)))
    if not body["remaining"]:
        path.unlink(missing_ok=True)
    return Letter(REPLY, {"client": answered.client, "weight": answered.weight}, answered.body)


def counted(host: Host, path: Path, body: Tree) -> int:
    """How many different answers of a run have left with this one; the same one again tells nothing new."""
    given = path.read_text("utf-8").split() if path.exists() else []
    if (name := tree.digest(body).hex()) not in given:
        host.policy.afford(host.method, len(given) + 1)
        given.append(name)
        _io.write(path, "\n".join(given).encode())
    return len(given)


def _slots(host: Host, path: Path) -> Tree:
    """What the site kept of this run, or what it begins with."""
    assert host.site
    return checkpoint.load(path)[0] if path.exists() else enrol(host.method.client, host.site)
