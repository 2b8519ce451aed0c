"""The backbones: torchvision's architectures, name by name, and files of numbers for them."""

import pytest
import torch
from safetensors.torch import save_file

from fedbeyond.classifier import Task, read
from fedbeyond.errors import ConfigError, MissingError
from fedbeyond.experiment import registry
from fedbeyond.networks import _vit, weights

COUNTS = {  # parameters and entries of the state_dict with 1,000 classes, as torchvision publishes them
    "resnet18": (11_689_512, 122),
    "resnet34": (21_797_672, 218),
    "resnet50": (25_557_032, 320),
    "resnet101": (44_549_160, 626),
    "resnet152": (60_192_808, 932),
    "alexnet": (61_100_840, 16),
    "vit_b_16": (86_567_656, 152),
    "vit_b_32": (88_224_232, 152),
    "mobilenet_v2": (3_504_872, 314),
}
SOME = {  # a few of torchvision's names and shapes
    "resnet18": {"conv1.weight": (64, 3, 7, 7), "layer4.1.conv2.weight": (512, 512, 3, 3), "bn1.running_var": (64,)},
    "resnet50": {"layer1.0.downsample.0.weight": (256, 64, 1, 1), "layer4.2.bn3.bias": (2048,)},
    "alexnet": {"features.10.bias": (256,), "classifier.1.weight": (4096, 9216), "classifier.4.bias": (4096,)},
    "vit_b_16": {
        "class_token": (1, 1, 768),
        "conv_proj.weight": (768, 3, 16, 16),
        "encoder.pos_embedding": (1, 197, 768),
        "encoder.layers.encoder_layer_11.self_attention.in_proj_weight": (2304, 768),
        "encoder.layers.encoder_layer_0.self_attention.out_proj.bias": (768,),
        "encoder.layers.encoder_layer_0.mlp.0.weight": (3072, 768),
        "encoder.layers.encoder_layer_0.mlp.3.weight": (768, 3072),
        "encoder.ln.weight": (768,),
    },
    "vit_b_32": {"encoder.pos_embedding": (1, 50, 768)},
    "mobilenet_v2": {
        "features.0.0.weight": (32, 3, 3, 3),
        "features.1.conv.0.0.weight": (32, 1, 3, 3),
        "features.1.conv.1.weight": (16, 32, 1, 1),
        "features.17.conv.3.running_mean": (320,),
        "features.18.1.weight": (1280,),
    },
}


def build(spelled, classes=7, shape=(3, 32, 32), seed=0):
    network = registry.make_one("networks", spelled)
    torch.manual_seed(seed)
    return network(Task(tuple(map(str, range(classes))), shape, network))


def test_a_convnet_that_pools_before_its_relus_has_the_outputs_and_slopes_of_one_that_pools_behind_them():
    net = build("convnet(width=4)", shape=(3, 20, 20)).train()
    layers = [net.body[i : i + 4] for i in (0, 4, 8)]
    usual = torch.nn.Sequential(*(part for c, n, p, r in layers for part in (c, n, r, p)), *net.body[12:])
    x, found = torch.randn(6, 3, 20, 20), []
    for body in (net.body, usual):
        net.zero_grad()
        maps = body(x)
        maps.square().sum().backward()
        found.append([maps.detach(), *(param.grad.clone() for param in body.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.fixture
def tiny(monkeypatch):
    """A vision transformer of two layers, twelve numbers wide."""
    for name, value in {"WIDTH": 12, "DEPTH": 2, "HEADS": 3, "INSIDE": 24}.items():
        monkeypatch.setattr(_vit, name, value)


@pytest.mark.parametrize("name", COUNTS)
def test_a_backbone_has_torchvisions_parameters_and_names(name):
    with torch.device("meta"):
        net = build(name, 1000, (3, 224, 224))
    assert sum(param.numel() for param in net.parameters()) == COUNTS[name][0]
    own = net.body.state_dict()
    assert len(own) + 2 == COUNTS[name][1]  # the head's two are apart
    assert {key: tuple(own[key].shape) for key in SOME.get(name, {})} == SOME.get(name, {})
    assert set(dict(net.named_children())["head"].state_dict()) == {"weight", "bias"}
    assert read(net)["buffers"].keys() == {f"body.{key}" for key in own if "running" in key or "tracked" in key}


def test_a_bottleneck_takes_its_stride_in_the_3x3_convolution():
    with torch.device("meta"):
        block = build("resnet50").body.layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


def test_images_are_shifted_and_scaled_as_imagenets():
    black, white = weights.normalised(torch.stack((-torch.ones(3, 1, 1), torch.ones(3, 1, 1)))).flatten(1)
    assert black.tolist() == pytest.approx([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], rel=1e-5)
    assert white.tolist() == pytest.approx([0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225], rel=1e-5)


@pytest.mark.parametrize("size", [32, 96])
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2"])
def test_the_head_sees_the_average_of_the_maps(name, size):
    net, x = build(name, shape=(3, size, size)).eval(), torch.rand(2, 3, size, size) * 2 - 1
    maps = net.maps(x)
    assert maps.shape == (2, net.head.in_features, size // 32, size // 32)
    torch.testing.assert_close(net.features(x), maps.mean((2, 3)))
    torch.testing.assert_close(net(x), net.head(maps.mean((2, 3))))
    assert torch.equal(net(x), net(x)) and net(x).shape == (2, 7)


def test_alexnets_head_sees_4096_numbers_of_images_of_any_size():
    net = build("alexnet", shape=(3, 96, 96)).eval()
    for size, places in ((63, 1), (96, 2)):
        x = torch.rand(2, 3, size, size)
        assert net.maps(x).shape == (2, 256, places, places) and net.features(x).shape == (2, 4096)
        assert torch.equal(net(x), net.head(net.features(x)))
    net.train()
    assert (net.features(x) == 0).float().mean() < 0.9 and not torch.equal(net.features(x), net.features(x))
    with pytest.raises(ConfigError, match="alexnet needs images of at least 63 x 63 pixels, these have 32 x 32"):
        build("alexnet")


@pytest.mark.parametrize("spelled", ["resnet18", "mobilenet_v2", "vit_b_16"])
def test_gradients_reach_every_parameter(spelled, tiny):
    net = build(spelled, shape=(3, 64, 64))
    torch.nn.init.normal_(net.head.weight)  # a transformer's is zero at first, and lets nothing through
    net(torch.rand(2, 3, 64, 64)).square().sum().backward()
    assert all(param.grad is not None and param.grad.isfinite().all() for param in net.parameters())
    assert all(param.grad.any() for name, param in net.named_parameters() if name.endswith("weight"))


@pytest.mark.parametrize("spelled", ["resnet18", "mobilenet_v2", "vit_b_16"])
def test_fresh_numbers_depend_on_the_seed_alone(spelled, tiny):
    one, same, other = (build(spelled, seed=seed).body.state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_a_transformers_maps_are_the_patches_at_their_places(tiny, monkeypatch):
    monkeypatch.setattr(_vit, "DEPTH", 0)
    net, x = build("vit_b_16", shape=(3, 32, 48)).eval(), torch.rand(1, 3, 32, 48)
    before = net.maps(x)
    x[:, :, 16:, 32:] = 0  # the patch in the second row, third column
    changed = (net.maps(x) != before).any(1)[0]
    assert before.shape == (1, 12, 2, 3) and changed.tolist() == [[False] * 3, [False, False, True]]


def test_a_transformers_head_sees_the_class_token(tiny):
    net, x = build("vit_b_32", shape=(3, 64, 64)).eval(), torch.rand(2, 3, 64, 64)
    torch.nn.init.normal_(net.head.weight)
    tokens = net.body(weights.normalised(x))
    assert tokens.shape == (2, 5, 12) and torch.equal(net.features(x), tokens[:, 0])
    assert torch.equal(net(x), net.head(net.features(x)))
    with torch.no_grad():  # where torch may take a shorter way through the attention
        torch.testing.assert_close(net(x), net.head(tokens[:, 0]))


def test_a_transformer_refuses_images_that_are_not_whole_patches(tiny):
    with pytest.raises(ConfigError, match=r"vit_b_32 needs height and width divisible by 32, .* have 48 x 64"):
        build("vit_b_32", shape=(3, 48, 64))


def torchvisions(net, head):
    """A network's numbers under torchvision's names."""
    return net.body.state_dict() | {f"{head}.{part}": value for part, value in net.head.state_dict().items()}


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_a_file_of_numbers_is_loaded_with_its_head_if_the_classes_are_as_many(ending, tmp_path):
    source, file = build("mobilenet_v2", classes=5, seed=1), tmp_path / f"file.{ending}"
    given = torchvisions(source, "classifier.1")
    torch.save(given, file) if ending == "pth" else save_file(given, file)
    for classes in (5, 7):
        net = build(f"mobilenet_v2(weights='{file}')", classes)
        assert all(torch.equal(value, given[key]) for key, value in net.body.state_dict().items())
        assert torch.equal(net.head.weight, source.head.weight) == (classes == 5)
        assert torch.equal(net.head.weight, build("mobilenet_v2", classes).head.weight) == (classes == 7)


def test_files_older_than_the_counters_of_batches_are_loaded(tmp_path):
    given = torchvisions(build("resnet18", seed=1), "fc")
    torch.save({key: value for key, value in given.items() if "num_batches" not in key}, tmp_path / "old.pth")
    net = build(f"resnet18(weights='{tmp_path / 'old.pth'}')")
    assert torch.equal(net.body.layer4[1].conv2.weight, given["layer4.1.conv2.weight"])
    assert torch.equal(net.head.weight, given["fc.weight"])


def test_a_transformers_published_names_are_understood(tiny, tmp_path):
    source = build("vit_b_16", seed=1)
    given = torchvisions(source, "heads.head")
    published = {key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): given[key] for key in given}
    assert published.keys() != given.keys()
    for names in (given, published):
        torch.save(names, tmp_path / "vit.pth")
        net = build(f"vit_b_16(weights='{tmp_path / 'vit.pth'}')")
        assert all(torch.equal(value, given[key]) for key, value in net.body.state_dict().items())


def test_a_transformer_for_another_size_says_which(tiny, tmp_path):
    torch.save(torchvisions(build("vit_b_16", shape=(3, 64, 64)), "heads.head"), tmp_path / "vit.pth")
    with pytest.raises(ConfigError, match=r"for vit_b_16 on images of 64 x 64 pixels, these have 32 x 32; .* size=64"):
        build(f"vit_b_16(weights='{tmp_path / 'vit.pth'}')")


class Thing:
    """Something that is no tensor."""


def test_what_is_wrong_with_a_file_of_numbers_is_said(tmp_path):
    file = tmp_path / "file.pth"

    def complaint(content):
        torch.save(content, file)
        with pytest.raises(ConfigError) as found:
            build(f"mobilenet_v2(weights='{file}')")
        return str(found.value)

    with pytest.raises(MissingError, match=r"none\.pth: no such file; give a torchvision"):
        build("mobilenet_v2(weights='none.pth')")
    given = build("mobilenet_v2").body.state_dict()
    odd = {key.replace("features.18", "last"): value for key, value in given.items()}
    told = complaint(odd)
    assert "the file lacks features.18.0.weight, features.18.1.bias, features.18.1.running_mean and 2 more" in told
    assert "has unknown last.0.weight, last.1.bias, last.1.num_batches_tracked and 3 more" in told
    wrong = given | {"features.0.0.weight": torch.zeros(32, 1, 3, 3)}
    assert "wrong shapes: features.0.0.weight (32, 1, 3, 3) instead of (32, 3, 3, 3);" in complaint(wrong)
    assert "not a dict of tensors" in complaint({"state_dict": given})
    assert "cannot be read" in complaint(Thing())  # would have to be unpickled
    for ending in ("pth", "safetensors"):
        (tmp_path / f"text.{ending}").write_text("no tensors")
        with pytest.raises(ConfigError, match="cannot be read"):
            weights.read(str(tmp_path / f"text.{ending}"))


def test_grey_images_are_refused():
    with pytest.raises(ConfigError, match="resnet18 needs images of 3 channels, these have 1"):
        build("resnet18", shape=(1, 32, 32))


def test_a_file_of_weights_is_read_once_for_all_networks_of_a_method(tmp_path, monkeypatch):
    from fedbeyond.experiment import build
    from fedbeyond.networks import weights

    first = registry.make_one("networks", "resnet18")(Task(("a", "b"), (3, 32, 32), None)).body.state_dict()
    torch.save(first, tmp_path / "resnet18.pth")
    reads, load = [], torch.load
    monkeypatch.setattr(weights.torch, "load", lambda *given, **options: (reads.append(1), load(*given, **options))[1])
    network = registry.make_one("networks", f"resnet18(weights={tmp_path / 'resnet18.pth'})")
    method = registry.build("fedgca")
    nets = build.networks(method, Task(("a", "b"), (3, 32, 32), network), 0, "cpu")
    assert len(nets) > 1 and reads == [1] and weights._read.cache_info().currsize == 0
