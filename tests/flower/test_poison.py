"""One site that lies does not spoil a run for good: by buffers of its model, or by the round that it scores."""

import json
from dataclasses import replace

import pytest
import torch

from fedbeyond import tree
from fedbeyond.experiment.checkpoint import load
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower.messages import ASK, EVALUATE
from support.liars import LIAR, SITES, federation, started

flower.PAUSE = 0.0


@pytest.fixture
def config(small):
    return Config(method="fedavg", train=Train(rounds=3, batch_size=8, batchnorm="average"), **small)


def leaves(change):
    """A lie: other numbers in a reply, by the path of a leaf."""

    def lie(reply):
        flat = {path: change(path, leaf) for path, leaf in tree.flatten(reply.body).items()}
        return replace(reply, body=tree.unflatten(flat), packed=None)

    return lie


def reasons(line):
    return [(each["site"], each["reason"]) for each in line["rejected"]]


def test_a_counter_that_no_training_can_reach_does_not_end_the_run(config, tmp_path):
    """The mean of counters is the largest: honest sites would count on from 10^12, and be rejected for it for ever."""
    many = leaves(lambda path, leaf: torch.full_like(leaf, 10**12) if path.endswith("num_batches_tracked") else leaf)
    lies = {ASK: many}
    lines = started(config, federation(tmp_path / "sites", lies), tmp_path / "run")
    ((site, reason),) = reasons(next(lines))
    assert site == LIAR and reason.endswith("num_batches_tracked grew by more than 10000000 batches in one round")
    lies.clear()
    assert [reasons(line) for line in lines] == [[], []]
    model = load(tmp_path / "run" / "checkpoint.safetensors")[0]["state"]["server"]["model"]
    assert all(int(leaf) < 1000 for path, leaf in model["buffers"].items() if path.endswith("num_batches_tracked"))


@pytest.mark.parametrize("batchnorm", ["average", "reestimate"])
def test_a_negative_variance_is_refused(config, batchnorm, tmp_path):
    """BatchNorm takes its square root: the mean of all sites would predict nothing at every honest site."""
    negative = leaves(lambda path, leaf: -20 * leaf if path.endswith("running_var") else leaf)
    config = replace(config, train=replace(config.train, rounds=2, batchnorm=batchnorm))
    lines = list(started(config, federation(tmp_path / "sites", {ASK: negative}), tmp_path / "run"))
    for line in lines:
        ((site, reason),) = reasons(line)
        assert site == LIAR and reason.endswith("running_var has a negative variance")
        assert all(torch.isfinite(torch.tensor(line["scores"][name]["val"]["loss"])) for name in SITES)


@pytest.mark.slow
def test_a_site_does_not_choose_the_round_by_sending_its_scores_late(config, tmp_path):
    """It withholds scores until the round that it poisons, which would be the only one with scores of all domains."""
    rounds = {"number": -1}

    def poison(reply):
        rounds["number"] += 1
        bad = leaves(lambda path, leaf: -9 * leaf if "/params/" in path else leaf)
        return bad(reply) if rounds["number"] == 3 else reply

    def late(reply):
        record = json.loads(reply.text)
        if rounds["number"] < 3:
            del record["notes"]["scores"]
        return replace(reply, received=json.dumps(record))

    config = replace(config, train=replace(config.train, rounds=4, epochs=8))
    lines = list(started(config, federation(tmp_path / "sites", {ASK: poison, EVALUATE: late}), tmp_path / "run"))
    assert LIAR in lines[3]["scores"] and LIAR not in lines[2]["scores"] and lines[3]["rejected"] == []
    means = [sum(line["scores"][name]["val"]["accuracy"] for name in SITES[:2]) / 2 for line in lines]
    assert max(means[:3]) > means[3]  # the poison works
    assert load(tmp_path / "run" / "best.safetensors")[1]["round"] < 3
