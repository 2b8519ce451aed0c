"""On the outputs of frozen layers, methods that say they can do with them compute what they compute on images."""

from dataclasses import replace

import pytest
import torch

from fedbeyond import tree
from fedbeyond.batch import plain
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import FederationError
from fedbeyond.experiment import registry
from fedbeyond.experiment.outputs import outputs_of
from fedbeyond.networks.frozen import frozen_digest
from fedbeyond.networks.part import train_part, why_images
from fedbeyond.networks.prefix import tail_in
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.method_settings import SMALL

METHODS = [SMALL.get(name, name) for name in registry.REGISTRY["methods"]]
WRAPPED = [f"fedavg+{wrapper}" for wrapper in registry.REGISTRY["wrappers"]]
ABLE = [name for name in METHODS + WRAPPED if not why_images(registry.build(name))]


def states(method, part):
    """The states after two rounds on images, and on the outputs of frozen layers."""
    for cache in (False, True):
        chosen = train_part(method, registry.make_one("parts", part)._replace(cache=cache))
        sites = toy.sites(chosen, task=toy.DEEPER)
        net = sites[0].nets["model"]
        assert bool(tail_in(net)) == cache
        if outputs := outputs_of(chosen, net, frozen_digest(net), "cpu"):
            for site in sites:
                site.data = outputs.of_site(site.data)
        yield simulate(chosen, 2, Simulator(chosen.client, sites), task=toy.DEEPER)[0]


def are_close(one, other):
    ours, theirs = tree.flatten(one), tree.flatten(other)
    same = (torch.allclose(ours[path].double(), theirs[path].double(), rtol=1e-3, atol=1e-4) for path in ours)
    return ours.keys() == theirs.keys() and all(same)


@pytest.mark.parametrize("name", ABLE)
def test_on_cached_outputs_a_method_computes_what_it_computes_on_images(name):
    method = registry.build(name)
    part = "last" if method.shapes_features or name == "fedbn" else "head"
    assert are_close(*states(method, part))


def test_most_methods_can():
    assert len(ABLE) >= 35 and {"scaffold", "fedsb(budget=3)", "rsc", "fedavg+ga", "fedavg+dp"} <= {*ABLE}


NEEDING = [name for name in METHODS if name not in ABLE]
CLAIMING = [
    name for name in NEEDING if registry.build(name).augment is plain and not registry.build(name).needs & {"stages"}
]


@pytest.mark.parametrize("name", [name for name in CLAIMING if name != "harmofl"])  # whose wrapped network has no tail
def test_a_method_that_claimed_so_wrongly_would_be_found_out(name):
    assert why_images(registry.build(name)) == "the method uses images themselves"
    claimed = replace(registry.build(name), inputs_unchanged=True)
    if name == "mixup":  # blended outputs of layers are not those of blended images
        assert not are_close(*states(claimed, "last"))
    else:  # tiles, generated images and spectra of rows
        with pytest.raises(FederationError, match="gave a valid reply"):
            list(states(claimed, "head"))


@pytest.mark.parametrize("name", ["fedavg+rc", "fedavg+am", "fedavg+augmix", "scaffold+rc+ga", "fedavg+mixstyle"])
def test_a_wrapper_that_changes_images_or_maps_needs_images(name):
    assert why_images(registry.build(name))
