"""A part of a network is trained: the rest is constant and in no tree, and the whole can be put together again."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import nn

from fedbeyond import tree
from fedbeyond.classifier import Task, read, shapes_of, write
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.experiment.build import networks
from fedbeyond.networks.external import Torchvision
from fedbeyond.networks.frozen import Frozen, frozen_digest, frozen_part, install
from fedbeyond.networks.lora import merged
from fedbeyond.networks.own import classifier, factory_of
from fedbeyond.networks.part import train_part
from fedbeyond.testing import toy

CLASSES = tuple("abcdefg")


def built(part, network="convnet(width=2)", method="fedavg", shape=(3, 32, 32), device="cpu", seed=0):
    """The networks of a method, of which a part is trained."""
    make = registry.make_one("networks", network) if isinstance(network, str) else network
    trained = train_part(registry.build(method), registry.make_one("parts", part)._replace(cache=False))
    return networks(trained, Task(CLASSES, shape, make, 3), seed, device)


def params(part, network="convnet(width=2)", **given):
    return set(shapes_of(built(part, network, **given)["model"])["params"])


HEAD = {"head.weight", "head.bias"}


def test_a_tree_has_what_is_trained_and_nothing_else():
    assert params("head") == HEAD
    assert shapes_of(built("head")["model"])["buffers"] == {}
    assert params("norm") == HEAD | {f"body.{layer}.{key}" for layer in (1, 5, 9, 13) for key in ("weight", "bias")}
    last = built("last")["model"]
    assert set(read(last)["params"]) == HEAD | {"body.12.weight", "body.13.weight", "body.13.bias"}
    assert {name.rpartition(".")[0] for name in read(last)["buffers"]} == {"body.13"}
    assert params("lora(targets=conv)") == HEAD | {
        f"body.{layer}.parametrizations.weight.0.b.weight" for layer in (0, 4, 8, 12)
    }


def test_training_a_part_moves_that_part_alone():
    net = built("last")["model"]
    before, frozen = read(net), {name: tensor.clone() for name, tensor in frozen_part(net).items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net.train()(torch.rand(8, 3, 32, 32)).square().mean().backward()
        optimizer.step()
    assert not any(torch.equal(before["params"][name], after) for name, after in read(net)["params"].items())
    assert all(torch.equal(frozen[name], tensor) for name, tensor in frozen_part(net).items())


@pytest.mark.parametrize("part", ["head", "lora(targets=conv)"])
def test_a_frozen_batchnorm_stays_in_evaluation_mode(part):
    net = built(part)["model"].train()
    assert not net.body[1].training and net.training
    x = torch.rand(6, 3, 32, 32)
    assert torch.equal(net(x)[:2], net(x[:2])) or torch.allclose(net(x)[:2], net(x[:2]), atol=1e-6)
    trained = built("norm")["model"].train()  # whereas one that is trained depends on its batch
    assert not torch.allclose(trained(x)[:2], trained(x[:2]), atol=1e-3)


def test_dropout_is_off_in_a_frozen_block_and_on_before_a_head():
    body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    net = built("head", classifier(body), shape=(4,))["model"].train()
    assert not net.body[1].training
    mobile = built("head", "mobilenet_v2")["model"].train()
    assert mobile.dropout.training and not mobile.body.training


def test_networks_of_a_method_share_what_is_frozen():
    nets = built("last", method="moon")
    model, guide = frozen_part(nets["model"]), frozen_part(nets["guide"])
    assert model.keys() == guide.keys() and len(model) > 5
    assert all(model[name].data_ptr() == guide[name].data_ptr() for name in model)
    assert nets["projection"][0].weight.requires_grad and not frozen_part(nets["projection"])
    x = torch.rand(2, 3, 32, 32)
    write(nets["guide"], read(nets["model"]))
    assert torch.equal(nets["guide"].eval()(x), nets["model"].eval()(x))


def test_what_is_frozen_follows_its_network():
    net = built("head")["model"]
    assert net.body[0].weight.is_contiguous(memory_format=torch.channels_last)
    copied = deepcopy(net).double()
    assert copied.body[0].weight.dtype == torch.float64 and net.body[0].weight.dtype == torch.float32
    assert isinstance(copied.body[0], nn.Conv2d) and isinstance(copied.body[0], Frozen)
    assert copied(torch.rand(2, 3, 32, 32).double()).dtype == torch.float64
    assert built("head", device="meta")["model"].body[0].weight.is_meta


def test_the_initial_numbers_are_those_of_the_whole_network():
    for part in ("head", "last", "norm", "lora(targets=conv)"):
        whole, ours = read(built("all")["model"]), merged(built(part)["model"])
        assert tree.digest(whole) == tree.digest(ours), part  # LoRA starts with a correction of zero


def test_a_shared_parameter_is_trained_if_one_of_its_layers_is():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(7, 7), nn.Linear(7, 7)
            self.first.weight = self.last.weight

        def forward(self, x):
            return self.last(torch.relu(self.first(x)))

    net = built("head", factory_of(Tied), shape=(7,))["model"]
    assert set(frozen_part(net)) == {"first.bias"}
    assert net.first.weight is net.last.weight


# blocks


@pytest.mark.parametrize(
    ("network", "n", "trained"),
    [
        ("resnet18", 1, {"body.layer4"}),
        ("resnet18", 2, {"body.layer3", "body.layer4"}),
        ("mobilenet_v2", 1, {f"body.features.{index}" for index in range(14, 19)}),
        ("alexnet", 1, {"body.features.8", "body.features.10", "body.classifier.1", "body.classifier.4"}),
        ("vit_b_16", 1, {"body.encoder.layers.encoder_layer_11", "body.encoder.ln"}),
    ],
)
def test_last_blocks_begin_after_a_stage(network, n, trained):
    names = params(f"last(n={n})", network, shape=(3, 64, 64), device="meta") - HEAD
    assert {next((block for block in trained if name.startswith(f"{block}.")), name) for name in names} == trained


def test_blocks_of_a_perceptron_are_its_hidden_layers():
    assert params("last", "mlp(hidden=[4, 5, 6])", shape=(3,)) == HEAD | {"body.4.weight", "body.4.bias"}
    assert params("last(n=2)", "mlp(hidden=[4, 5, 6], dropout=0.1)", shape=(3,)) > HEAD | {"body.3.weight"}


def test_blocks_follow_the_order_of_calls():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.third, self.second, self.first = (nn.Conv2d(c, d, 1) for c, d in ((4, 5), (2, 4), (3, 2)))
            self.scale = nn.Parameter(torch.ones(5, 1, 1))

        def forward(self, x):
            return self.scale * self.third(self.second(self.first(x)))

    make = classifier(Backwards, stages=["first", "second"])
    assert params("last", make) == HEAD | {"body.third.weight", "body.third.bias"}
    assert params("last(n=2)", make) == params("last", make) | {"body.second.weight", "body.second.bias"}
    with pytest.raises(ConfigError, match=r"Split has 3 blocks; give n from 1 to 2, or train.part = 'all'"):
        built("last(n=3)", make)


@pytest.mark.parametrize("blocks", ["features", "encoder.layers", "layer"])
def test_blocks_of_torchvision_are_found_where_it_has_them(blocks):
    body = nn.Module()
    layers = [nn.Linear(width, out) for width, out in pairwise((3, 4, 5, 6, 7))]
    if blocks == "layer":
        for number, layer in enumerate(layers, 1):
            body.add_module(f"layer{number}", layer)
    else:
        *outer, inner = blocks.split(".")
        holder = body
        for name in outer:
            holder.add_module(name, nn.Module())
            holder = holder.get_submodule(name)
        holder.add_module(inner, nn.Sequential(*layers))
    names = [name for name, layer in body.named_modules() if layer in layers[:-1]]
    assert Torchvision(body, 7, 2).cuts == tuple(f"body.{name}" for name in names)


@pytest.mark.parametrize(
    ("part", "network", "message"),
    [
        ("last", toy.logits_only, "does not say where its blocks end.*stages=.*head, norm or lora"),
        ("last(n=4)", "resnet18", "Residual has 4 blocks; give n from 1 to 3"),
        (
            "lora",
            "resnet18",
            r"lora\(targets=attention\): Residual has no such layers before its head; give targets=conv",
        ),
        ("head", lambda task: nn.Sequential(nn.Flatten(), nn.Linear(3072, 7), nn.LayerNorm(7)), None),
        ("head", lambda task: nn.Sequential(nn.Conv2d(3, 7, 1), nn.LazyConv2d(14, 1), Halved()), "no head to train"),
    ],
)
def test_a_part_that_a_network_does_not_have_is_refused(part, network, message):
    make = network if isinstance(network, str) else factory_of(network)
    if message is None:  # a layer after the head does not make it another one
        assert set(shapes_of(built(part, make)["model"])["params"]) == {"1.weight", "1.bias"}
        return
    with pytest.raises(ConfigError, match=message):
        built(part, make, device="meta" if isinstance(network, str) else "cpu")


class Halved(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))[:, :7]


@pytest.mark.parametrize("name", ["moon", "dann", "coral", "mmd"])
def test_a_method_that_acts_on_features_is_refused_if_they_are_frozen(name):
    with pytest.raises(ConfigError, match=f"{name} acts on features, which train.part freezes"):
        built("head", method=name)
    built("last", method=name)


def test_a_method_that_wraps_a_network_refuses_constants_that_it_would_lose():
    class Rooted(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.last = nn.Parameter(torch.ones(())), nn.Linear(3, 7)

        def forward(self, x):
            return self.last(self.scale * x.mean((2, 3)))

    assert set(frozen_part(built("head", factory_of(Rooted))["model"])) == {"scale"}
    with pytest.raises(ConfigError, match="put them into a submodule"):
        built("head", factory_of(Rooted), method="harmofl")


# LoRA


def test_a_weight_is_corrected_by_the_product_of_two_factors():
    net = built("lora(targets=conv, rank=2, alpha=6, exact=false)")["model"]
    layer = net.body[4]
    low = layer.parametrizations.weight[0]
    assert low.a.weight.shape == (2, 2 * 9) and low.b.weight.shape == (4, 2) and not low.b.weight.any()
    original, a, b = layer.parametrizations.weight.original, low.a.weight, torch.rand(4, 2)
    with torch.no_grad():
        low.b.weight.copy_(b)
        assert torch.allclose(layer.weight, original + (6 / 2 * b @ a).view(4, 2, 3, 3))


@pytest.mark.parametrize("part", ["lora(targets=conv, rank=3)", "norm", "last", "head"])
def test_the_merged_model_gives_the_outputs_of_the_trained_one_to_the_bit(part):
    net, whole = built(part)["model"], built("all", seed=1)["model"]
    with torch.no_grad():
        for param in net.parameters():
            param.add_(0.1 * torch.randn(param.shape))
    x = torch.rand(4, 3, 32, 32)
    assert torch.equal(write(whole, merged(net)).eval()(x), net.eval()(x))


@pytest.mark.parametrize("exact", ["true", "false"])
def test_the_mean_of_corrections_is_the_correction_of_the_mean_if_one_factor_is_frozen(exact):
    net = built(f"lora(targets=conv, exact={exact})")["model"]

    def correction(state):
        write(net, state)
        return net.body[4].weight.detach() - net.body[4].parametrizations.weight.original

    states = [tree.map(lambda leaf: leaf + torch.randn(leaf.shape), read(net)) for _ in range(2)]
    mean_of = torch.stack([correction(state) for state in states]).mean(0)
    assert torch.allclose(correction(tree.mean(states, [1, 1])), mean_of, atol=1e-5) == (exact == "true")


class Attending(nn.Module):
    """A block with the attention of torch, and one that is named as timm names it."""

    def __init__(self):
        super().__init__()
        self.mixing = nn.MultiheadAttention(8, 2, batch_first=True)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(8, 24), "proj": nn.Linear(8, 8)})
        self.mlp = nn.Linear(8, 8)

    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        x = x + self.mixing(x, x, x, need_weights=False)[0]
        q, k, v = self.attn["qkv"](x).chunk(3, -1)
        x = x + self.attn["proj"]((q @ k.transpose(1, 2)).softmax(-1) @ v)
        return self.mlp(x).mean(1)


def test_fused_projections_of_attention_are_corrected():
    make, fused = classifier(Attending), ["mixing.in_proj_weight", "mixing.out_proj.weight", "attn.qkv.weight"]
    net = built("lora(rank=2)", make, shape=(8, 4, 4))["model"]
    corrected = {name.partition(".parametrizations.")[0] for name in read(net)["params"]} - HEAD
    assert corrected == {"body.mixing", "body.mixing.out_proj", "body.attn.qkv", "body.attn.proj"}
    linear = built("lora(targets=linear)", make, shape=(8, 4, 4))["model"]
    assert "body.mlp.parametrizations.weight.0.b.weight" in read(linear)["params"]
    x = torch.rand(3, 8, 4, 4)
    before = net.eval()(x)
    with torch.no_grad():
        for name, param in net.named_parameters():
            param.add_(0.3 * torch.randn(param.shape)) if "parametrizations" in name else None
    assert not torch.allclose(net(x), before)
    whole = write(built("all", make, shape=(8, 4, 4), seed=1)["model"], merged(net))
    assert {f"body.{name}" for name in fused} < set(read(whole)["params"])
    with torch.no_grad():
        # torch's own attention computes a plain weight by another function: equal up to rounding
        assert torch.allclose(whole.eval()(x), net.eval()(x), atol=1e-6)


# the frozen part has a name


def test_a_digest_names_the_frozen_part():
    net, same, other = (built("last", seed=seed)["model"] for seed in (0, 0, 1))
    assert frozen_digest(net) == frozen_digest(same) != frozen_digest(other) and len(frozen_digest(net)) == 64
    assert frozen_digest(built("all")["model"]) == ""
    with torch.no_grad():
        net.head.weight.add_(1)
    assert frozen_digest(net) == frozen_digest(same)
    install(other, frozen_part(net))
    assert frozen_digest(other) == frozen_digest(net)
    with pytest.raises(ValueError, match="names, shapes or types differ"):
        install(other, frozen_part(built("head")["model"]))
