"""Products in bfloat16 under any method; what is stored and sent stays float32."""

import pytest
import torch
from torch import nn

from fedbeyond import tree
from fedbeyond._precision import autocast_for, in_bfloat16, to_float32
from fedbeyond.classifier import logits
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.experiment.build import with_train_options
from fedbeyond.experiment.config import Config, Train, load
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate

METHODS = ["fedavg", "scaffold", "fedgca", "fedadg", "feddag", "moon", "fccl", "coral", "randconv", "fedavg+ga"]


@pytest.mark.parametrize("name", METHODS)
def test_products_are_in_bfloat16_and_trees_in_float32(name):
    method = with_train_options(registry.build(name), Train(precision="bfloat16"))
    sites, seen = toy.sites(method), set()
    sites[0].nets["model"].head.register_forward_hook(lambda part, given, out: seen.add(out.dtype))
    federation = Simulator(method.client, sites)
    state, round_log = simulate(method, rounds=1, federation=federation)
    assert seen == {torch.bfloat16} and not round_log[0]["rejected"]
    leaves = tree.leaves(state) + tree.leaves(federation.client_states)
    assert {leaf.dtype for leaf in leaves if leaf.is_floating_point()} <= {torch.float32, torch.float64}


def test_parameters_that_moved_are_those_that_the_next_step_goes_by():
    plain, reduced = fedavg(), with_train_options(fedavg(), Train(precision="bfloat16"))
    want, got = (simulate(method)[0]["server"]["model"]["params"] for method in (plain, reduced))
    begin = toy.shared(plain)["model"]["params"]
    moved, off = tree.sub(want, begin), tree.sub(got, want)
    assert 0 < float(tree.dot(off, off)) < 0.01 * float(tree.dot(moved, moved))


def test_scores_are_float32_and_the_loss_too():
    net = in_bfloat16(lambda task: {"model": task.network(task)})(toy.TASK)["model"]
    assert logits(net, torch.ones(2, 3, 6, 6)).dtype == torch.float32
    with autocast_for("cpu", net):
        said = net(torch.ones(2, 3, 6, 6))
        assert said.dtype == torch.bfloat16
        assert nn.functional.cross_entropy(said, torch.tensor([0, 1])).dtype == torch.float32
    assert to_float32(torch.ones(1, dtype=torch.float64)).dtype == torch.float64


def test_the_switches_of_torch_are_back_where_they_were():
    net, before = nn.Linear(1, 1), torch.backends.mkldnn.enabled
    net.autocast = True
    with pytest.raises(ZeroDivisionError), autocast_for("cpu", net):
        assert torch.is_autocast_enabled("cpu")
        raise ZeroDivisionError
    assert torch.backends.mkldnn.enabled == before and not torch.is_autocast_enabled("cpu")


def test_left_alone_they_change_nothing():
    assert with_train_options(fedavg(), Train()).networks is fedavg().networks
    same = Config(train=Train(precision="float32"))
    assert same.digest() == Config().digest() != Config(train=Train(precision="bfloat16")).digest()


@pytest.mark.parametrize("setting", ["train.precision=float16"])
def test_other_values_are_refused(setting):
    with pytest.raises(ConfigError, match="is not valid"):
        load(None, [setting])
