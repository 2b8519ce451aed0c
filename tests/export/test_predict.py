"""A user predicts with images and tables as they lie on the disk, and learns how good the predictions are."""

import csv
import json
import shutil

import pytest
import torch
from PIL import Image

from fedbeyond.experiment import run_folder, runner
from fedbeyond.experiment.config import parse
from fedbeyond.export.export import CARD, export
from fedbeyond.export.score import LabelSource, score

CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]


@pytest.fixture
def call(call, tmp_path, monkeypatch):
    """Run commands in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return call


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    settings = {"data": "styles(share=0.05)", "network": "convnet(width=4)", "train": {"rounds": 2}}
    list(runner.run(runner.prepare(parse({"target": "sketch", **settings})), folder))
    return folder


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    return export(run, tmp_path_factory.mktemp("exported") / "model")


@pytest.fixture
def scans(tmp_path):
    """Images of two classes, of a class that the model does not know, and one that lies outside of all folders."""
    for number, name in enumerate(("dog/1.png", "site-b/Dog/deep/2.JPG", "horse/3.jpeg", "cat/4.png", "5.png")):
        file = tmp_path / "scans" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (50 * number, 90, 10)).save(file)
    return tmp_path / "scans"


def written(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def flat(text):
    return " ".join(text.split())


def test_files_and_folders_are_taken_together_and_named_as_they_were_given(model, scans, tmp_path, call):
    code, out, _ = call("predict", model, "scans/5.png", "--out", "one.csv")
    assert code == 0 and out.startswith("1 image: one.csv\n")
    assert [row["file"] for row in written(tmp_path / "one.csv")] == ["scans/5.png"]
    code, out, _ = call("predict", model, "scans/horse/3.jpeg", "scans/dog", "scans/5.png", "--out", "some.csv")
    names = ["scans/horse/3.jpeg", "scans/dog/1.png", "scans/5.png"]
    assert code == 0 and [row["file"] for row in written(tmp_path / "some.csv")] == names
    call("predict", model, "scans", "--out", "all.csv")
    by_file = {row.pop("file"): row for row in written(tmp_path / "all.csv")}
    assert [*by_file] == ["5.png", "cat/4.png", "dog/1.png", "horse/3.jpeg", "site-b/Dog/deep/2.JPG"]
    for row in written(tmp_path / "some.csv"):
        alone = by_file[row.pop("file").removeprefix("scans/")]
        assert row["class"] == alone["class"]
        assert [float(row[name]) for name in CLASSES] == pytest.approx([float(alone[n]) for n in CLASSES], abs=2e-4)


def test_class_folders_are_labels_and_other_folders_are_said_to_be_unknown(model, scans, tmp_path, call):
    code, out, _ = call("predict", model, "scans")
    truth = {"dog/1.png": "dog", "site-b/Dog/deep/2.JPG": "dog", "horse/3.jpeg": "horse"}
    predicted = {row["file"]: row["class"] for row in written(tmp_path / "predictions.csv")}
    right = [name for name, label in truth.items() if predicted[name] == label]
    dogs = sum(truth[name] == "dog" for name in right)
    balanced = (dogs / 2 + len(right) - dogs) / 2
    lines = out.splitlines()
    assert code == 0 and lines[:2] == [
        "5 images: predictions.csv",
        f"accuracy {len(right) / 3:.1%}, balanced accuracy {balanced:.1%} (3 images, labels: folder names)",
    ]
    table = {line.split()[0]: line.split()[1:] for line in lines[2:] if not line.startswith("not counted")}
    assert table["class"] == ["images", "predicted", "correct"]
    assert table["dog"][0] == "2" and table["dog"][2] == str(dogs) and table["horse"][0] == "1"
    assert lines[-2] == "not counted: 1 image whose label is not a class of the model (cat 1)"
    assert lines[-1] == "not counted: 1 image without a label"
    assert all(len(line) <= 80 for line in lines)


def test_a_folder_without_classes_has_no_accuracy_and_the_reason_is_printed(model, scans, call):
    _, out, _ = call("predict", model, "scans/cat", "--out", "a.csv")
    classes = "the model's classes are dog, elephant, giraffe, guitar, horse, house and 1 more\n"
    assert out.startswith("1 image: a.csv\nno accuracy: the images are not in folders named after classes; ")
    assert flat(out).endswith(flat(classes))
    shutil.rmtree(scans / "dog"), shutil.rmtree(scans / "horse"), shutil.rmtree(scans / "site-b")
    _, out, _ = call("predict", model, "scans", "--out", "b.csv")
    assert "no accuracy: the model does not know the labels (folder names: cat); the" in out


def test_predictions_are_not_replaced_unless_that_is_asked_for(model, scans, tmp_path, call):
    (tmp_path / "predictions.csv").write_text("of yesterday")
    code, out, err = call("predict", model, "scans")
    assert code == 2 and not out
    assert err == (
        "error: predictions.csv exists; give another file with --out, or replace this one with --overwrite\n"
    )
    assert (tmp_path / "predictions.csv").read_text() == "of yesterday"
    assert call("predict", model, "scans", "--out", "today.csv")[0] == 0
    assert call("predict", model, "scans", "--overwrite")[0] == 0
    assert (tmp_path / "predictions.csv").read_text() == (tmp_path / "today.csv").read_text()


def test_what_cannot_be_predicted_is_named_and_nothing_is_written(model, tmp_path, call):
    (tmp_path / "visits.csv").write_text("age\n1\n")
    (tmp_path / "empty").mkdir()
    for given, message in (
        ("visits.csv", "visits.csv: cannot be read as an image (not an image); remove or replace it; this is a model"),
        ("nowhere.png", "nowhere.png: no such file or folder; give image files or folders of images"),
        ("empty", "empty: no images in this folder; give image files or folders of images"),
    ):
        code, _, err = call("predict", model, given)
        assert code == 2 and message in err
    assert not (tmp_path / "predictions.csv").exists()


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The model of a table with ids and notes, and the table."""
    folder, rng = tmp_path_factory.mktemp("tables"), torch.Generator().manual_seed(0)
    rows = [["id", "site", "age", "note", "kind", "ill"]]
    for shift, site in enumerate("nst"):
        for number in range(40):
            ill, noise = int(torch.randint(2, (), generator=rng)), float(torch.randn((), generator=rng))
            age = f"{50 * shift + 4 * ill + noise:.3f}"
            rows.append([f"00{shift}{number:02}", site, age, 'says "ow", often', "ab"[ill], str(ill)])
    with open(folder / "visits.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    data = f"table(path='{folder / 'visits.csv'}', site=site, label=ill, drop=[id, note])"
    config = parse({"target": "t", "data": data, "network": "mlp(hidden=[8])", "train": {"rounds": 3, "batch_size": 8}})
    list(runner.run(runner.prepare(config), folder / "run"))
    return export(folder / "run", folder / "model"), rows


def store(path, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_ids_and_other_columns_of_a_table_are_copied_unchanged_in_order(tables, tmp_path, call):
    model, rows = tables
    given = [rows[0], *reversed(rows[1:])]
    store(tmp_path / "visits.csv", given)
    code, out, err = call("predict", model, "visits.csv")
    with open(tmp_path / "predictions.csv", newline="") as file:
        head, *found = csv.reader(file)
    assert code == 0 and not err and head == ["row", "id", "site", "note", "ill", "class", "confidence", "0", "1"]
    assert [row[0] for row in found] == [str(number) for number in range(1, 121)]
    assert [row[1:5] for row in found] == [[row[0], row[1], row[3], row[5]] for row in given[1:]]
    right = sum(row[4] == row[5] for row in found)
    assert out.startswith(f"120 rows: predictions.csv\naccuracy {right / 120:.1%}, balanced accuracy ")
    assert "(120 rows, labels: column 'ill')\nclass       rows  predicted    correct\n0 " in out
    assert json.loads((model / CARD).read_text())["label"] == "ill"


def test_labels_that_a_model_for_tables_does_not_know_are_named(tables, tmp_path, call):
    model, rows = tables
    mixed = [[*row[:5], {3: "maybe", 4: "", 5: "?", 6: "1.0"}.get(number, row[5])] for number, row in enumerate(rows)]
    store(tmp_path / "mixed.csv", mixed)
    _, out, _ = call("predict", model, "mixed.csv", "--out", "a.csv")
    assert "(117 rows, labels: column 'ill')" in out
    assert "not counted: 1 row whose label is not a class of the model (maybe 1)\n" in out
    assert out.endswith("not counted: 2 rows without a label\n")
    store(tmp_path / "other.csv", [rows[0], *([*row[:5], "severe"] for row in rows[1:])])
    _, out, _ = call("predict", model, "other.csv", "--out", "b.csv")
    assert (
        "no accuracy: the model does not know the labels (column 'ill': severe); the model's classes are 0, 1"
        in flat(out)
    )
    store(tmp_path / "without.csv", [row[:5] for row in rows])
    _, out, _ = call("predict", model, "without.csv", "--out", "c.csv")
    assert "no accuracy: without.csv has no labels in a column 'ill'; the model's classes are 0, 1" in flat(out)


def test_a_column_with_the_name_of_an_output_column_keeps_its_name(tables, tmp_path, call):
    model, rows = tables
    store(tmp_path / "visits.csv", [["class", "row", *rows[0][2:]], *rows[1:]])
    code, _, err = call("predict", model, "visits.csv")
    (first, *_) = written(tmp_path / "predictions.csv")
    assert code == 0 and first["class"] == rows[1][0] and first["row"] == rows[1][1]
    assert first["predict_row"] == "1" and first["predict_class"] in "01"
    assert "column name 'class' is taken; predict writes its own column as 'predict_class'\n" in err


def test_a_model_for_tables_takes_one_file(tables, tmp_path, call):
    (tmp_path / "a.csv").write_text("age\n"), (tmp_path / "b.csv").write_text("age\n")
    code, _, err = call("predict", tables[0], "a.csv", "b.csv")
    assert code == 2 and "2 files; this is a model for tables: give one CSV file with a header" in err


def test_a_card_without_a_label_column_is_said_to_have_none(tables, tmp_path, call):
    shutil.copytree(tables[0], tmp_path / "model")
    card = json.loads((tmp_path / "model" / CARD).read_text())
    del card["label"]
    (tmp_path / "model" / CARD).write_text(json.dumps(card))
    store(tmp_path / "visits.csv", tables[1])
    _, out, _ = call("predict", "model", "visits.csv")
    assert "no accuracy: the card of the model names no label column; the model's classes are 0, 1" in flat(out)


def test_scores_are_those_computed_by_hand():
    probabilities = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0], [0.3, 0.7, 0.0]])
    lines = score(probabilities, ["a", "a", "a", "b"], ["a", "b", "c"], "rows", LabelSource("column 'y'", ""))
    assert lines == [
        "accuracy 75.0%, balanced accuracy 83.3% (4 rows, labels: column 'y')",
        "class       rows  predicted    correct",
        "a              3          2          2",
        "b              1          2          1",
    ]


def test_an_unfinished_run_is_exported_with_a_warning_and_says_what_is_exported(small, tmp_path, call):
    config = parse({**small, "train": {"rounds": 3}})
    lines = runner.run(runner.prepare(config), tmp_path / "run")
    next(lines), next(lines)
    lines.close()
    assert len(run_folder.lines(tmp_path / "run")) == 2
    code, out, _ = call("export", "run", "--select", "last")
    said = (
        "warning: the run is not finished: 2 of 3 rounds are done. The exported model is that of round 2, the last one "
        "so far. To use all rounds, give the same 'fedbeyond run' again, then export again."
    )
    assert code == 0 and said in flat(out)
    card = json.loads((tmp_path / "model" / CARD).read_text())
    assert card["warnings"][0] == said.removeprefix("warning: ") and card["round"] == 2
    _, out, _ = call("export", "run")
    best = json.loads((tmp_path / "model" / CARD).read_text())["round"]
    assert f"The exported model is that of round {best}, the best one so far by source-validation." in flat(out)
    list(runner.run(runner.prepare(config), tmp_path / "run"))
    _, out, _ = call("export", "run")
    assert "not finished" not in out and "use it with: fedbeyond predict model IMAGES_OR_FOLDERS\n" in out


def test_a_run_without_an_evaluated_round_says_how_many_rounds_are_done(small, tmp_path, call):
    config = parse({**small, "train": {"rounds": 4, "evaluate_every": 2}})
    lines = runner.run(runner.prepare(config), tmp_path / "run")
    next(lines)
    lines.close()
    code, _, err = call("export", "run")
    assert code == 2 and "run has no evaluated round (1 of 4 rounds are done); let it finish" in err
