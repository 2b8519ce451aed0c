"""Products in bfloat16 and compiled networks, under any method; what is stored and sent stays float32."""

import shutil

import pytest
import torch
from torch import nn

from fedbeyond import registry, tree
from fedbeyond.compiling import compiled
from fedbeyond.config import Config, Train, load
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.evaluate import scores
from fedbeyond.federation import Simulator
from fedbeyond.laws import reference, simulate, toy
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.precision import computing, halved, whole
from fedbeyond.setting import adapted

METHODS = ["fedavg", "scaffold", "fedgca", "fedadg", "feddag", "moon", "fccl", "coral", "randconv", "fedavg+ga"]


@pytest.mark.parametrize("name", METHODS)
def test_products_are_in_bfloat16_and_trees_in_float32(name):
    method = adapted(registry.build(name), Train(precision="bfloat16"))
    sites, seen = toy.sites(method), set()
    sites[0].nets["model"].head.register_forward_hook(lambda part, given, out: seen.add(out.dtype))
    federation = Simulator(method.client, sites)
    state, minutes = simulate(method, rounds=1, federation=federation)
    assert seen == {torch.bfloat16} and not minutes[0]["aside"]
    leaves = tree.leaves(state) + tree.leaves(federation.slots)
    assert {leaf.dtype for leaf in leaves if leaf.is_floating_point()} <= {torch.float32, torch.float64}


def test_parameters_that_moved_are_those_that_the_next_step_goes_by():
    plain, reduced = fedavg(), adapted(fedavg(), Train(precision="bfloat16"))
    want, got = (simulate(method)[0]["server"]["model"]["params"] for method in (plain, reduced))
    begin = toy.shared(plain)["model"]["params"]
    moved, off = tree.sub(want, begin), tree.sub(got, want)
    assert 0 < float(tree.dot(off, off)) < 0.01 * float(tree.dot(moved, moved))


def test_scores_are_float32_and_the_loss_too():
    net = halved(lambda task: {"model": task.network(task)})(toy.TASK)["model"]
    assert scores(net, torch.ones(2, 3, 6, 6)).dtype == torch.float32
    with computing("cpu", net):
        said = net(torch.ones(2, 3, 6, 6))
        assert said.dtype == torch.bfloat16
        assert nn.functional.cross_entropy(said, torch.tensor([0, 1])).dtype == torch.float32
    assert whole(torch.ones(1, dtype=torch.float64)).dtype == torch.float64


def test_the_switches_of_torch_are_back_where_they_were():
    net, before = nn.Linear(1, 1), torch.backends.mkldnn.enabled
    net.halved = True
    with pytest.raises(ZeroDivisionError), computing("cpu", net):
        assert torch.is_autocast_enabled("cpu")
        raise ZeroDivisionError
    assert torch.backends.mkldnn.enabled == before and not torch.is_autocast_enabled("cpu")


def test_left_alone_they_change_nothing():
    assert adapted(fedavg(), Train()).networks is fedavg().networks
    same = Config(train=Train(precision="float32", compile=False))
    assert same.digest() == Config().digest() and "compile" not in same.identity()["train"]
    others = [Config(train=Train(precision="bfloat16")), Config(train=Train(compile=True))]
    assert len({config.digest() for config in (same, *others)}) == 3


@pytest.mark.parametrize("setting", ["train.precision=float16", "train.compile=perhaps"])
def test_other_values_are_refused(setting):
    with pytest.raises(ConfigError, match="does not fit"):
        load(None, [setting])


@pytest.fixture
def settings_of_torch():
    """What compiling sets, set back for the tests that follow."""
    from torch._dynamo import config as tracing
    from torch._functorch import config as differentiating
    from torch._inductor import config as making

    with tracing.patch({}), differentiating.patch({}), making.patch({}):
        yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # of torch, about its own parts
@pytest.mark.parametrize("name", ["fedavg", "fedgca", "ccst"])
def test_compiled_networks_have_the_same_names_and_give_the_same(name, settings_of_torch):
    from torch._dynamo.utils import counters

    counters.clear()
    want = reference(lambda: registry.build(name)).state["server"]["model"]
    got = simulate(compiled(registry.build(name), "aot_eager"))[0]["server"]["model"]
    assert counters["stats"]["unique_graphs"] > 0  # it was compiled
    tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4), got, want)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not shutil.which("g++"), reason="the compiler needs one for C++")
def test_torchs_own_compiler_gives_the_same_to_four_digits(settings_of_torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    net, x = compiled(fedavg()).networks(toy.TASK)["model"].eval(), torch.rand(4, 3, 6, 6)
    got = net(x)
    del net.body.forward  # as it was
    torch.testing.assert_close(got, net(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_method_that_differentiates_twice_is_told_so(settings_of_torch):
    with pytest.raises(FederationError, match=r"differentiated twice.*train.compile = false"):
        simulate(compiled(registry.build("elcfs(order=full)"), "aot_eager"), rounds=1)
