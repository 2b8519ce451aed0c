"""A model leaves as files and says at another site what it said at home."""

import csv
import json

import pytest
import torch
from PIL import Image

from fedbeyond import checkpoint, cli, experiment
from fedbeyond.config import parse
from fedbeyond.errors import ConfigError, StorageError
from fedbeyond.evaluate import scores
from fedbeyond.export import CARD, Exported, export, temperature
from fedbeyond.nets import write
from fedbeyond.predict import predict


@pytest.fixture(scope="module", params=["fedavg", "harmofl", "fedsr"])
def run(request, tmp_path_factory):
    """A short run of methods whose model is the network itself, or one around it."""
    folder = tmp_path_factory.mktemp("run")
    config = parse(
        {
            "method": request.param,
            "target": "sketch",
            "data": "styles(share=0.05)",
            "network": "convnet(width=4)",
            "train": {"rounds": 2},
        }
    )
    list(experiment.run(experiment.prepare(config), folder))
    return folder, config


def test_an_exported_model_says_what_it_said_in_the_run(run, tmp_path):
    folder, config = run
    out = export(folder, tmp_path / "model", select="last")
    asked = Exported(out)
    setup = experiment.prepare(config)
    state = checkpoint.load(folder / "checkpoint.safetensors")[0]["state"]["server"]
    net = write(setup.nets["model"], state["model"])
    images = setup.tests["sketch"][0][:20]
    want = (scores(net, images) / asked.card["temperature"]).softmax(1)
    assert torch.allclose(asked.chances(images), want, atol=1e-6)
    assert asked.card["classes"][0] == "dog" and asked.card["shape"] == [3, 32, 32] and asked.card["unseen"] == "sketch"
    assert sum(asked.card["trained_on"].values()) == sum(site.size for site in setup.federation.sites.values())
    line = experiment.lines(folder)[-1]
    assert asked.card["scores"]["sketch"]["test"]["accuracy"] == line["scores"]["sketch"]["test"]["accuracy"]
    assert json.loads((out / CARD).read_text())["round"] == 2


def test_the_best_round_is_exported_unless_another_is_chosen(run, tmp_path):
    folder, _ = run
    out = export(folder, tmp_path / "model")
    best = checkpoint.load(folder / "best.safetensors")[0]["params"]
    held = checkpoint.load(out / "model.safetensors")[0]["params"]
    assert all(torch.equal(best[name], held[name]) for name in best)
    with pytest.raises(ConfigError, match="source-validation or last"):
        export(folder, tmp_path / "model", select="oracle")


def test_images_in_folders_are_predicted_and_broken_ones_named(run, tmp_path, monkeypatch, capsys):
    folder, config = run
    images = tmp_path / "scans" / "deep"
    images.mkdir(parents=True)
    x = experiment.prepare(config).tests["sketch"][0][:3]
    for place, pixels in enumerate(x):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(images / f"{place}.png")
    (images / "torn.png").write_bytes((images / "0.png").read_bytes()[:100])
    out = export(folder, tmp_path / "model")
    monkeypatch.setattr(
        "sys.argv", ["fedbeyond", "predict", str(out), str(tmp_path / "scans"), "--out", str(tmp_path / "p.csv")]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code in (0, None) and "3 images" in said.out and "torn.png" in said.err
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    want = Exported(out).chances(x)
    assert [row["file"] for row in rows] == ["deep/0.png", "deep/1.png", "deep/2.png"]
    names = Exported(out).card["classes"]
    for row, chances in zip(rows, want, strict=True):
        assert row["class"] == names[int(chances.argmax())] and float(row["confidence"]) == pytest.approx(
            float(chances.max()), abs=1e-4
        )
        assert sum(float(row[name]) for name in names) == pytest.approx(1, abs=1e-3)


def test_temperature_makes_confidence_fit():
    class Loud(torch.nn.Module):
        """Right in three of four cases, and always very sure."""

        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return 5 * torch.nn.functional.one_hot(x[:, 0].long(), 2).float()

    x = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    heat = temperature(Loud(), [(x, torch.tensor([0, 1, 0, 0]))])
    chance = float((torch.tensor([5.0, 0.0]) / heat).softmax(0)[0])
    assert chance == pytest.approx(0.75, abs=0.01)


def test_what_is_no_run_or_no_model_is_said(tmp_path):
    with pytest.raises(StorageError, match=r"is no run: it has no config\.json"):
        export(tmp_path, tmp_path / "model")
    with pytest.raises(StorageError, match="that 'fedbeyond export' wrote"):
        predict(tmp_path, tmp_path, tmp_path / "p.csv")
