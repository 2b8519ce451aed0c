"""A server neither fills a site's folder nor writes what it likes into the site's audit log."""

import json

import pytest
import torch

from fedbeyond.experiment import runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower.answers import MEASURED_AT_ONCE
from fedbeyond.flower.messages import ENROL, EVALUATE, MEASURE, REPLY, Message
from fedbeyond.flower.node import respond
from support.curious import evaluate, notes_of, scaled, site, train


@pytest.fixture
def config(small):
    return Config(method="fedavg", train=Train(rounds=3, batch_size=8, batchnorm="reestimate"), **small)


@pytest.fixture
def model(config):
    return runner.prepare(config).assembly.initial_models()["model"]


def measured(machine, config, model, run, **body):
    layer = "body.0.1" if isinstance(model, torch.Tensor) else first_layer(model)
    body = {"wanted": {layer: torch.empty(0)}, "known": {}, "remaining": torch.tensor(9), "model": model} | body
    return respond(machine, Message(MEASURE, notes_of(config, run) | {"round": 0, "kind": "statistics"}, body))


def first_layer(model):
    names = [name for name in model.get("buffers", {}) if name.endswith(".running_mean")]
    return names[0].removesuffix(".running_mean") if names else "none"


def used(machine):
    return sum(path.stat().st_size for path in machine.folder.rglob("*.evaluated"))


JUNK = [
    lambda model: {"anything": torch.zeros(10**6, dtype=torch.uint8)},
    lambda model: model | {"more": torch.zeros(10**6)},
    lambda model: model | {"params": model["params"] | {"head.bias": torch.zeros(10**6)}},
    lambda model: model | {"params": {name: leaf.double() for name, leaf in model["params"].items()}},
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_only_models_of_the_runs_network_are_stored(config, model, junk, tmp_path):
    machine = site(tmp_path)
    answers = [measured(machine, config, junk(model), f"x{number}") for number in range(3)]
    assert all("this is no model of this run's network: model" in answer.notes["reason"] for answer in answers)
    assert used(machine) == 0


def test_models_of_many_runs_do_not_fill_the_disk(config, model, tmp_path):
    """Each comes under another name of the run, and is never measured to its end."""
    machine = site(tmp_path)
    assert measured(machine, config, model, "x").subject == REPLY
    one = used(machine)
    assert all(measured(machine, config, model, f"x{number}").subject == REPLY for number in range(20))
    assert one > 0 and used(machine) == MEASURED_AT_ONCE * one
    assert (machine.folder / "x19.evaluated").exists()


def test_a_model_that_the_policy_does_not_measure_is_not_stored(config, model, tmp_path):
    machine = site(tmp_path, "max_evaluations = 1")
    answers = [measured(machine, config, scaled(model, 1 + number), f"x{number}") for number in range(3)]
    assert [answer.subject == REPLY for answer in answers] == [True, False, False]
    assert [path.name for path in machine.folder.glob("*.evaluated")] == ["x0.evaluated"]


def test_a_message_may_have_a_largest_size(config, model, tmp_path):
    machine = site(tmp_path, "max_message_bytes = 200000")
    assert train(machine, config, model).subject == REPLY
    large = train(machine, config, model | {"more": torch.zeros(10**5)})
    assert "bytes; the site's policy allows 200000 (max_message_bytes)" in large.notes["reason"]


def lines(machine):
    return [json.loads(line) for line in (machine.folder / "audit.jsonl").read_text().splitlines()]


def test_a_server_does_not_write_reasons_into_the_audit_log(config, model, tmp_path):
    """Scores leave, and the line of that would have said that the policy withheld them."""
    machine, forged = site(tmp_path), "PolicyError: the site's policy allows no scores to leave"
    notes = notes_of(config) | {"round": 0, "models": ["model"], "reason": forged, "withheld": forged}
    assert "scores" in respond(machine, Message(EVALUATE, notes, {"0": model})).notes
    came, left = lines(machine)
    assert "reason" not in came and "withheld" not in came
    assert left["subject"] == "reply" and "reason" not in left and "withheld" not in left
    guarded = site(tmp_path / "guarded", "scores = false")
    evaluate(guarded, config, model)
    assert lines(guarded)[-1]["withheld"] == "the site's policy allows no scores to leave"


FORGED = [
    ("kind", "k" * 50000),
    ("kind", {"k": ["k"] * 5000}),
    ("round", "0" * 50000),
    ("round", 10**4000),
    ("run", "r" * 50000),
    ("run", 'one\n{"direction": "out"}'),
    ("n" * 50000, 1),
]


@pytest.mark.parametrize(("key", "value"), FORGED, ids=range(len(FORGED)))
def test_a_line_of_the_audit_log_is_short_whatever_a_server_sends(config, key, value, tmp_path):
    machine = site(tmp_path)
    respond(machine, Message(ENROL, notes_of(config) | {key: value}))
    many = {f"name{number}": 1 for number in range(5000)}
    respond(machine, Message(ENROL, notes_of(config) | many))
    text = (machine.folder / "audit.jsonl").read_text()
    assert len(text.splitlines()) == 4 and max(map(len, text.splitlines())) < 4000
    assert all(len(str(line.get(key, ""))) <= 64 for line in lines(machine) for key in ("run", "round", "kind"))
    assert lines(machine)[2]["more_names"] > 4900
