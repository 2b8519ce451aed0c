"""Two runs whose splits differ by one patient reveal that patient: a site can fix its splits for all runs."""

from dataclasses import replace

import pytest
import torch

from fedbeyond import tree
from fedbeyond.classifier import write
from fedbeyond.experiment import runner
from fedbeyond.experiment.build import assemble
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower.messages import ENROL, REPLY, Message
from fedbeyond.flower.node import respond
from fedbeyond.flower.site_data import own_domain, site_splits
from fedbeyond.images import pixels
from support.curious import evaluate, notes_of, site, train


@pytest.fixture
def config(small):
    return Config(
        method="fedavg",
        optimizer="sgd(lr=1.0, momentum=0.0, weight_decay=0.0)",
        train=Train(rounds=1, batch_size=10**5, batchnorm="average"),
        **small | {"network": "convnet(width=4, norm=group)"},
    )


@pytest.fixture
def model(config):
    return runner.prepare(config).assembly.initial_models()["model"]


def pair(machine, config):
    """Two configurations in which one patient is in training, and in validation."""
    images = sum(len(labels) for _, labels in site_splits(machine, config, own_domain(machine)).values())
    return [replace(config, train=replace(config.train, validation=count / images)) for count in (10, 11)]


def step(machine, config, model):
    """The sum of the gradients of all training samples: one step at learning rate 1."""
    answer = train(machine, config, model)
    change = tree.sub(model["params"], answer.body["model"]["params"])
    return tree.scale(answer.notes["weight"], change)


def between(machine, configs):
    """The sample that only the first of two configurations trains on."""
    first, second = (site_splits(machine, each, own_domain(machine))["train"] for each in configs)
    common = {image.numpy().tobytes() for image in second[0][:]}
    ((image, label),) = [
        pair for pair in zip(first[0][:], first[1], strict=True) if pair[0].numpy().tobytes() not in common
    ]
    return image, int(label)


def test_a_patient_is_not_read_from_the_difference_of_two_runs(config, model, tmp_path):
    open_site = site(tmp_path / "open")  # the attack itself works
    configs = pair(open_site, config)
    first, second = (step(open_site, each, model) for each in configs)
    alone = tree.sub(first, second)
    image, label = between(open_site, configs)
    assert int(alone["head.bias"].argmin()) == label
    net = write(assemble(config, own_domain(open_site).classes, (3, 32, 32), 3).nets["model"], model).eval()
    features = net.features(pixels(image[None]))[0].detach()
    read = alone["head.weight"][label] / alone["head.bias"][label]
    assert float(torch.cosine_similarity(read, features, 0)) > 0.999
    guarded = site(tmp_path / "guarded", "fixed_splits = true")
    assert train(guarded, configs[0], model).subject == REPLY
    asked = [train(guarded, configs[1], model), evaluate(guarded, configs[1], model)]
    asked.append(respond(guarded, Message(ENROL, notes_of(configs[1]))))
    assert all("the site's policy fixes its splits (fixed_splits)" in answer.notes["reason"] for answer in asked)


CHANGES = [{"seed": 1}, {"test": 0.2}, {"validation": 0.2}, {"clients_per_domain": 2}]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_whatever_moves_samples_between_splits_is_fixed(config, model, change, tmp_path):
    own = {"site": "photo-0", "domain": "photo"} if "clients_per_domain" in change else {}
    machine, before = site(tmp_path, "fixed_splits = true", **own), config
    if own:
        before = replace(config, train=replace(config.train, clients_per_domain=3))
    assert train(machine, before, model).subject == REPLY
    other = replace(before, seed=1) if "seed" in change else replace(before, train=replace(before.train, **change))
    assert "(fixed_splits)" in train(machine, other, model).notes["reason"]
    same = replace(before, method="fedprox", train=replace(before.train, rounds=2, batch_size=8))
    assert train(machine, same, model).subject == REPLY
