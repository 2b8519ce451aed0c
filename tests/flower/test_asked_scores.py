"""Scores of models that a method sends in its replies are evaluations, and a site's policy limits them as such."""

import math
from dataclasses import replace

import pytest
import torch

from fedbeyond.experiment import runner
from fedbeyond.experiment.build import assemble
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower.messages import ASK, ENROL, REPLY, Message
from fedbeyond.flower.node import respond
from fedbeyond.flower.site_data import own_domain, site_splits
from fedbeyond.images import pixels
from support.curious import evaluate, has_scores, notes_of, scaled, site, train


@pytest.fixture
def config(small):
    return Config(method="fedavg+sha", train=Train(rounds=3, batch_size=8, batchnorm="average"), **small)


@pytest.fixture
def model(config):
    return runner.prepare(config).assembly.initial_models()["model"]


def score(machine, config, models, number=0, **names):
    envelope = {"kind": "sha_score", "round": number, "ticket": 0, "accepted": {}}
    return respond(machine, Message(ASK, notes_of(config, **names) | envelope, {"models": models}))


def readers(model, classes):
    """Models whose loss on one sample tells its label, or a feature: the logit of class 0 is that feature."""
    head = {"head.weight": torch.zeros_like(model["params"]["head.weight"]), "head.bias": torch.zeros(classes)}
    found = {}
    for label in range(classes):
        found[f"label{label}"] = head | {"head.bias": 5.0 * torch.eye(classes)[label]}
    for place in range(head["head.weight"].shape[1]):
        weight = torch.zeros_like(head["head.weight"])
        weight[0, place] = 1.0
        found[f"feature{place}"] = head | {"head.weight": weight}
    return {name: model | {"params": model["params"] | params} for name, params in found.items()}


def read_features(losses, classes, width):
    label = min(range(classes), key=lambda each: float(losses[f"label{each}"]))
    odds = [math.expm1(float(losses[f"feature{place}"])) for place in range(width)]
    return [math.log((classes - 1) / each) if label == 0 else math.log(each + 2 - classes) for each in odds]


def test_a_patients_features_are_not_read_from_losses_that_a_method_asks_for(config, tmp_path):
    """One validation sample; its features are in the losses of crafted models, which sha sends."""
    one = replace(config, network="convnet(width=4, norm=group)", train=replace(config.train, validation=0.001))
    reckless = site(tmp_path / "reckless", "min_evaluated = 1")
    domains = own_domain(reckless)
    nets, classes = assemble(one, domains.classes, (3, 32, 32), 3).nets, len(domains.classes)
    model = runner.prepare(one).assembly.initial_models()["model"]
    crafted = readers(model, classes)
    answer = score(reckless, one, crafted, sources=len(crafted))  # the attack itself works
    net = nets["model"]
    net.load_state_dict(model["params"] | model["buffers"])
    images, labels = site_splits(reckless, one, domains)["val"]
    features = net.eval().features(pixels(images[:]))[0].tolist()
    assert len(labels) == 1
    assert read_features(answer.body["losses"], classes, len(features)) == pytest.approx(features, abs=1e-3)
    refused = score(site(tmp_path / "guarded"), one, crafted, sources=len(crafted))
    assert "samples, of which the site has too few; its policy requires 2 (min_evaluated)" in refused.notes["reason"]


def test_no_more_models_are_evaluated_than_there_are_sites(config, model, tmp_path):
    machine = site(tmp_path)
    answer = score(machine, config, {f"m{n}": scaled(model, 1 + n / 100) for n in range(57)})
    assert "57 models are to be evaluated for 'losses'; this method has one of each of 3" in answer.notes["reason"]
    assert score(machine, config, {name: model for name in "abc"}).subject == REPLY


@pytest.mark.parametrize(
    ("method", "request_kind", "name"),
    [
        ("fedavg+sha", "sha_score", "losses"),
        ("fedavg+ga", "train", "ga_received"),
        ("afl", "train", "loss"),
        ("arfl", "train", "loss"),
    ],
)
@pytest.mark.parametrize(
    ("policy", "reason"), [("scores = false", "allows no scores to leave"), ("round_scores = 1", "rounds scores")]
)
def test_a_method_that_sends_scores_does_not_enrol_where_they_may_not_leave(
    config, method, request_kind, name, policy, reason, tmp_path
):
    machine = site(tmp_path, policy)
    refused = respond(machine, Message(ENROL, notes_of(replace(config, method=method))))
    assert f"sends {name!r} in reply to {request_kind!r}, of kind scalars: scores of" in refused.notes["reason"]
    assert f"The site's policy {reason}" in refused.notes["reason"]
    assert respond(machine, Message(ENROL, notes_of(replace(config, method="fedavg")))).subject == REPLY


def test_scores_in_replies_are_evaluations_of_all_runs(config, model, tmp_path):
    machine = site(tmp_path, "max_evaluations = 7")
    models = [{name: scaled(model, 1 + n / 100) for name in "abc"} for n in range(4)]
    answers = [score(machine, config, each, run=f"run{n}") for n, each in enumerate(models)]
    assert [answer.subject == REPLY for answer in answers] == [True, True, False, False]  # three scores each
    assert "allows 7 evaluations of models in all runs" in answers[2].notes["reason"]
    assert score(machine, config, models[0], run="run0").subject == REPLY  # the same again is free
    gap = replace(config, method="fedavg+ga")
    assert "allows 7 evaluations" in train(machine, gap, model).notes["reason"]  # two scores
    assert has_scores(evaluate(machine, config, model))
    assert not has_scores(evaluate(machine, config, scaled(model, 2), number=1))


def test_a_round_is_scored_a_few_times_only(config, model, tmp_path):
    machine = site(tmp_path)
    models = [{name: scaled(model, 1 + n / 100) for name in "abc"} for n in range(9)]
    answers = [score(machine, config, each) for each in models]
    assert [answer.subject == REPLY for answer in answers] == [True] * 3 + [False] * 6
    assert "3 different replies to 'sha_score' with scores of models have left in round 1" in answers[3].notes["reason"]
    assert score(machine, config, models[3], number=1).subject == REPLY
