"""A server that asks cleverly learns no more than a site's policy allows, whatever it calls its runs and rounds.

Every test plays the server. Sites answer through `respond`, as they do over Flower.
"""

import math
import string
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedbeyond.experiment import runner
from fedbeyond.experiment.build import assemble
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower.messages import ASK, ENROL, REPLY, Message
from fedbeyond.flower.node import respond
from fedbeyond.flower.site_data import own_domain, site_splits
from fedbeyond.wrappers.privacy import epsilon
from support.curious import evaluate, has_scores, measure, notes_of, scaled, site, train


@pytest.fixture
def config(small):
    return Config(method="fedavg", train=Train(rounds=3, batch_size=8, batchnorm="average"), **small)


@pytest.fixture
def model(config):
    return runner.prepare(config).assembly.initial_models()["model"]


# a patient's features


def clinic(folder, policy=""):
    """A site with a table of 150 patients."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal(60, 9):.1f},{rng.normal(130, 15):.0f},{rng.normal(6, 2):.2f},{n % 2}" for n in range(150)]
    (folder / "clinic.csv").write_text("\n".join(["age,pressure,glucose,sick", *rows]))
    return site(folder / "site", policy, site="clinic", data=f"table(path='{folder}/*.csv', label=sick)")


def reader(machine, config, feature):
    """A network whose difference of logits is one feature of its input."""
    domains = own_domain(machine)
    nets = assemble(config, domains.classes, (3,), 3).initial_models()["model"]
    params = {name: torch.zeros_like(leaf) for name, leaf in nets["params"].items()}
    first, last = (name for name in params if name.endswith("weight"))
    params[first][0, feature], params[first][1, feature] = 1.0, -1.0
    params[last][1, 0], params[last][1, 1] = 1.0, -1.0
    return nets | {"params": params}


def read_feature(metrics):
    """Invert the loss of one patient: log(1 + exp(-x)) if sick, log(1 + exp(x)) if not."""
    value = math.log(math.expm1(metrics["loss"]))
    return -value if sum(metrics["confusion"][1]) else value


SPYING = Config(
    method="fedavg",
    target="elsewhere",
    network="mlp(hidden=[2])",
    train=Train(rounds=3, batch_size=8, validation=0.006, batchnorm="average"),
)


def test_a_patients_features_are_not_read_from_three_scores(tmp_path):
    """One validation sample and three crafted models: the loss of each is a feature. Its scores do not leave."""
    machine = clinic(tmp_path / "guarded")
    patient = site_splits(machine, SPYING, own_domain(machine))["val"][0]
    assert patient.shape == (1, 3)
    answers = [evaluate(machine, SPYING, reader(machine, SPYING, each), number=each) for each in range(3)]
    assert not any(map(has_scores, answers))
    assert "too few samples; the site's policy requires 2 (min_evaluated)" in answers[0].notes["withheld"]
    reckless = clinic(tmp_path / "reckless", "min_evaluated = 1")  # the attack itself works
    answers = [evaluate(reckless, SPYING, reader(reckless, SPYING, each), number=each) for each in range(3)]
    read = [read_feature(answer.notes["scores"]["val"]) for answer in answers]
    assert read == pytest.approx(patient[0].tolist(), abs=1e-4)


def test_a_patients_features_are_not_read_from_losses_in_replies_either(tmp_path):
    """SHA asks sites for the losses of models on validation samples: another way to the same three scores."""
    config = replace(SPYING, method="fedavg+sha")
    envelope = {"kind": "sha_score", "round": 0, "ticket": 0, "accepted": {}}

    def losses(machine, names="abc"):
        models = {name: reader(machine, config, place % 3) for place, name in enumerate(names)}
        return respond(machine, Message(ASK, notes_of(config) | envelope, {"models": models}))

    reason = losses(clinic(tmp_path / "guarded")).notes["reason"]
    assert "of which the site has too few; its policy requires 2 (min_evaluated)" in reason
    reckless = clinic(tmp_path / "reckless", "min_evaluated = 1")  # the attack itself works, up to a sign
    patient = site_splits(reckless, config, own_domain(reckless))["val"][0][0]
    read = [math.log(math.expm1(loss)) for loss in losses(reckless).body["losses"].values()]
    assert [abs(value) for value in read] == pytest.approx(patient.abs().tolist(), abs=1e-4)
    assert (
        "26 models are to be evaluated for 'losses'; this method has one of each of 3 sites"
        in losses(reckless, string.ascii_lowercase).notes["reason"]
    )


def test_features_are_not_read_from_rounded_scores_either(tmp_path):
    """However large the numbers of a crafted model are: its loss has as many digits as the policy allows."""
    config = replace(SPYING, train=replace(SPYING.train, validation=0.1))
    machine = clinic(tmp_path / "clinic", "round_scores = 1")
    val = site_splits(machine, config, own_domain(machine))["val"]
    assert len(val[1]) > 10
    loud = scaled(reader(machine, config, 0), 1000.0)
    metrics = evaluate(machine, config, loud).notes["scores"]["val"]
    assert metrics["loss"] == float(f"{metrics['loss']:.1g}") > 1000
    assert all(round(value, 1) == value for name, value in metrics.items() if name != "loss")
    assert {"recall", "confusion"}.isdisjoint(metrics)
    few = replace(config, train=replace(config.train, validation=0.05))
    withheld = evaluate(machine, few, loud).notes["withheld"]
    assert "the val split has too few samples; the site's policy requires 11 (round_scores = 1)" in withheld


# evaluations are queries


def test_a_hundred_models_are_not_evaluated_in_one_round(config, model, tmp_path):
    machine = site(tmp_path)
    answers = [evaluate(machine, config, scaled(model, 1 + step / 100)) for step in range(100)]
    assert list(map(has_scores, answers)) == [True] * 3 + [False] * 97  # a round may be repeated, with other models
    assert "3 other sets of models of round 1 of this run were evaluated before" in answers[3].notes["withheld"]
    again = evaluate(machine, config, scaled(model, 1))  # a server that was killed asks again
    assert again.notes == answers[0].notes
    every = [scaled(model, 1 + step / 100) for step in range(100)]
    crowd = evaluate(machine, config, *every, names=[f"model{n}" for n in range(100)], number=1)
    assert "100 models are to be evaluated; this method has one, 'model'" in crowd.notes["reason"]
    lone = evaluate(machine, replace(config, method="local"), *every[:4], names="abcd")
    assert "this method has one of each of 3 sites" in lone.notes["reason"]


def test_a_site_may_allow_a_second_set_of_models(config, model, tmp_path):
    """For several sets of models, each of which a repeated round may replace."""
    machine = site(tmp_path, "evaluations_per_round = 2")
    answers = [evaluate(machine, config, scaled(model, 1 + n)) for n in range(7)]
    assert list(map(has_scores, answers)) == [True] * 6 + [False]


def test_evaluations_are_limited_however_runs_are_named(config, model, tmp_path):
    machine = site(tmp_path, "max_evaluations = 5")
    answers = [evaluate(machine, config, scaled(model, 1 + n / 100), run=f"run{n}") for n in range(20)]
    assert list(map(has_scores, answers)) == [True] * 5 + [False] * 15
    assert "allows 5 evaluations of models in all runs" in answers[5].notes["withheld"]
    assert has_scores(evaluate(machine, config, scaled(model, 1), run="run0"))


@pytest.mark.parametrize(
    ("number", "reason"),
    [(1, "evaluates every 3 rounds"), (7, "round 8 is requested of a run of 7"), (-1, "round 0 is"), (99, "round 100")],
)
def test_rounds_that_a_run_does_not_evaluate_are_not_evaluated(config, model, number, reason, tmp_path):
    config = replace(config, train=replace(config.train, rounds=7, evaluate_every=3))
    machine = site(tmp_path)
    assert reason in evaluate(machine, config, model, number=number).notes["reason"]
    assert all(has_scores(evaluate(machine, config, model, number=planned)) for planned in (2, 5, 6))
    if number != 1:
        assert reason in train(machine, config, model, number=number).notes["reason"]


def test_a_run_has_two_sets_of_models_where_statistics_are_reestimated(config, model, tmp_path):
    config = replace(config, train=replace(config.train, batchnorm="reestimate"))
    answers = [evaluate(site(tmp_path), config, scaled(model, 1 + step)) for step in range(7)]
    assert list(map(has_scores, answers)) == [True] * 6 + [False]


def test_a_layer_is_measured_once_for_each_round(config, model, tmp_path):
    """With one model: neither with another, nor with other statistics of the layers before."""
    config = replace(config, train=replace(config.train, batchnorm="reestimate"))
    layers = [name.removesuffix(".running_mean") for name in model["buffers"] if name.endswith(".running_mean")]
    machine, count = site(tmp_path), len(layers)

    def asked(place, known, number=0, **body):
        wanted = {layers[place]: torch.empty(0)}
        body |= {"wanted": wanted, "known": known, "remaining": torch.tensor(count - place - 1)}
        return measure(machine, config, body, number)

    channels = model["buffers"][f"{layers[0]}.running_mean"]
    known = {layers[0]: {"mean": channels, "variance": channels + 1}}
    assert asked(0, {}, model=model).subject == REPLY == asked(0, {}, model=model).subject  # again is free
    other = {layers[0]: {"mean": channels + 9, "variance": channels + 1}}
    assert asked(1, known).subject == REPLY == asked(1, known).subject
    assert "a layer of the model of round 1 was measured before" in asked(1, other).notes["reason"]
    repeated = [asked(0, {}, model=scaled(model, 2 + n)) for n in range(3)]
    assert [answer.subject == REPLY for answer in repeated] == [True, True, False]
    assert "3 other models of round 1 of this run were measured" in repeated[2].notes["reason"]
    invented = measure(
        machine, config, {"wanted": {"x" * 99: torch.empty(0)}, "known": {}, "remaining": torch.tensor(1)}
    )
    assert "1 layers to measure are no BatchNorm layers" in invented.notes["reason"]
    assert asked(0, {}, 1, model=scaled(model, 2)).subject == REPLY


def test_measured_models_are_evaluations(config, model, tmp_path):
    config = replace(config, train=replace(config.train, batchnorm="reestimate"))
    machine = site(tmp_path, "max_evaluations = 2")
    layer = next(name for name in model["buffers"] if name.endswith(".running_mean")).removesuffix(".running_mean")
    body = {"wanted": {layer: torch.empty(0)}, "known": {}, "remaining": torch.tensor(9)}
    answers = [measure(machine, config, body | {"model": scaled(model, 1 + n)}, n) for n in range(3)]
    assert [answer.subject == REPLY for answer in answers] == [True, True, False]
    assert "withheld" in evaluate(machine, config, model).notes


# a run has one configuration

CHANGES = [
    {"seed": 1},
    {"network": "convnet(width=5)"},
    {"train": {"validation": 0.2}},
    {"train": {"test": 0.2}},
    {"train": {"evaluate_every": 2}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_run_keeps_the_configuration_that_it_began_with(config, model, change, tmp_path):
    """Or two validation splits that differ by one patient give that patient's score."""
    machine = site(tmp_path)
    first = evaluate(machine, config, model, run="one")
    assert has_scores(first)
    within = {"train": replace(config.train, **change["train"])} if "train" in change else change
    changed = replace(config, **within)
    asked = [evaluate(machine, changed, model, number=2, run="one"), train(machine, changed, model, run="one")]
    asked.append(respond(machine, Message(ENROL, notes_of(changed, "one"))))
    assert all("run one began at this site with another configuration" in each.notes["reason"] for each in asked)
    assert has_scores(evaluate(machine, config, model, number=2, run="one"))
    assert "another configuration" in evaluate(machine, config, model, run="one", sources=4).notes["reason"]


def test_a_run_may_get_more_rounds(config, model, tmp_path):
    machine, longer = site(tmp_path), replace(config, train=replace(config.train, rounds=9))
    assert has_scores(evaluate(machine, config, model, run="one"))
    assert has_scores(evaluate(machine, longer, model, number=8, run="one"))


# privacy is spent once, over all runs


def private(config, noise, **changes):
    return replace(config, method=f"fedavg+dp(noise={noise})", **changes)


def spent(*noises):
    """The epsilon of these noises, by the closed form: inverse squares add up."""
    return epsilon(1 / math.sqrt(sum(1 / noise**2 for noise in noises)), 1e-5, 1)


def test_epsilon_is_that_of_all_noises_inside_one_run(config, model, tmp_path):
    """A little noise first, then much: the count of replies with much noise says nothing about the first."""
    machine, left = site(tmp_path, "max_epsilon = 8"), []
    for noise in [0.8, *[5.0] * 40]:
        planned = private(config, noise, train=replace(config.train, rounds=1 if noise < 1 else 40))
        answer = train(machine, planned, scaled(model, 1 + len(left) / 100), run="one")
        if answer.subject == REPLY:
            left.append(noise)
    assert left and spent(*left) <= 8


def test_epsilon_is_that_of_all_runs(config, model, tmp_path):
    machine, left = site(tmp_path, "max_epsilon = 8"), []
    for number in range(20):
        noise = 1.0 + number / 10
        planned = private(config, noise, train=replace(config.train, rounds=1), seed=number)
        answer = train(machine, planned, scaled(model, 1 + number / 100), run=f"run{number}")
        left += [noise] if answer.subject == REPLY else []
    assert 7 < spent(*left) <= 8
    assert "replies of this site in all runs would spend an epsilon of" in answer.notes["reason"]
    enrolled = respond(machine, Message(ENROL, notes_of(private(config, 1.5))))  # and is told before it trains
    assert "with all 3 rounds of this run" in enrolled.notes["reason"]


def test_a_site_with_an_epsilon_counts_replies_without_noise_as_infinite(config, model, tmp_path):
    assert train(site(tmp_path), config, model).subject == REPLY
    machine = site(tmp_path, "max_epsilon = 8")
    reason = train(machine, private(config, 20.0), model).notes["reason"]
    assert "1 replies without noise have left this site, for which no epsilon holds" in reason


@pytest.mark.parametrize("names", ["one", "many"])
def test_rounds_are_limited_by_the_replies_that_left(config, model, names, tmp_path):
    """Twelve replies under a limit of three: all of round 1, or each in a run of its own, or in runs of any length."""
    machine = site(tmp_path, "max_rounds = 3")
    answers = []
    for step in range(12):
        rounds = config if names == "one" else replace(config, train=replace(config.train, rounds=1 + step % 3))
        run = "one" if names == "one" else f"run{step}"
        answers.append(train(machine, rounds, scaled(model, 1 + step / 100), run=run))
    assert [answer.subject == REPLY for answer in answers] == [True] * 3 + [False] * 9
    assert "3 different replies to 'train' have left under this configuration" in answers[3].notes["reason"]
    assert train(machine, config, scaled(model, 1), run="one").subject == REPLY  # the same again is free
    assert train(machine, replace(config, seed=1), model).subject == REPLY  # another run


# scores under a limit of epsilon


def test_scores_are_withheld_where_epsilon_is_limited(config, model, tmp_path):
    planned = private(config, 20.0)
    answer = evaluate(site(tmp_path / "a", "max_epsilon = 8"), planned, model)
    assert answer.subject == REPLY and not has_scores(answer) and "scores have no noise" in answer.notes["withheld"]
    assert has_scores(evaluate(site(tmp_path / "b", "max_epsilon = 8\nscores = true"), planned, model))
    assert not has_scores(evaluate(site(tmp_path / "c", "scores = false"), config, model))
