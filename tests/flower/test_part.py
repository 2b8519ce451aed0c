"""A part of a network is trained over Flower: bits as in the simulator, and the frozen rest travels once."""

import os
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from fedbeyond import NUMERICS, WIRE, tree
from fedbeyond.experiment import checkpoint, registry, runner
from fedbeyond.experiment.build import assemble
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment, remote
from fedbeyond.flower import frozen_part as stored
from fedbeyond.flower.frozen_part import FOLDER, MAX_STORED, RECEIVED
from fedbeyond.flower.messages import ASK, ENROL, EVALUATE, FAILURE, FROZEN, REPLY, Message
from fedbeyond.flower.node import Node, reply, respond
from fedbeyond.flower.site_config import SiteConfig
from fedbeyond.networks.frozen import frozen_part
from fedbeyond.networks.part import train_part
from fedbeyond.server import Failure
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.grids import Nodes

flower.PAUSE = 0.0
SITES, GUEST = ("cartoon", "painting", "photo"), "sketch"
PAIRS = [("scaffold", "head"), ("fedgca", "last"), ("fedbn", "norm"), ("moon", "lora(targets=conv, rank=2)")]
PAIRS += [
    ("feddag(width=2, warmup=1)", "last"),
    ("fedavg+dp", "head"),
    ("fedavg+ga", "lora(targets=conv, exact=false)"),
]


@pytest.mark.parametrize(("name", "part"), PAIRS)
def test_a_part_over_flower_equals_the_simulator_bit_for_bit(name, part, tmp_path):
    method = train_part(registry.build(name), registry.make_one("parts", part)._replace(cache=False))
    want, happened = simulate(method, 2)
    frozen = frozen_part(toy.nets(method)["model"])

    def answer(context, message):
        (site,) = (site for site in toy.sites(method) if site.name == context.node_config["site"])
        if message.subject != ENROL:  # as if it had started from other weights than the server
            for tensor in frozen_part(site.nets["model"]).values():
                tensor.mul_(2)
        facts = {"site": site.name, "images": {"train": site.size}}
        node = Node(site.name, method, site, site.nets["model"], {}, tmp_path / site.name, facts, sources=3)
        return reply(node, message)

    app = flower.client_app(answer)
    grid = Nodes({10 * place: (app, {"site": site}) for place, site in enumerate(sorted(toy.SIZES, reverse=True), 1)})
    transport, run = flower.FlowerTransport(grid, deadline=5), {"run": "law", "config": {}, "sources": len(toy.SIZES)}
    enrolled = transport.enrol(Message(ENROL, run), tuple(toy.SIZES))
    run |= {"frozen": tree.digest(frozen).hex()}
    engine = remote.RemoteEngine(transport, run, enrolled, toy.gate(method), frozen=frozen)
    state, round_log = simulate(method, 2, engine)
    got, flat = tree.flatten(state), tree.flatten(want)
    assert got.keys() == flat.keys() and all(torch.equal(got[path], flat[path]) for path in flat)
    assert round_log == happened


@pytest.fixture
def config(small, tmp_path):
    """A run that trains the head of a network whose weights only the server has."""
    weights = tmp_path / "weights.safetensors"
    given = small | {"network": f"mobilenet_v2(weights='{weights}')"}
    config = Config(method="fedavg", train=Train(rounds=2, batch_size=8, part="head(cache=false)"), **given)
    plain = replace(config, network="mobilenet_v2", train=Train(), seed=9)
    state = assemble(plain, tuple("ab"), (3, 32, 32), 3).nets["model"].body.state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, weights)
    return config


def federation(folder):
    """Nodes of the built-in data, each answering for one domain."""
    app, grid = flower.client_app(), {}
    for place, site in enumerate((*SITES, GUEST)):
        own = {"site": site, "data": "styles(share=0.05)", "folder": str(folder / site)}
        grid[100 - place] = (app, own | {"role": "guest" if site == GUEST else "train"})
    return Nodes(grid)


def started(config, grid, home):
    setup = enrolment.prepare(config, flower.FlowerTransport(grid, 5.0), SITES, (GUEST,), home=home)
    return runner.run(setup, home)


def sent(grid, subject):
    """The messages of a subject that reached nodes."""
    every = [(heard.metadata.dst_node_id, flower.from_records(heard.content)) for heard in grid.heard]
    return [(node, message) for node, message in every if message.subject == subject]


def deliveries(grid):
    """How often each node was sent the frozen part."""
    return Counter(node for node, message in sent(grid, FROZEN) if message.body)


@pytest.mark.slow
def test_a_pretrained_network_travels_once_and_the_files_are_those_of_the_simulator(config, tmp_path):
    config = replace(config, train=replace(config.train, part="head"))
    list(runner.run(runner.prepare(config), tmp_path / "simulated"))
    grid = federation(tmp_path / "sites")
    list(started(config, grid, tmp_path / "flower"))
    for name in ("results.jsonl", "best.safetensors", "config.json"):
        assert (tmp_path / "flower" / name).read_bytes() == (tmp_path / "simulated" / name).read_bytes(), name
    assert deliveries(grid) == {node: 1 for node in grid.apps}  # to the guest as well, which evaluates
    sizes = {subject: [len(m.content) for _, m in sent(grid, subject)] for subject in (FROZEN, ASK, EVALUATE)}
    assert min(size for size in sizes[FROZEN] if size > 1000) > 100 * max(sizes[ASK] + sizes[EVALUATE])
    grid.heard.clear()
    list(started(replace(config, seed=1), grid, tmp_path / "again"))  # the files of its digest are there
    assert not deliveries(grid) and len(sent(grid, FROZEN)) == 4


def test_what_the_seed_gives_does_not_travel(config, tmp_path):
    grid = federation(tmp_path / "sites")
    list(started(replace(config, network="convnet(width=4)"), grid, tmp_path / "run"))
    assert len(sent(grid, FROZEN)) == 4 and not deliveries(grid)
    assert not [*tmp_path.glob(f"sites/*/{FOLDER}")]


def plain_file(file, frozen):
    save_file({name: tensor.contiguous() for name, tensor in frozen.items()}, file)


@pytest.mark.parametrize("write", [checkpoint.save, plain_file])
def test_a_file_that_an_operator_has_put_there_is_used(config, write, tmp_path):
    setup = runner.prepare(config)
    for site in (*SITES, GUEST):
        (tmp_path / "sites" / site / FOLDER).mkdir(parents=True)
        file = tmp_path / "sites" / site / FOLDER / f"{setup.assembly.frozen}.safetensors"
        write(file, frozen_part(setup.nets["model"]))
    grid = federation(tmp_path / "sites")
    lines = list(started(config, grid, tmp_path / "run"))
    assert not deliveries(grid) and lines[-1]["rejected"] == []


def test_a_site_that_comes_late_gets_it_when_it_is_asked(config, tmp_path):
    config = replace(config, train=replace(config.train, rounds=2, quorum=2))
    grid = federation(tmp_path / "sites")
    lines = started(config, grid, tmp_path / "run")
    away = grid.apps.pop(98)
    first = next(lines)
    assert {entry["site"] for entry in first["rejected"]} == {"photo"}
    grid.apps[98] = away
    assert next(lines)["rejected"] == []
    assert deliveries(grid) == {node: 1 for node in grid.apps}


def test_a_server_that_is_started_again_sends_nothing_again(config, tmp_path):
    grid = federation(tmp_path / "sites")
    next(lines := started(config, grid, tmp_path / "run"))
    lines.close()
    list(started(config, grid, tmp_path / "run"))
    assert deliveries(grid) == {node: 1 for node in grid.apps}


@pytest.mark.parametrize(
    ("method", "part"),
    [("scaffold+sha", "last"), ("fedsr", "head"), ("local", "last(cache=false)"), ("fedavg", "head(copies=2)")],
)
def test_on_cached_outputs_the_files_are_those_of_the_simulator(config, method, part, tmp_path, monkeypatch):
    """Sites compute their rows themselves, in a cache of their own; statistics of BatchNorm are measured on them."""
    transform = "ga" if "copies" in part else "none"
    train = replace(config.train, part=part, transform=transform)
    config = replace(config, method=method, network="convnet(width=4)", train=train)
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "here"))
    list(runner.run(runner.prepare(config), tmp_path / "simulated"))
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "there"))
    list(started(config, federation(tmp_path / "sites"), tmp_path / "flower"))
    for name in ("results.jsonl", "best.safetensors", "config.json"):
        assert (tmp_path / "flower" / name).read_bytes() == (tmp_path / "simulated" / name).read_bytes(), name
    here, there = ({file.name for file in (tmp_path / one).rglob("*.rows")} for one in ("here", "there"))
    files = 0 if "false" in part else 4 + 3 if "copies" in part else 4  # copies of three sources
    assert here == there and len(here) == files


# what a server may not do


@pytest.fixture
def site(config, tmp_path):
    """A site that has taken part in a run, the notes of its messages, and the frozen part."""
    setup = runner.prepare(config)
    own = SiteConfig.parse({"site": "photo", "data": "styles(share=0.05)", "folder": str(tmp_path / "photo")})
    notes = {
        "config": enrolment.shared_config(config),
        "run": config.digest(),
        "sources": 3,
        "site": "photo",
        "round": 0,
    }
    notes |= {"wire": WIRE, "numerics": NUMERICS, "frozen": setup.assembly.frozen}
    return own, notes, frozen_part(setup.nets["model"]), setup.assembly.initial_models()


def test_a_frozen_part_of_another_digest_is_not_stored(site, tmp_path):
    own, notes, frozen, _ = site
    other = frozen | {"body.features.0.0.weight": frozen["body.features.0.0.weight"] + 1}
    smaller = {name: tensor for name, tensor in frozen.items() if "features.0" in name}
    for body in (other, smaller, {"body": frozen}):
        answer = respond(own, Message(FROZEN, notes, body))
        assert answer.subject == FAILURE and "not the frozen part of the run's network" in answer.notes["reason"]
    named = notes | {"frozen": tree.digest(smaller).hex()}  # the digest of something else than the network's
    answer = respond(own, Message(FROZEN, named, smaller))
    assert answer.subject == FAILURE and "names, shapes or types differ" in answer.notes["reason"]
    assert not (tmp_path / "photo" / FOLDER).exists()
    assert respond(own, Message(FROZEN, notes)).notes == {"has_frozen": False}
    assert respond(own, Message(FROZEN, notes, frozen)).notes == {"has_frozen": True}


@pytest.mark.parametrize("digest", ["../../secret", "", None, 7, "a" * 63, "A" * 64])
def test_a_digest_that_is_none_is_no_file(site, digest, tmp_path):
    own, notes, frozen, models = site
    for message in (
        Message(FROZEN, notes | {"frozen": digest}, frozen),
        Message(EVALUATE, notes | {"frozen": digest, "models": ["model"]}, {"0": models["model"]}),
    ):
        answer = respond(own, message)
        assert answer.subject == FAILURE and "names no frozen part" in answer.notes["reason"]


def test_a_site_without_the_frozen_part_does_not_use_another(site):
    own, notes, _, models = site
    answer = respond(own, Message(EVALUATE, notes | {"models": ["model"]}, {"0": models["model"]}))
    assert answer.subject == FAILURE and "is not here; the server sends it" in answer.notes["reason"]


def test_a_file_that_has_changed_is_not_used(site, tmp_path):
    own, notes, frozen, models = site
    file = tmp_path / "photo" / FOLDER / f"{notes['frozen']}.safetensors"
    file.parent.mkdir(parents=True)
    checkpoint.save(file, frozen | {"body.features.0.0.weight": frozen["body.features.0.0.weight"] + 1})
    answer = respond(own, Message(EVALUATE, notes | {"models": ["model"]}, {"0": models["model"]}))
    assert answer.subject == FAILURE and "its digest is another than named; delete" in answer.notes["reason"]


def test_a_server_cannot_change_the_frozen_part_during_a_run(site):
    own, notes, frozen, models = site
    question = {"models": ["model"]}
    respond(own, Message(FROZEN, notes, frozen))
    assert respond(own, Message(EVALUATE, notes | question, {"0": models["model"]})).subject == REPLY
    probe = {name: torch.zeros_like(tensor) for name, tensor in frozen.items()}
    other = notes | {"frozen": tree.digest(probe).hex()}
    respond(own, Message(FROZEN, other, probe))
    answer = respond(own, Message(EVALUATE, other | question, {"0": models["model"]}))
    assert answer.subject == FAILURE and "another frozen part than when the run began" in answer.notes["reason"]


def test_a_site_that_always_wants_more_gets_it_twice(config, tmp_path):
    grid = federation(tmp_path / "sites")
    greedy = flower.client_app(
        lambda context, message: (
            Message(REPLY, {"has_frozen": False}) if message.subject == FROZEN else flower.at_site(context, message)
        )
    )
    grid.apps[98] = (greedy, grid.apps[98][1])
    lines = list(started(replace(config, train=replace(config.train, quorum=2, rounds=4)), grid, tmp_path / "run"))
    assert deliveries(grid)[98] == 2
    assert {entry["site"] for entry in lines[-1]["rejected"]} == {"photo"}
    assert all("2 times, and does not have it" in entry["reason"] for entry in lines[-1]["rejected"])


def test_a_site_that_loses_the_file_gets_it_again(config, tmp_path):
    grid = federation(tmp_path / "sites")
    lines = started(replace(config, train=replace(config.train, rounds=3, quorum=2)), grid, tmp_path / "run")
    assert next(lines)["rejected"] == []
    (file,) = (tmp_path / "sites" / "photo" / FOLDER / RECEIVED).iterdir()
    file.unlink()
    (rejected,) = next(lines)["rejected"]
    assert rejected["site"] == "photo" and "is not here; the server sends it" in rejected["reason"]
    assert next(lines)["rejected"] == [] and file.is_file()
    assert deliveries(grid) == {node: 1 + (node == 98) for node in grid.apps}


def test_a_site_that_refuses_it_says_why_and_is_sent_it_once(config, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("max_message_bytes = 100000")
    grid = federation(tmp_path / "sites")
    app, own = grid.apps[98]
    grid.apps[98] = (app, own | {"policy": str(policy)})
    lines = started(replace(config, train=replace(config.train, rounds=3, quorum=2)), grid, tmp_path / "run")
    for line in (next(lines), next(lines)):
        assert {entry["site"] for entry in line["rejected"]} == {"photo"}
        for entry in line["rejected"]:
            assert "refused the frozen part of the network: PolicyError: the message has" in entry["reason"]
    assert deliveries(grid)[98] == 1
    (have,) = (tmp_path / "sites" / "cartoon" / FOLDER / RECEIVED).iterdir()
    (tmp_path / "sites" / "photo" / FOLDER).mkdir()
    (tmp_path / "sites" / "photo" / FOLDER / have.name).write_bytes(have.read_bytes())  # its operator puts it there
    assert next(lines)["rejected"] == [] and deliveries(grid)[98] == 1


def test_of_many_received_parts_the_last_used_stay_and_those_of_the_operator_all(tmp_path):
    method = train_part(registry.build("fedavg"), registry.make_one("parts", "head(cache=false)"))
    net = toy.nets(method)["model"]
    bodies = [{name: tensor + n for name, tensor in frozen_part(net).items()} for n in range(1, MAX_STORED + 4)]
    digests = [tree.digest(body).hex() for body in bodies]
    own = tmp_path / FOLDER / f"{'0' * 64}.safetensors"
    own.parent.mkdir()
    own.write_bytes(b"")
    for n in range(MAX_STORED):
        stored.receive(net, tmp_path, digests[n], bodies[n])
        os.utime(tmp_path / FOLDER / RECEIVED / f"{digests[n]}.safetensors", (n, n))
    stored.use(toy.nets(method)["model"], tmp_path, "run", digests[0])
    for n in range(MAX_STORED, MAX_STORED + 3):
        stored.receive(net, tmp_path, digests[n], bodies[n])
    left = {file.stem for file in (tmp_path / FOLDER / RECEIVED).iterdir()}
    assert left == {digests[0], *digests[4:]} and own.is_file()


@pytest.mark.parametrize("losses", [1, 2])
def test_what_is_lost_on_its_way_is_sent_once_more(config, losses, tmp_path):
    transport, lost = flower.FlowerTransport(federation(tmp_path / "sites"), 5.0), []
    inner = transport.exchange

    def exchange(messages, *limit):
        kept = {name: m for name, m in messages.items() if name != "photo" or m.subject != FROZEN or not m.body}
        if len(lost) == losses or len(kept) == len(messages):
            return inner(messages, *limit)
        lost.append("photo")
        return inner(kept, *limit) | {"photo": Failure("photo", "sent no reply in time")}

    transport.exchange = exchange
    config = replace(config, train=replace(config.train, rounds=3, quorum=2))
    lines = list(runner.run(enrolment.prepare(config, transport, SITES, (GUEST,)), tmp_path / "run"))
    reasons = {entry["reason"] for entry in lines[-1]["rejected"]}
    assert len(lost) == losses and len(reasons) == losses - 1
    assert all("2 times, and does not have it" in reason for reason in reasons)
