"""A model leaves as files and says at another site what it said at home."""

import csv
import json

import pytest
import torch
from PIL import Image

from fedbeyond.classifier import logits, write
from fedbeyond.cli import main
from fedbeyond.errors import ConfigError, DataError, StorageError
from fedbeyond.experiment import checkpoint, run_folder, runner
from fedbeyond.experiment.config import parse
from fedbeyond.export.export import CARD, Exported, export, temperature
from fedbeyond.export.predict import predict


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
            "train": {"rounds": 2, "batchnorm": "reestimate"},
        }
    )
    list(runner.run(runner.prepare(config), folder))
    return folder, config


def test_an_exported_model_says_what_it_said_in_the_run(run, tmp_path):
    folder, config = run
    out = export(folder, tmp_path / "model", select="last")
    asked = Exported(out)
    setup = runner.prepare(config)
    last = checkpoint.load(folder / runner.LAST)[0]  # with the statistics that it was evaluated with
    net = write(setup.nets["model"], last)
    images = setup.unseen["sketch"][0][:20]
    want = (logits(net, images) / asked.card["temperature"]).softmax(1)
    assert torch.allclose(asked.probabilities(images), want, atol=1e-6)
    assert asked.card["classes"][0] == "dog" and asked.card["shape"] == [3, 32, 32] and asked.card["unseen"] == "sketch"
    assert sum(asked.card["trained_on"].values()) == sum(site.size for site in setup.engine.sites.values())
    line = run_folder.lines(folder)[-1]
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
    x = runner.prepare(config).unseen["sketch"][0][:3]
    for place, pixels in enumerate(x):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(images / f"{place}.png")
    (images / "torn.png").write_bytes((images / "0.png").read_bytes()[:100])
    out = export(folder, tmp_path / "model")
    monkeypatch.setattr(
        "sys.argv", ["fedbeyond", "predict", str(out), str(tmp_path / "scans"), "--out", str(tmp_path / "p.csv")]
    )
    with pytest.raises(SystemExit) as ended:
        main.main()
    said = capsys.readouterr()
    assert ended.value.code in (0, None) and "3 images" in said.out and "torn.png" in said.err
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    want = Exported(out).probabilities(x)
    assert [row["file"] for row in rows] == ["deep/0.png", "deep/1.png", "deep/2.png"]
    names = Exported(out).card["classes"]
    for row, probabilities in zip(rows, want, strict=True):
        assert row["class"] == names[int(probabilities.argmax())] and float(row["confidence"]) == pytest.approx(
            float(probabilities.max()), abs=1e-4
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
    with pytest.raises(StorageError, match=r"is not a run: it has no config\.json"):
        export(tmp_path, tmp_path / "model")
    with pytest.raises(StorageError, match="that 'fedbeyond export' wrote"):
        predict(tmp_path, [tmp_path], tmp_path / "p.csv")


def test_a_file_that_is_not_the_cards_is_noticed(run, tmp_path):
    out = export(run[0], tmp_path / "model")
    checkpoint.save(out / "model.safetensors", {"other": torch.zeros(2)})
    with pytest.raises(StorageError, match=r"is not the file that model\.json describes"):
        Exported(out)


def test_predictions_appear_whole_or_not_at_all(run, tmp_path, monkeypatch):
    out = export(run[0], tmp_path / "model")
    (tmp_path / "scans").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "scans" / "a.png")
    (tmp_path / "p.csv").write_text("of yesterday")

    def stopped(self, given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Exported, "probabilities", stopped)
        with pytest.raises(KeyboardInterrupt):
            predict(out, [tmp_path / "scans"], tmp_path / "p.csv", overwrite=True)
    assert (tmp_path / "p.csv").read_text() == "of yesterday"
    assert predict(out, [tmp_path / "scans"], tmp_path / "new" / "p.csv").number == 1
    with pytest.raises(StorageError, match="is a folder; give the name of a file"):
        predict(out, [tmp_path / "scans"], tmp_path)


def test_a_method_without_a_model_of_all_has_nothing_to_export(small, tmp_path):
    config = parse({**small, "method": "local", "train": {"rounds": 1}})
    list(runner.run(runner.prepare(config), tmp_path))
    with pytest.raises(ConfigError, match="local has a model at each site and no global model"):
        export(tmp_path, tmp_path / "model")


def test_a_round_that_was_not_judged_is_not_exported(small, tmp_path):
    config = parse({**small, "train": {"rounds": 4, "evaluate_every": 2}})
    lines = runner.run(runner.prepare(config), tmp_path)
    next(lines)
    with pytest.raises(StorageError, match="has no evaluated round"):
        export(tmp_path, tmp_path / "model")
    next(lines), next(lines)
    with pytest.raises(StorageError, match="last round so far was not evaluated"):
        export(tmp_path, tmp_path / "model", select="last")
    assert json.loads((export(tmp_path, tmp_path / "model") / CARD).read_text())["round"] == 2
    lines.close()


@pytest.fixture
def visits(tmp_path):
    """Sites whose numbers lie elsewhere, with a category, and with gaps."""
    rng = torch.Generator().manual_seed(0)
    rows = ["site,age,kind,ill"]
    for shift, site in enumerate("nst"):
        for _ in range(40):
            ill, noise = int(torch.randint(2, (), generator=rng)), float(torch.randn((), generator=rng))
            rows.append(f"{site},{50 * shift + 4 * ill + noise:.3f},{'?' if noise > 1.5 else 'ab'[ill]},{ill}")
    (tmp_path / "visits.csv").write_text("\n".join(rows) + "\n")
    data = f"table(path='{tmp_path / 'visits.csv'}', site=site, label=ill)"
    config = parse({"target": "t", "data": data, "network": "mlp(hidden=[8])", "train": {"rounds": 3, "batch_size": 8}})
    list(runner.run(runner.prepare(config), tmp_path / "run"))
    (tmp_path / "t.csv").write_text("\n".join(["kind;age;note", *(
        ";".join((row.split(",")[2], row.split(",")[1], "x")) for row in rows[1:] if row.startswith("t")
    )]) + "\n")  # fmt: skip
    return tmp_path


def test_a_model_of_tables_says_of_a_csv_file_what_it_said_in_the_run(visits):
    out = export(visits / "run", visits / "model", select="last")
    assert predict(out, [visits / "t.csv"], visits / "p.csv")[:3] == (40, "rows", [])
    rows = list(csv.DictReader((visits / "p.csv").read_text().splitlines()))
    assert [row["row"] for row in rows] == [str(number) for number in range(1, 41)]
    asked = Exported(out)
    setup = runner.prepare(parse({**asked.card["config"]}))
    x, labels = setup.unseen["t"]
    for row, probabilities in zip(rows, asked.probabilities(x[:]), strict=True):
        assert [float(row["0"]), float(row["1"])] == pytest.approx(probabilities.tolist(), abs=1e-4)
    right = sum(int(row["class"]) == label for row, label in zip(rows, labels.tolist(), strict=True)) / 40
    assert right == pytest.approx(asked.card["scores"]["t"]["test"]["accuracy"]) and right > 0.9
    assert asked.card["columns"] == {"age": [], "kind": ["a", "b"]} and "pixels" not in asked.card


def test_what_a_table_lacks_or_the_model_has_not_learnt_is_told(visits):
    out, file = export(visits / "run", visits / "model"), visits / "few.csv"
    for text, message in (
        ("age\n1\n", "no column 'kind'; its columns are age"),
        ("age,kind\n1,a\n2,c\n", r"line 3: kind is 'c', expected one of a, b; fix it or leave it empty"),
        ("age,kind\nold,a\n", r"line 2: age is 'old', expected a number"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            predict(out, [file], visits / "p.csv")
    with pytest.raises(DataError, match="a folder; this is a model for tables: give a CSV file"):
        predict(out, [visits], visits / "p.csv")
    file.write_text("age,kind\n1,a\n?,b\n")
    assert (
        "has 2 rows; numbers are standardised with the rows of the file"
        in predict(out, [file], visits / "p.csv").remarks[0]
    )
