"""Mixed precision: products in bfloat16 under any method; what is stored, sent and evaluated stays float32."""

import pytest
import torch

from fedbeyond import tree
from fedbeyond.classifier import logits
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.experiment.build import site_options
from fedbeyond.experiment.config import Config, Train, load
from fedbeyond.experiment.prepare import prepare
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate

METHODS = ["fedavg", "scaffold", "fedgca", "fedadg", "feddag", "moon", "fccl", "coral", "randconv", "fedavg+ga"]


@pytest.fixture(autouse=True)
def without_onednn():
    """There is no GPU here, so these tests use a CPU; without bfloat16 instructions, oneDNN can crash the process."""
    before = torch.backends.mkldnn.set_flags(False)
    yield
    torch.backends.mkldnn.set_flags(*before[:1])


def simulate_mixed(method, rounds):
    sites = toy.sites(method)
    for site in sites:
        site.mixed_precision = True
    federation = Simulator(method.client, sites)
    return *simulate(method, rounds, federation=federation), federation


@pytest.mark.parametrize("name", METHODS)
def test_products_are_in_bfloat16_and_trees_in_float32(name):
    method, dtypes = registry.build(name), set()
    forward = torch.nn.functional.linear

    def linear(*args, **options):
        result = forward(*args, **options)
        dtypes.add(result.dtype)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", linear)
        state, round_logs, federation = simulate_mixed(method, 1)
    assert torch.bfloat16 in dtypes and not round_logs[0]["rejected"]
    leaves = tree.leaves(state) + tree.leaves(federation.client_states)
    assert {leaf.dtype for leaf in leaves if leaf.is_floating_point()} <= {torch.float32, torch.float64}


def test_each_step_uses_the_parameters_of_the_step_before():
    """A cache of reduced parameters would go stale inside a round."""
    want, got = (run(fedavg(), 2)[0]["server"]["model"]["params"] for run in (simulate, simulate_mixed))
    begin = toy.shared(fedavg())["model"]["params"]
    moved, off = tree.sub(want, begin), tree.sub(got, want)
    assert 0 < float(tree.dot(off, off)) < 0.01 * float(tree.dot(moved, moved))


def test_evaluation_at_a_site_and_augmentation_are_in_float32():
    site = toy.sites(fedavg())[0]
    site.mixed_precision, dtypes = True, []
    site.augment = lambda batch, rng: dtypes.append((batch.x.flatten(1) @ batch.x.flatten(1).T).dtype) or batch
    with site.autocast():
        next(site.batches())
    assert dtypes == [torch.float32] and not torch.is_autocast_enabled("cpu")
    assert logits(site.nets["model"], torch.ones(2, 3, 6, 6)).dtype == torch.float32


def test_the_option_reaches_the_sites_and_is_part_of_the_run():
    config = Config(train=Train(precision="bfloat16"))
    assert site_options(config, fedavg(), "cuda:1")["mixed_precision"]
    assert not site_options(Config(), fedavg(), "cpu")["mixed_precision"]
    assert config.digest() != Config().digest() == Config(train=Train(precision="float32")).digest()


def test_without_a_gpu_it_is_refused_before_anything_is_trained():
    config = load(None, ["target=sketch", "train.precision=bfloat16"])
    with pytest.raises(ConfigError, match=r"needs a GPU \(CUDA\), and the device here is cpu; use the device cuda"):
        prepare(config)


def test_other_values_are_refused():
    with pytest.raises(ConfigError, match="is not valid"):
        load(None, ["train.precision=float16"])
