"""A network for tables, and what refuses tables before anything is trained."""

from dataclasses import replace

import pytest
import torch

from fedbeyond.classifier import Task
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import build, registry
from fedbeyond.methods.fedavg import fedavg


def task(spelled="mlp", shape=(5,)):
    return Task(("no", "yes"), shape, registry.make_one("networks", spelled))


def test_an_mlp_has_the_layers_it_is_given_and_a_head():
    given = task("mlp(hidden=[8, 3], dropout=0.5)")
    net = given.network(given)
    shapes = {name: tuple(param.shape) for name, param in net.named_parameters() if name.endswith("weight")}
    assert shapes == {"body.0.weight": (8, 5), "body.3.weight": (3, 8), "head.weight": (2, 3)}
    x = torch.rand(4, 5)
    assert net.eval()(x).shape == (4, 2) and torch.equal(net(x), net.head(net.features(x)))


def test_a_table_has_no_maps():
    given = task()
    net = given.network(given)
    assert not net.attentive and net.provides == {"features"}
    with pytest.raises(ConfigError, match="fedavg needs feature maps, and mlp gives only logits and features;"):
        build.networks(replace(fedavg(), needs={"maps"}), given, 0, "cpu", "fedavg")


def test_an_mlp_without_layers_or_for_images_is_refused():
    with pytest.raises(ConfigError, match=r"hidden=\[\] leaves no layer"):
        registry.make_one("networks", "mlp(hidden=[])")
    given = task(shape=(3, 8, 8))
    with pytest.raises(ConfigError, match=r"mlp is for tables, these data are images of 3 x 8 x 8; use convnet"):
        given.network(given)


@pytest.mark.parametrize("network", ["convnet", "resnet18", "alexnet", "vit_b_16", "mobilenet_v2"])
def test_a_network_for_images_refuses_tables(network):
    given = task(network)
    with pytest.raises(ConfigError, match=rf"{network} needs images, but these data are rows of 5 features; use mlp"):
        given.network(given)


@pytest.mark.parametrize(
    ("method", "name"),
    [("fedavg+rc+ga", "rc"), ("fedsb+am", "am"), ("ndag", "ndag"), ("feddag", "ndag"), ("fedgca", "fedgca")],
)
def test_a_method_for_images_refuses_tables(method, name):
    with pytest.raises(ConfigError, match=rf"{name} needs images, .* use a method without it"):
        build.networks(registry.build(method), task(), 0, "cpu")


@pytest.mark.parametrize(
    "method", ["fedavg", "scaffold+ga", "fedadg", "fedavg+sha", "fedgca(views=0, m=false, mg=false)"]
)
def test_other_methods_take_them(method):
    assert "model" in build.networks(registry.build(method), task(), 0, "cpu")
