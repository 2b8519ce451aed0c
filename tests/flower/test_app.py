"""Over Flower every method gives the numbers of the simulator, bit for bit; what goes wrong has a name and a reason."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedbeyond import NUMERICS, WIRE, tree
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import registry, run_folder, runner
from fedbeyond.experiment.build import dataset
from fedbeyond.experiment.checkpoint import pack
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment, remote
from fedbeyond.flower import node as host
from fedbeyond.flower.messages import ASK, ENROL, FAILURE, MEASURE, REPLY, Message, parse_message
from fedbeyond.flower.node import Node, reply, respond
from fedbeyond.flower.site_config import SiteConfig
from fedbeyond.server import Failure
from fedbeyond.testing import toy
from fedbeyond.testing.faults import Faulty
from fedbeyond.testing.laws import simulate, simulator
from support.grids import Nodes
from support.method_settings import SMALL

ROUNDS = 2
flower.PAUSE = 0.0  # answers are there at once
METHODS = [SMALL.get(name, name) for name in registry.REGISTRY["methods"] if not registry.build(name).pooled]
COMPOSED = [*(f"fedavg+{wrapper}" for wrapper in registry.REGISTRY["wrappers"]), "fedsb+ga", "scaffold+sha"]
COMPOSED += ["fedgca+am+ga", "moon+sha", "ndag(width=2, warmup=1)+rc+sha"]


def toy_app(method, folder):
    """A Flower client app that answers for the toy sites; each message meets a site made anew, as a process would."""

    def answer(context, message):
        (site,) = (site for site in toy.sites(method) if site.name == context.node_config["site"])
        facts = {"site": site.name, "images": {"train": site.size}}
        node = Node(site.name, method, site, site.nets["model"], {}, folder / site.name, facts, sources=len(toy.SIZES))
        return reply(node, message)

    return flower.client_app(answer)


@pytest.mark.parametrize("name", METHODS + COMPOSED)
def test_every_method_over_flower_equals_the_simulator_bit_for_bit(name, tmp_path):
    method = registry.build(name)
    want, happened = simulate(registry.build(name), ROUNDS)
    app = toy_app(method, tmp_path)
    grid = Nodes({10 * place: (app, {"site": site}) for place, site in enumerate(sorted(toy.SIZES, reverse=True), 1)})
    lines, run = flower.FlowerTransport(grid, deadline=5), {"run": "law", "config": {}, "sources": len(toy.SIZES)}
    engine = remote.RemoteEngine(lines, run, lines.enrol(Message(ENROL, run), tuple(toy.SIZES)), toy.gate(method))
    assert engine.clients == tuple(sorted(toy.SIZES)) and engine.sizes == toy.SIZES
    state, round_log = simulate(method, ROUNDS, engine)
    got, flat = tree.flatten(state), tree.flatten(want)
    assert got.keys() == flat.keys() and all(torch.equal(got[path], flat[path]) for path in flat)
    assert round_log == happened


SITES, UNSEEN = ("cartoon", "painting", "photo"), "sketch"


def federation(folder, guests=(UNSEEN,), names=SITES, **settings):
    """Nodes with the built-in data, each answering for one domain."""
    app, grid = flower.client_app(), {}
    for place, site in enumerate((*names, *guests)):
        own = {"site": site, "data": "styles(share=0.05)", "folder": str(folder / site), "domain": site.split("-")[0]}
        grid[100 - place] = (app, own | {"role": "guest" if site in guests else "train"})
    return Nodes(grid, **settings)


def play(config, grid, folder, guests=(UNSEEN,), names=SITES, deadline=5.0):
    setup = enrolment.prepare(config, flower.FlowerTransport(grid, deadline), names, guests)
    return list(runner.run(setup, folder))


@pytest.fixture
def config(small):
    return Config(method="fedsb(budget=4)+ga", train=Train(rounds=2, batch_size=8), **small)


def same_files(one, other):
    for name in ("results.jsonl", "best.safetensors", "config.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("method", ["fedsb(budget=4)+ga", "feddag(width=2, warmup=1)", "local"])
def test_a_run_writes_the_files_of_the_simulator_guests_included(config, method, tmp_path):
    config = replace(config, method=method)
    list(runner.run(runner.prepare(config), tmp_path / "simulated"))
    play(config, federation(tmp_path / "sites"), tmp_path / "flower")
    same_files(tmp_path / "simulated", tmp_path / "flower")
    assert "sketch" in run_folder.lines(tmp_path / "flower")[-1]["scores"]


@pytest.mark.parametrize("method", ["fedavg+ga", "arfl", "local"])  # weights of the server, of its own, of each alone
def test_statistics_measured_at_sites_are_those_of_the_simulator(config, method, tmp_path):
    """One exchange a layer: here each site is made anew for each of them."""
    config = replace(config, method=method, train=Train(rounds=2, batch_size=8, batchnorm="reestimate"))
    list(runner.run(runner.prepare(config), tmp_path / "simulated"))
    play(config, federation(tmp_path / "sites"), tmp_path / "flower")
    same_files(tmp_path / "simulated", tmp_path / "flower")
    line = run_folder.lines(tmp_path / "flower")[-1]
    assert line["bytes_up"]["photo"]["statistics"].keys() == {"moments"} and "sketch" in line["scores_average"]
    assert not list((tmp_path / "sites").rglob("*.evaluated"))  # no site keeps the model


def test_a_site_that_lacks_the_model_to_be_measured_says_so(config, tmp_path):
    config = replace(config, train=Train(rounds=2, batch_size=8, batchnorm="reestimate"))
    grid = federation(tmp_path / "sites", guests=())
    body = {"wanted": {"body.1": torch.empty(0)}, "known": {}, "remaining": torch.tensor(0)}
    notes = network_notes(config) | {"round": 0, "kind": "statistics"}
    (answer,) = [a for _, a in flower.FlowerTransport(grid, 1)._exchange({98: Message(MEASURE, notes, body)})]
    assert answer.subject == FAILURE and "has not received the model" in answer.notes["reason"]


@pytest.mark.parametrize("batchnorm", ["average", "reestimate"])
def test_a_site_sends_no_moments_that_its_run_or_its_policy_does_not_allow(config, tmp_path, batchnorm):
    """Whatever a curious server asks for."""
    config = replace(config, train=Train(rounds=2, batch_size=8, batchnorm=batchnorm))
    grid = federation(tmp_path / "sites", guests=())
    if batchnorm == "reestimate":
        (tmp_path / "policy.toml").write_text('sends = ["parameters", "scalars"]\n')
        grid.apps[98][1]["policy"] = str(tmp_path / "policy.toml")
    model = toy.shared(registry.build("fedavg"))["model"]
    body = {"wanted": {"body.1": torch.empty(0)}, "known": {}, "remaining": torch.tensor(0), "model": model}
    notes = network_notes(config) | {"round": 0, "kind": "statistics"}
    (answer,) = [a for _, a in flower.FlowerTransport(grid, 1)._exchange({98: Message(MEASURE, notes, body)})]
    reasons = {
        "average": "train.batchnorm is not 'reestimate'",
        "reestimate": "policy allows parameters, scalars to leave",
    }
    assert answer.subject == FAILURE and reasons[batchnorm] in answer.notes["reason"]


def test_a_site_that_is_away_when_its_own_model_is_measured_stops_nobody(config, tmp_path):
    train = Train(rounds=2, batch_size=8, batchnorm="reestimate", quorum=2)
    config = replace(config, method="local", train=train)
    grid = federation(tmp_path / "sites", guests=())
    lines = runner.run(enrolment.prepare(config, flower.FlowerTransport(grid, 1), SITES), tmp_path / "run")
    next(lines)
    del grid.apps[99]  # painting
    second = next(lines)
    assert {"site": "painting", "request": "statistics", "reason": "is not connected"} in second["rejected"]
    assert "statistics" in second["bytes_up"]["photo"]


def test_a_sites_policy_can_refuse_statistics_where_a_network_has_any(config, tmp_path):
    config = replace(config, method="fedavg", train=Train(rounds=1, batch_size=8, batchnorm="reestimate"))
    grid = federation(tmp_path / "sites", guests=())
    (tmp_path / "policy.toml").write_text('sends = ["parameters"]\n')
    grid.apps[98][1]["policy"] = str(tmp_path / "policy.toml")
    with pytest.raises(FederationError, match=r"photo: PolicyError: .* sends statistics.*norm=group"):
        play(config, grid, tmp_path / "run", guests=())
    play(replace(config, network="convnet(width=4, norm=group)"), grid, tmp_path / "group", guests=())
    (line,) = run_folder.lines(tmp_path / "group")
    assert "statistics" not in line["bytes_up"]["photo"] and "scores_average" not in line


def test_several_clients_of_a_domain_are_several_machines(config, tmp_path):
    train = Train(rounds=2, batch_size=8, clients_per_domain=2, test=0.2, evaluate_every=2)
    config = replace(config, train=train, data="styles(share=0.1)", method="local")
    names = tuple(f"{domain}-{place}" for domain in SITES for place in range(2))
    list(runner.run(runner.prepare(config), tmp_path / "simulated"))
    grid = federation(tmp_path / "sites", names=names)
    for _, own in grid.apps.values():
        own["data"] = "styles(share=0.1)"
    play(config, grid, tmp_path / "flower", names=names)
    same_files(tmp_path / "simulated", tmp_path / "flower")


class Stopped(Exception):
    """The server's machine is gone."""


@pytest.mark.slow
def test_a_server_that_stops_after_any_exchange_goes_on_where_it_was(config, tmp_path):
    """Two requests a round, the first of which changes what a site keeps."""
    config = replace(config, method="scaffold+sha")
    list(runner.run(runner.prepare(config), tmp_path / "simulated"))
    grid, stops = federation(tmp_path / "sites"), 0
    push = grid.push_messages

    def failing(messages):
        left[0] -= 1
        numbers = push(messages)
        if left[0] < 0:
            raise Stopped
        return numbers

    grid.push_messages = failing
    while not (tmp_path / "flower" / "done").exists():
        left = [1 + stops]  # a little further each time: no point of a round is spared
        try:
            play(config, grid, tmp_path / "flower")
        except Stopped:
            stops += 1
    assert stops >= 4
    same_files(tmp_path / "simulated", tmp_path / "flower")


def test_a_site_that_is_silent_is_absent_and_comes_back(config, tmp_path):
    config = replace(config, method="scaffold", train=Train(rounds=3, batch_size=8))
    grid = federation(tmp_path / "sites", guests=())
    setup = enrolment.prepare(config, flower.FlowerTransport(grid, 0.05), SITES)
    lines = runner.run(setup, tmp_path / "run")
    next(lines)
    grid.silent.add(100)  # cartoon
    second = next(lines)
    reason = {"site": "cartoon", "reason": "no reply within 0.05 s"}
    assert second["rejected"] == [reason | {"request": "train"}, reason | {"request": "evaluate"}]
    assert set(second["scores"]) == {"painting", "photo"} and set(second["weights"]) == {"painting", "photo"}
    grid.silent.clear()
    third = next(lines)
    assert third["rejected"] == [] and set(third["weights"]) == set(SITES)


def test_a_lost_answer_equals_a_simulated_absence(tmp_path):
    """The site trained and kept what it learnt; nobody heard of it, so it does not count."""
    method = registry.build("scaffold")
    absent = Faulty(simulator(method), "north", 1, "absent")
    want = tree.flatten(simulate(method, 3, absent)[0])
    app = toy_app(method, tmp_path)
    grid = Nodes({place: (app, {"site": site}) for place, site in enumerate(toy.SIZES, 1)})
    lines, run = flower.FlowerTransport(grid, deadline=0.1), {"run": "law", "config": {}, "sources": 3}
    engine = remote.RemoteEngine(lines, run, lines.enrol(Message(ENROL, run), tuple(toy.SIZES)), toy.gate(method))
    answers = engine.ask

    def losing(request, envelope):
        found = answers(request, envelope)
        return found | {"north": Failure("north", "lost")} if envelope.round == 1 else found

    engine.ask = losing
    got = tree.flatten(simulate(method, 3, engine)[0])
    assert all(torch.equal(got[path], want[path]) for path in want)


def test_a_machine_that_is_started_again_under_another_number_is_found(config, tmp_path):
    grid = federation(tmp_path / "sites", guests=())
    lines = runner.run(enrolment.prepare(config, flower.FlowerTransport(grid, 1), SITES), tmp_path / "run")
    next(lines)
    grid.apps[55] = grid.apps.pop(99)  # painting
    assert next(lines)["rejected"] == []


def test_a_machine_that_is_gone_is_not_waited_for(config, tmp_path):
    grid = federation(tmp_path / "sites", guests=())
    lines = runner.run(enrolment.prepare(config, flower.FlowerTransport(grid, 1000), SITES), tmp_path / "run")
    next(lines)
    del grid.apps[99]
    assert {aside["reason"] for aside in next(lines)["rejected"]} == {"is not connected"}


def test_who_is_none_of_ours_takes_no_part(config, tmp_path, capsys):
    grid = federation(tmp_path / "sites", guests=(), names=("cartoon", "painting", "spy"))
    with pytest.raises(FederationError, match=r"not all sites enrolled \(photo: is not connected\); start or fix"):
        play(config, grid, tmp_path / "run", guests=(), deadline=0.05)
    assert (
        "takes no part: the federation has no site 'spy' (DataError at the site: see its errors.log"
        in capsys.readouterr().out
    )


def test_a_machine_cannot_take_the_name_of_another(config, tmp_path, capsys):
    grid = federation(tmp_path / "sites", guests=(), names=("cartoon", "painting", "photo", "photo"))
    grid.names = {100: "cartoon", 99: "painting", 98: "photo", 97: "spy"}  # as their keys are registered
    play(config, grid, tmp_path / "run", guests=())
    assert "node 97 takes no part: the federation has no site 'spy'" in capsys.readouterr().out
    assert 97 not in {message.metadata.dst_node_id for message in grid.heard}  # it was told nothing
    grid.names = {100: "cartoon", 99: "photo", 97: "spy"}
    flower.FlowerTransport(grid, 0.05).enrol(Message(ENROL, network_notes(config)), SITES)
    assert (
        "node 99 takes no part: it claims to be 'painting', but its key belongs to 'photo'" in capsys.readouterr().out
    )
    grid.names = {}
    flower.FlowerTransport(grid, 0.05).enrol(Message(ENROL, network_notes(config)), (*SITES, "nobody"))
    assert "takes no part: another node is 'photo' already" in capsys.readouterr().out


def network_notes(config):
    versions = {"wire": WIRE, "numerics": NUMERICS}
    return {"config": enrolment.shared_config(config), "run": config.digest(), "sources": 3} | versions


def test_sites_that_speak_of_another_task_are_named(config, tmp_path):
    grid = federation(tmp_path / "sites", guests=())
    grid.apps[98][1]["role"] = "guest"
    with pytest.raises(FederationError, match="photo has role guest, the federation needs train"):
        play(config, grid, tmp_path / "run", guests=())


def test_a_site_with_another_version_is_refused_also_when_it_comes_back(config, tmp_path, monkeypatch):
    grid = federation(tmp_path / "sites", guests=())
    for key in ("wire", "numerics"):
        sent = network_notes(config) | {key: 0, "fedbeyond": "0.0.1"}
        (answer,) = [a for _, a in flower.FlowerTransport(grid, 1)._exchange({98: Message(ENROL, sent)})]
        assert f"the server has {key} version 0 (fedbeyond 0.0.1), this site" in answer.notes["reason"]
    lines = runner.run(enrolment.prepare(config, flower.FlowerTransport(grid, 1), SITES), tmp_path / "run")
    next(lines)
    hosted = host.respond
    upgraded = {"photo": 99}

    def elsewhere(machine, message, is_stopped):
        with monkeypatch.context() as patch:
            patch.setattr(host, "NUMERICS", upgraded.get(machine.site, NUMERICS))
            return hosted(machine, message, is_stopped)

    monkeypatch.setattr(flower, "respond", elsewhere)
    reasons = {(aside["site"], aside["request"], aside["reason"]) for aside in next(lines)["rejected"]}
    assert {site for site, _, _ in reasons} == {"photo"} and "install the same fedbeyond" in min(reasons)[2]
    with pytest.raises(
        FederationError, match=r"photo: FederationError: the server has numerics version .*, this site 99"
    ):
        play(config, grid, tmp_path / "other", guests=())


def test_a_run_goes_on_though_a_site_is_away_when_the_server_is_started_again(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(enrolment, "RETURNING", 0.05)
    config = replace(config, train=Train(rounds=3, batch_size=8))
    grid, home = federation(tmp_path / "sites"), tmp_path / "run"

    def started(deadline=1.0):
        return runner.run(
            enrolment.prepare(config, flower.FlowerTransport(grid, deadline), SITES, (UNSEEN,), home=home), home
        )

    next(lines := started())
    lines.close()
    away = {node: grid.apps.pop(node) for node in (99, 97)}  # painting, and the guest
    second = next(lines := started(deadline=1000.0))  # is not waited for
    assert {aside["site"] for aside in second["rejected"]} == {"painting", UNSEEN}
    assert set(second["weights"]) == {"cartoon", "photo"}
    said = capsys.readouterr().out
    assert "waiting for painting, sketch" in said and "the run continues without painting for now" in said
    grid.apps |= away
    assert next(lines)["rejected"] == []
    with pytest.raises(FederationError, match="not all sites enrolled"):  # another run has to be agreed upon
        del grid.apps[99]
        play(replace(config, seed=1), grid, tmp_path / "other", deadline=0.05)


def test_a_site_that_says_it_is_another_is_named_at_once(config, tmp_path):
    grid = federation(tmp_path / "sites", guests=())
    grid.names = {100: "cartoon", 99: "painting", 98: "photo"}
    grid.apps[98][1]["site"] = "phooto"
    with pytest.raises(FederationError, match=r"photo: it claims to be 'phooto', but its key belongs to 'photo'"):
        play(config, grid, tmp_path / "run", guests=(), deadline=1000.0)


def test_what_a_site_cannot_do_is_told_with_its_reason(config, tmp_path):
    grid = federation(tmp_path / "sites", guests=())
    grid.apps[98][1]["data"] = "folder(root='/nowhere')"
    with pytest.raises(FederationError, match=r"photo: DataError at the site: see its errors.log, entry [0-9a-f]{8}\)"):
        play(config, grid, tmp_path / "run", guests=())
    log = tmp_path / "sites" / "photo" / "errors.log"
    assert "DataError: /nowhere: no such folder" in log.read_text()
    grid.apps[98][1]["colour"] = "blue"
    (answer,) = [a for _, a in flower.FlowerTransport(grid, 1)._exchange({98: Message(ENROL, network_notes(config))})]
    assert answer.subject == FAILURE and answer.notes["reason"].startswith(
        "ConfigError at the site: see its errors.log"
    )
    assert "colour is not known" in log.read_text()
    with pytest.raises(ConfigError, match=r"data is not valid: Field required; it needs site="):
        SiteConfig.parse({"site": "photo", "folder": "x"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": "erm"}, "erm pools the data of all sites"),
        ({"train": Train(mixing=0.5)}, r"train\.mixing = 0\.5 cannot be sent to sites"),
        ({"plugins": ("mine.py",)}, "plugins = .* cannot be sent to sites"),
    ],
)
def test_what_only_a_simulation_can_give_is_refused_before_anybody_is_asked(config, change, reason, tmp_path):
    grid = federation(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        play(replace(config, **change), grid, tmp_path / "run")
    assert grid.heard == []


def test_a_server_cannot_choose_what_a_site_reads_or_where_it_writes(config, tmp_path):
    machine = SiteConfig.parse(federation(tmp_path).apps[98][1])
    notes = network_notes(config)
    told = notes | {"config": notes["config"] | {"data": "folder(root='/etc')"}}
    assert respond(machine, Message(ENROL, told)).notes["classes"] == list(dataset("styles(share=0.05)").classes)
    assert "is not the name of a run" in respond(machine, Message(ENROL, notes | {"run": "../../evil"})).notes["reason"]
    assert (
        "'photo', but the message is for 'x'" in respond(machine, Message(ENROL, notes | {"site": "x"})).notes["reason"]
    )
    shown = notes | {"config": notes["config"] | {"method": "fccl", "public": "folder(root='/etc')"}}
    assert "fccl needs unlabelled images" in respond(machine, Message(ENROL, shown)).notes["reason"]
    weighty = notes | {"config": notes["config"] | {"network": "resnet18(weights='/etc/shadow')"}}
    assert respond(machine, Message(ENROL, weighty)).subject == REPLY  # which it did not look at
    (tmp_path / "evil.py").write_text("raise SystemExit('it was run')")
    plugged = notes | {"config": notes["config"] | {"plugins": [str(tmp_path / "evil.py")]}}
    assert "cannot be sent" in respond(machine, Message(ENROL, plugged)).notes["reason"]


def test_a_guest_takes_no_part_in_making_the_model(config, tmp_path):
    machine = SiteConfig.parse(federation(tmp_path).apps[97][1])
    asked = {"kind": "train", "round": 0, "ticket": 0}
    answer = respond(machine, Message(ASK, network_notes(config) | asked, {"model": {}}))
    assert "'sketch' does not answer 'ask': its role is guest" in answer.notes["reason"]


def test_what_is_no_letter_is_set_aside():
    for text, content in [("[]", pack({})), ('{"subject": 1}', pack({})), ("{", pack({})), ('{"subject": "a"}', b"xx")]:
        with pytest.raises(ValueError):
            parse_message(text, content)
    message = Message(REPLY, {"a": 0.1}, {"b": {"z": torch.arange(3), "a": torch.zeros(())}, "e": {}})
    back = parse_message(message.text, message.content)
    assert back.notes == message.notes and list(tree.flatten(back.body)) == ["b/z", "b/a", "e/"]
    with pytest.raises(ValueError, match="other leaves"):
        parse_message(message.text, pack({"b": torch.zeros(1)}))


def test_what_cannot_be_read_is_the_fault_of_who_sent_it_and_of_nobody_else():
    """Leaves under leaves, notes without end, sizes without bounds: the others go on."""
    twisted = flower.arrays(safetensors.torch.save({"a": torch.zeros(1), "a/b/c": torch.zeros(1)}))
    texts = ['{"subject": "reply", "notes": {}, "order": ["a", "a/b/c"]}', "[" * 100_000, '{"subject": 1e999}']
    Nodes({})  # in whose name messages are written
    for text in texts:
        record = flower.RecordDict({flower.TREE: twisted, flower.NOTES: flower.ConfigRecord({flower.NOTES: text})})
        answer = flower._answer(flower.FlowerMessage(record, 1, "train.ask"))
        assert answer.startswith("its reply cannot be read: "), answer
    engine = remote.RemoteEngine(None, {}, {"a": Message(REPLY, {"private_bytes": 0})}, None)
    for notes in ({"private_bytes": math.inf}, {"private_bytes": [1]}, {"private_bytes": 1, "client": "a"}):
        found = engine._reply("a", Message(REPLY, {"client": "a"} | notes), is_counted=True)
        assert isinstance(found, Failure) and "sent malformed notes" in found.reason


def test_flower_is_named_where_it_is_missing_and_reports_to_nobody():
    code = "import sys; sys.modules['flwr'] = None; import fedbeyond.flower.app"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'fedbeyond[flower]'" in ended.stderr
    from flwr.supercore.telemetry import FLWR_TELEMETRY_ENABLED

    assert FLWR_TELEMETRY_ENABLED == "0" and os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_flower_is_imported_in_few_modules():
    source = Path(flower.__file__).parent.parent
    assert sorted(
        path.name for path in source.rglob("*.py") if re.search(r"^\s*(from|import) flwr", path.read_text(), re.M)
    ) == ["app.py", "run_status.py", "superexec.py"]


POLICIES = [
    ('methods = ["fedavg", "ga"]', "does not allow 'fedsb'; it allows fedavg, ga"),
    (
        'sends = ["scalars"]',
        "sends 'model' in reply to 'train', which is of kind parameters; the site's policy allows scalars to leave",
    ),
    ("max_rounds = 1", "2 rounds are requested; the site's policy allows 1"),
    ("min_images = 1000", "images to train on; its policy requires 1000 or more"),
    ("max_epsilon = 8", "fedsb(budget=4)+ga adds no noise to replies; the site's policy requires an epsilon"),
    ("sums_only = true", "cannot use it, because its server needs the reply of each site"),
]


@pytest.mark.parametrize(("text", "reason"), POLICIES)
def test_what_a_sites_policy_does_not_allow_is_refused_and_told_to_both_sides(config, text, reason, tmp_path):
    grid = federation(tmp_path / "sites", guests=())
    (tmp_path / "policy.toml").write_text(text)
    grid.apps[98][1]["policy"] = str(tmp_path / "policy.toml")
    with pytest.raises(FederationError, match=rf"photo: PolicyError: .*{re.escape(reason)}"):
        play(config, grid, tmp_path / "run", guests=())
    last = json.loads((tmp_path / "sites" / "photo" / "audit.jsonl").read_text().splitlines()[-1])
    assert last["direction"] == "out" and last["subject"] == "failure" and reason in last["reason"]


@pytest.mark.parametrize(
    ("text", "reason"), [('metods = ["fedavg"]', "metods is not known"), ("methods = 3", "policy cannot be read")]
)
def test_a_policy_that_cannot_be_read_allows_nothing(config, text, reason, tmp_path):
    (tmp_path / "policy.toml").write_text(text)
    machine = SiteConfig.parse(federation(tmp_path).apps[98][1] | {"policy": tmp_path / "policy.toml"})
    answer = respond(machine, Message(ENROL, network_notes(config)))
    assert answer.subject == FAILURE and "policy.toml" not in answer.text
    assert f"{tmp_path / 'policy.toml'}: " in (machine.folder / "errors.log").read_text()
    assert reason in (machine.folder / "errors.log").read_text()


def test_a_site_may_keep_its_scores_to_itself(config, tmp_path):
    grid = federation(tmp_path / "sites", guests=())
    (tmp_path / "policy.toml").write_text("scores = false")
    grid.apps[98][1]["policy"] = str(tmp_path / "policy.toml")
    line = play(replace(config, method="fedsb(budget=4)"), grid, tmp_path / "run", guests=())[0]
    assert set(line["scores"]) == {"cartoon", "painting"} and set(line["weights"]) == set(SITES)
    assert line["withheld"] == {"photo": "the site's policy allows no scores to leave"} and line["rejected"] == []
    assert "photo withholds its scores" in flower.format_line(line)


def test_a_policy_is_looked_at_before_the_data_are(config, tmp_path):
    (tmp_path / "policy.toml").write_text('methods = ["fedavg"]')
    own = {"site": "photo", "data": "folder(root='/nowhere')", "folder": tmp_path, "policy": tmp_path / "policy.toml"}
    assert "PolicyError" in respond(SiteConfig.parse(own), Message(ENROL, network_notes(config))).notes["reason"]


def test_every_letter_leaves_a_line_in_the_sites_log_and_no_content(config, tmp_path):
    config, grid = replace(config, train=replace(config.train, batchnorm="average")), federation(tmp_path / "sites")
    play(config, grid, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "sites" / "photo" / "audit.jsonl").read_text().splitlines()]
    said = [(line["direction"], line["subject"], line.get("round"), line.get("kind")) for line in lines]
    round_of = [("in", "ask", 0, "train"), ("out", "reply", 0, "train")]
    judging = [("in", "evaluate", 0, None), ("out", "reply", 0, None)]
    assert said[:6] == [("in", "enrol", None, None), ("out", "reply", None, None), *round_of, *judging]
    assert len(lines) == 2 + 2 * 4 and lines[3]["bytes"] > lines[1]["bytes"] > 0
    assert all(len(line["sha256"]) == 64 and "scores" not in line and "config" not in line for line in lines)
    left = run_folder.lines(tmp_path / "run")[0]["bytes_up"]["photo"]
    models = sum(size for names in left.values() for size in names.values())
    assert models < lines[3]["bytes"] < models + 5000  # with names and notes
    sent = {name for names in left.values() for name in names}
    assert lines[3]["names"] == sorted({*sent, "client", "private_bytes", "weight"})
    assert lines[5]["names"] == ["client", "scores"]
