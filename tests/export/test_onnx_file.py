"""A model as ONNX says what torch says, asked with the lines that the docs give."""

import csv
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import Image
from torch import nn

from fedbeyond.classifier import Classifier, Task
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry, runner
from fedbeyond.experiment.config import parse
from fedbeyond.export import onnx_file
from fedbeyond.export.export import CARD, Exported, digest, export
from fedbeyond.export.predict import predict
from fedbeyond.networks import _vit
from fedbeyond.networks._mobilenet import Inverted
from fedbeyond.networks._resnet import Basic
from support.paths import ROOT

DOCS = ROOT / "docs"
CLASSES = ("a", "b", "c")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    settings = {"data": "styles(share=0.05)", "network": "convnet(width=4)", "train": {"rounds": 1}}
    config = parse({"method": "fedavg", "target": "sketch", **settings})
    list(runner.run(runner.prepare(config), folder))
    return folder, config


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    return export(run[0], tmp_path_factory.mktemp("exported") / "model", onnx=True)


def test_the_lines_in_the_docs_print_without_torch_what_predict_writes(run, model, tmp_path):
    pictures = tmp_path / "scans" / "deep"
    pictures.mkdir(parents=True)
    images = runner.prepare(run[1]).unseen["sketch"][0][:5]
    for mode, image_pixels in zip(("RGB", "L", "RGBA", "P", "1"), images, strict=True):
        image = Image.fromarray(image_pixels.permute(1, 2, 0).numpy()).resize((45, 39))
        image.convert(mode).save(pictures / f"{mode}.png")
    for name, mode in (("photo.jpg", "RGB"), ("GREY.JPEG", "L"), ("print.jpeg", "CMYK")):
        image.convert(mode).save(pictures / name, "jpeg")
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "model.md").read_text(), re.S)
    arrays = """
for name in ("RGB.png", "L.png", "photo.jpg", "GREY.JPEG"):
    array = numpy.asarray(Image.open(folder / "deep" / name))
    assert array.ndim == (2 if name in ("L.png", "GREY.JPEG") else 3)
    writer.writerow([f"array of deep/{name}", *probabilities(array)])
assert not {"torch", "fedbeyond"} & sys.modules.keys()
"""
    (tmp_path / "ask.py").write_text(code + arrays)
    call = [sys.executable, str(tmp_path / "ask.py"), str(model), str(tmp_path / "scans")]
    printed = subprocess.run(call, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    predict(model, [tmp_path / "scans"], tmp_path / "p.csv")
    found = list(csv.DictReader(printed.stdout.splitlines()))
    want = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    by_file = {row["file"]: row for row in want}
    want += [by_file[row["file"].removeprefix("array of ")] for row in found[8:]]
    assert [row["file"] for row in found[:8]] == [*by_file] and len(found) == len(want) == 12
    names = Exported(model).card["classes"]
    for one, other in zip(found, want, strict=True):
        assert [float(one[name]) for name in names] == pytest.approx([float(other[name]) for name in names], abs=1e-4)
    assert len({row["dog"] for row in found}) > 1


def test_the_card_says_what_goes_in_what_comes_out_and_how_it_was_tried(run, model):
    import onnx

    card = json.loads((model / CARD).read_text())
    told = card["onnx"]
    assert told["input"] == "'images', bytes (uint8), any number x 32 x 32 x 3" and told["opset"] == 18
    assert told["output"].startswith("'probabilities', float32, any number x 7")
    vals = runner.prepare(run[1]).validation.values()
    assert told["tested_on"] == sum(min(32, len(labels)) for _, labels in vals)
    assert 0 <= told["largest_difference"] <= 1e-4 and set(told["versions"]) == {"torch", *onnx_file.PACKAGES}
    held = onnx.load(model / "model.onnx")
    assert held.opset_import[0].version == 18
    assert json.loads({entry.key: entry.value for entry in held.metadata_props}["classes"]) == card["classes"]
    assert card["files"] == {name: digest((model / name).read_bytes()) for name in ("model.safetensors", "model.onnx")}


def test_an_export_without_it_leaves_no_older_file_beside_its_card(run, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / onnx_file.FILE).write_bytes(b"of another run")
    out = export(run[0], tmp_path / "model")
    assert sorted(path.name for path in out.iterdir()) == ["model.json", "model.safetensors"]


def mobile(task):
    """MobileNetV2's blocks, without its length."""
    return Classifier(nn.Sequential(nn.Conv2d(3, 8, 3), Inverted(8, 8, 1, 6), Inverted(8, 12, 2, 6)), 12, 3)


def residual(task):
    """ResNet-18's blocks, without their number."""
    return Classifier(nn.Sequential(nn.Conv2d(3, 8, 3), Basic(8, 8, 1), Basic(8, 12, 2)), 12, 3)


@pytest.mark.parametrize(
    ("network", "shape"),
    [("mlp", (13,)), ("vit_b_32", (3, 64, 64)), (residual, (3, 16, 16)), (mobile, (3, 16, 16))],
    ids=["mlp", "vit", "resnet", "mobilenet"],
)
def test_networks_say_as_onnx_what_they_say_in_torch(network, shape, monkeypatch):
    monkeypatch.setattr(_vit, "WIDTH", 24)
    monkeypatch.setattr(_vit, "DEPTH", 2)
    torch.manual_seed(0)
    make = registry.make_one("networks", network) if isinstance(network, str) else network
    net = make(Task(CLASSES, shape, make))
    x = torch.randint(256, (6, *shape), dtype=torch.uint8) if len(shape) == 3 else torch.randn(6, *shape)
    ready = x / 127.5 - 1 if len(shape) == 3 else x
    nn.init.normal_(net.head.weight)
    net.train()(ready)  # running statistics that are not those of a fresh network
    net.eval()
    with torch.no_grad():  # scores that differ, so that equal probabilities mean something
        spread, mean = torch.std_mean(net(ready), 0)
        net.head.weight /= spread[:, None]
        net.head.bias.copy_((net.head.bias - mean) / spread)
    given = onnx_file.to_pixel_rows(x)
    card = {"network": "n", "classes": CLASSES, "temperature": 1.5}
    content, told = onnx_file.to_onnx(net, card, [x[:4], x[4:]])
    assert told["tested_on"] == 6 and told["largest_difference"] <= 1e-4
    with torch.no_grad():
        assert torch.allclose(onnx_file.Calibrated(net, 1.5)(given), (net(ready) / 1.5).softmax(1), atol=1e-6)
        net.head.bias += torch.tensor([1.0, 0.0, 0.0])
    assert onnx_file.difference(content, onnx_file.Calibrated(net, 1.5), given) > 0.05


def test_a_file_that_says_something_else_is_not_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "convert", lambda *_: b"")
    monkeypatch.setattr(onnx_file, "difference", lambda *_: float("nan"))
    with pytest.raises(
        ConfigError, match=r"convnet\(width=4\) as ONNX .* differ from torch's by nan, .* without --onnx"
    ):
        export(run[0], tmp_path / "model", onnx=True)
    assert not (tmp_path / "model").exists()


def test_a_network_that_cannot_be_written_is_named():
    class Odd(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ConfigError, match=r"odd cannot be written as ONNX \(.*\); export without --onnx"):
        onnx_file.convert(Odd().eval(), torch.randn(2, 3), {"network": "odd", "classes": CLASSES})


def test_missing_packages_are_told_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(ConfigError, match=r"--onnx needs no_such_package; pip install 'fedbeyond\[onnx\]'"):
        export(tmp_path / "nowhere", tmp_path / "model", onnx=True)


def test_a_card_of_a_version_with_other_options_of_training_can_be_used(model, tmp_path):
    shutil.copytree(model, tmp_path / "model")
    card = json.loads((tmp_path / "model" / CARD).read_text())
    card["config"]["train"]["an_option_of_tomorrow"] = 1
    (tmp_path / "model" / CARD).write_text(json.dumps(card))
    assert Exported(tmp_path / "model").card["classes"]
