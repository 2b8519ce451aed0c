"""FedBN: every BatchNorm stays, whatever it is called; all else is averaged."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbeyond.classifier import Classifier, Task
from fedbeyond.errors import ConfigError
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedbn import fedbn
from fedbeyond.networks import batchnorm
from fedbeyond.networks._mlp import mlp
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate, simulator
from support.asserts import assert_equal, model


class Block(nn.Module):
    """As in torchvision's ResNets: a BatchNorm called bn1, and one called downsample.1."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.downsample = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x):
        return torch.relu(self.bn1(self.conv1(x)) + self.downsample(x))


@pytest.fixture
def blocky(monkeypatch):
    monkeypatch.setattr(toy, "TASK", Task(toy.CLASSES, (3, 6, 6), lambda task: Classifier(Block(), 4, 3)))


def is_norm(name):
    return "bn1" in name or "downsample.1" in name


def test_two_rounds_by_hand(blocky):
    method, rounds, lr = fedbn(optimizer=sgd(0.1)), 2, 0.1
    sites = {site.name: site for site in toy.sites(method)}
    net = toy.nets(method)["model"]
    shared, own = deepcopy(net.state_dict()), {}
    for number in range(rounds):
        trained = []
        for name in sorted(sites):
            net.load_state_dict(shared | own.get(name, {}))
            net.train()
            for batch in sites[name].reseed(number, "train").batches():
                net.zero_grad()
                F.cross_entropy(net(batch.x), batch.y).backward()
                with torch.no_grad():
                    for param in net.parameters():
                        param -= lr * param.grad
            trained.append(deepcopy(net.state_dict()))
            own[name] = {key: value for key, value in trained[-1].items() if is_norm(key)}
        for key in shared:
            stacked = torch.stack([one[key] for one in trained])
            shared[key] = stacked.mean(0) if stacked.is_floating_point() else stacked.amax(0)
    federation = simulator(method)
    state = simulate(method, rounds, federation)[0]["server"]["model"]
    for key, value in (state["params"] | state["buffers"]).items():
        torch.testing.assert_close(value, shared[key], rtol=1e-4, atol=1e-6)
    for name, client_state in federation.client_states.items():
        kept = client_state["pending"]["private"]["batchnorm"]["model"]
        assert (kept["params"] | kept["buffers"]).keys() == own[name].keys()
        for key, value in (kept["params"] | kept["buffers"]).items():
            torch.testing.assert_close(value, own[name][key], rtol=1e-4, atol=1e-6)


def test_it_is_uniform_fedavg_under_the_policy_local_to_the_bit(blocky):
    assert_equal(model(fedbn()), model(batchnorm.local(fedavg("uniform"))))


def test_the_first_round_and_a_single_site_are_fedavgs(blocky):
    assert_equal(model(fedbn(), rounds=1), model(fedavg("uniform"), rounds=1))
    alone = {"east": 9}
    assert_equal(model(fedbn(), sizes=alone), model(fedavg(), sizes=alone))


def test_the_policy_on_top_of_it_changes_nothing():
    assert_equal(model(batchnorm.local(fedbn())), model(fedbn()))


def test_a_network_without_batchnorm_is_refused():
    with pytest.raises(ConfigError, match=r"perceptron has none; use convnet.*weighting=uniform"):
        fedbn().networks(Task(("no", "yes"), (5,), mlp()))
    assert replace(fedavg(), networks=fedbn().networks).networks(toy.TASK)
