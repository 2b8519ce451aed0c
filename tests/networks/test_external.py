"""Networks of timm and torchvision, where those are installed; and what is said where they are not."""

import importlib.util
import sys

import pytest
import torch
from safetensors.torch import save_file

from fedbeyond.classifier import Task, batchnorm_layers
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.networks import weights


def build(spelled, classes=7, shape=(3, 64, 64), seed=0):
    network = registry.make_one("networks", spelled)
    torch.manual_seed(seed)
    return network(Task(tuple(map(str, range(classes))), shape, network))


@pytest.fixture(scope="module")
def torchvision():
    """torchvision; beside a torch it was not built for, two of its operators must be declared before it is imported."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)  # what is declared goes with its library
        import torchvision
    return torchvision


KEPT = []


@pytest.fixture(scope="module")
def timm(torchvision):
    return pytest.importorskip("timm", reason="timm is not installed")


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_package_that_is_not_there_is_told_with_how_to_get_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"networks of {package} need .* pip install 'fedbeyond\[{package}\]'"):
        build(f"{package}:resnet18")
    with pytest.raises(ConfigError, match=rf"the name of a network, for example {package}:"):
        build(package)


def test_names_with_points_can_be_spelled():
    assert registry.parse("timm:resnet18.a1_in1k(weights=a.pth)")[0].preset == "resnet18.a1_in1k"


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "efficientnet_b0"])
def test_a_network_of_timm_has_features_maps_and_a_head(timm, name):
    net, x = build(f"timm:{name}").eval(), torch.rand(2, 3, 64, 64)
    maps, scores = net.maps_and_logits(x)
    assert net.provides == {"features", "maps", "pooled"}
    assert maps.ndim == 4 and maps.shape[1] == net.body.num_features and scores.shape == (2, 7)
    torch.testing.assert_close(net(x), scores)
    torch.testing.assert_close(net.features(x), net.body(weights.normalised(x)))


def test_a_network_of_timm_is_given_images_as_its_own_file_says(timm):
    net = build("timm:vit_tiny_patch16_224", shape=(3, 224, 224)).eval()
    x = 2 * torch.rand(1, 3, 224, 224) - 1
    torch.testing.assert_close(net.features(x), net.body(x))  # mean and std of 0.5: -1..1 as it is
    assert net.provides == {"features"}  # tokens are no maps


def test_a_network_that_cannot_take_the_images_is_told(timm):
    with pytest.raises(ConfigError, match=r"cannot take images of 3 x 32 x 32 .* size=224"):
        build("timm:vit_tiny_patch16_224", shape=(3, 32, 32))
    with pytest.raises(ConfigError, match="timm cannot create a network 'nope'"):
        build("timm:nope")
    with pytest.raises(ConfigError, match=r"timm:resnet18 needs images.*use mlp"):
        build("timm:resnet18", shape=(5,))


def test_a_file_of_timms_numbers_is_loaded(timm, tmp_path):
    given = timm.create_model("resnet18", num_classes=7).state_dict()
    save_file(given, tmp_path / "file.safetensors")
    net = build(f"timm:resnet18(weights='{tmp_path / 'file.safetensors'}')")
    assert torch.equal(net.body.conv1.weight, given["conv1.weight"]) and torch.equal(
        net.head.weight, given["fc.weight"]
    )


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "convnext_tiny", "densenet121", "swin_t"])
def test_a_network_of_torchvision_is_its_own_but_for_the_last_layer(torchvision, name, tmp_path):
    torch.manual_seed(1)
    whole = torchvision.models.get_model(name, num_classes=7).eval()
    save_file(whole.state_dict(), tmp_path / "file.safetensors")
    net = build(f"torchvision:{name}(weights='{tmp_path / 'file.safetensors'}')").eval()
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(net(x), whole(weights.normalised(x)))
    assert net.provides == {"features"}


@pytest.mark.filterwarnings("ignore:The default weight initialization")
def test_a_network_of_torchvision_that_cannot_be_taken_apart_is_refused(torchvision):
    for name, reason in (("squeezenet1_0", "does not end in a linear layer"), ("googlenet", "more than one output")):
        with pytest.raises(ConfigError, match=reason):
            build(f"torchvision:{name}")


def test_their_plans_need_no_numbers(timm):
    with torch.device("meta"):
        assert build("timm:resnet18").head.weight.is_meta and build("torchvision:resnet18").head.weight.is_meta


def test_their_batchnorm_is_found_by_its_type(timm):
    names = [name for name, _ in batchnorm_layers(build("timm:efficientnet_b0"))]
    assert "body.bn1" in names and len(names) > 20
