"""`fedbeyond data check` of files and of folders that are not laid out as expected; pictures only where asked."""

import os
import random
import sys

import numpy as np
import pytest
from PIL import Image

from fedbeyond.cli import main
from fedbeyond.data.check.check import check
from fedbeyond.data.datasets._folder import folder
from fedbeyond.data.datasets._table import table
from fedbeyond.data.datasets.readers.arrays import npz
from fedbeyond.errors import DataError


def noise(path):
    """An image like no other: noise that depends on its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", (8, 8), random.Random(str(path)).randbytes(8 * 8 * 3)).save(path)


def images(root, domains=("north", "south"), classes=("cat", "dog"), each=2):
    for domain in domains:
        for name in classes:
            for number in range(each):
                noise(root / domain / name / f"{number}.png")
    return root


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def fedbeyond(*words):
        monkeypatch.setattr(sys, "argv", ["fedbeyond", "data", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main.main()
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return fedbeyond


def table_of(path, **changed):
    """Write forty visits to two hospitals; a column may be changed in the row of line 7."""
    rng, lines = random.Random(0), ["hospital,age,state"]
    for number in range(40):
        row = {"hospital": "ns"[number % 2], "age": str(rng.randint(30, 60)), "state": rng.choice(("ill", "well"))}
        lines.append(",".join((row | (changed if number == 5 else {})).values()))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_csv_file_is_checked_and_the_next_command_is_shown(call, tmp_path):
    table_of(tmp_path / "visits.csv")
    code, out, _ = call("check", "visits.csv")
    assert code == 0 and out.startswith("visits.csv: a table of 40 rows and 3 columns\n\ncolumns: 1 numeric, 2 categ")
    assert "  hospital  categorical, 2 values           n, s\n" in out
    assert "note: not checked: site and label\n  fedbeyond data check \"table(path='visits.csv', site=COLUMN" in out
    code, out, _ = call("check", "table(path='visits.csv', site=hospital, label=state)")
    assert code == 0 and "sites: 2, with the classes of 'state'\n  site  rows  ill  well\n  n       20 " in out
    assert out.endswith("\n\nno findings\n") and "note" not in out


def test_all_that_is_wrong_with_a_table_is_listed_at_once(call, tmp_path):
    table_of(tmp_path / "visits.csv", age="6o", state="ILL")
    code, out, _ = call("check", "table(path='visits.csv', site=hospital, label=state)")
    assert code == 1 and out.endswith("\n2 findings\n")
    assert "column 'age' has numbers, and in 1 row of 40 something else\n  '6o' (line 7)\n  to do: fix these" in out
    assert "  'ILL' in 1 row (line 7)\n" in out and "missing=['6o']" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    with pytest.raises(DataError, match=r"\(1 more: give 'fedbeyond data check' the same table\)"):
        table("visits.csv", "state", "hospital")


def test_classes_of_one_row_and_one_site_are_findings(call, tmp_path):
    table_of(tmp_path / "visits.csv", state="wel")
    code, out, _ = call("check", "table(path='visits.csv', site=hospital, label=state)")
    assert code == 1 and "classes with one row: 1 of 3 classes of 'state'\n  'wel' (line 7)\n" in out
    table_of(tmp_path / "north.csv")
    code, out, _ = call("check", "table(path='nor*.csv', label=state)")
    assert code == 1 and "one site: training needs two, one of them unseen\n  th\n" in out


def test_a_table_that_cannot_be_read_or_is_asked_wrongly_is_said(call, tmp_path):
    (tmp_path / "visits.csv").write_text("a,b\n1\n")
    code, out, _ = call("check", "visits.csv")
    assert code == 1 and "unreadable: training would stop with this error\n  visits.csv, line 2: 1 values for 2" in out
    for words, said in (
        (("table(path='visits.csv', labl=b)",), "table has no option 'labl'; did you mean 'label'?"),
        (("table(path='visits.csv', drop=3)",), "table: drop=3 is not valid"),
        (("none.csv",), "none.csv: no such file or folder; give the folder that holds the dataset, a CSV file or"),
        (("none/*.csv",), "none/*.csv: no such files"),
        (("table(path=none.csv)",), "none.csv: no such file"),
        (("visits.csv", "--as", "pacs"), "is a table, for which there is no --as and no picture"),
    ):
        code, _, err = call("check", *words)
        assert code == 2 and said in err
    code, out, _ = call("check", ".")
    assert code == 1 and "tables: the folder holds CSV files, and no images\n  visits.csv\n" in out


def test_a_single_npz_file_is_checked(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (8, 5, 5), np.uint8)
    np.savez(tmp_path / "north.npz", x=x, y=[0, 1] * 4)
    out, well = check(tmp_path / "north.npz")
    assert well and "\n1 domain, 2 classes, no expected numbers" in out and "  north   4  4    8\n" in out
    with pytest.raises(DataError, match="a file, not a folder; give the folder"):
        check(tmp_path / "north.npz", "digits")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1, 1] * 4, "a label is -1; expected labels from 0"),
        (["cat", "dog"] * 4, "a label is 'cat'; expected numbers from 0, and their names in classes"),
        ([0.5, 1.0] * 4, r"a label is 0\.5; expected numbers from 0"),
    ],
)
def test_labels_of_arrays_that_are_no_numbers_of_classes_are_refused(tmp_path, labels, message):
    np.savez(tmp_path / "north.npz", x=np.zeros((8, 5, 5), np.uint8), y=labels)
    with pytest.raises(DataError, match=message):
        npz(str(tmp_path))


def test_arrays_that_cannot_be_read_are_said(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 5, 5), np.uint8), y=[0.0, 1.0])
    assert check(tmp_path / "a.npz")[0].startswith(f"{tmp_path}/a.npz: one .npz for each domain\n")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    with open(tmp_path / "array.npz", "wb") as file:
        np.save(file, np.zeros(3))
    for name, said in (
        ("cut", "cannot be read as .npz (File is not a zip file)"),
        ("array", "a single array; expected"),
    ):
        out, well = check(tmp_path / f"{name}.npz")
        assert not well and "unreadable: training would stop with this error\n" in out and said in out


def test_one_class_and_single_images_are_findings(tmp_path):
    out, well = check(images(tmp_path / "one", classes=("cat",)))
    assert not well and "2 domains, 1 class, " in out and "one class: training needs two or more\n  cat\n" in out
    out, well = check(images(tmp_path / "few", each=1))
    assert not well and "one image: 4 times a domain has a single image of a class\n  north has one cat\n" in out


def test_bare_images_are_named_with_the_layout_that_is_expected(tmp_path):
    for number in range(3):
        noise(tmp_path / "bare" / f"{number}.png")
    out, well = check(tmp_path / "bare")
    assert (
        not well
        and f"bare images: 3 images directly in {tmp_path}/bare, in no folder of a domain and a class"
        in " ".join(out.split())
    )
    assert "  0.png\n" in out and "domain/class/image" in out and "unreadable" not in out
    with pytest.raises(DataError, match="3 images directly in it, in no folder; expected domain/class/image"):
        folder(str(tmp_path / "bare"))
    noise(images(tmp_path / "good") / "x.png")
    out, well = check(tmp_path / "good")
    assert well and "note: bare images: 1 image directly in" in out


def test_classes_without_domains_are_recognised(tmp_path):
    for name in ("cat", "dog"):
        noise(tmp_path / name / "0.png")
    out, well = check(tmp_path)
    assert (
        not well
        and "cat: 1 image directly in it, in no class folder; expected cat/class/image; if cat is a class" in out
    )


def test_a_class_folder_that_is_empty_everywhere_is_a_finding(tmp_path):
    for domain in ("north", "south"):
        (images(tmp_path) / domain / "cow").mkdir()
    out, well = check(tmp_path)
    assert not well and "empty classes: no domain has images of 1 class\n  cow\n" in out and "uneven" not in out
    with pytest.raises(DataError, match=r"no domain has an image of class cow; .* remove the empty folders"):
        folder(str(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_utf8_are_a_finding_and_no_traceback(call, tmp_path):
    images(tmp_path / "odd")
    os.rename(tmp_path / "odd/north/cat/0.png", os.fsencode(tmp_path) + b"/odd/north/cat/\xe9t\xe9.png")
    os.rename(tmp_path / "odd/south", os.fsencode(tmp_path) + b"/odd/s\xfcd")
    code, out, _ = call("check", "odd", "--out", "grid.png")
    assert code == 1 and "not UTF-8: 5 images with a name in another encoding\n  north/cat/\\xe9t\\xe9.png\n" in out
    assert "picture: grid.png\n1 finding\n" in out
    with pytest.raises(DataError, match=r"t.xe9\.png: the name is not UTF-8; rename the file"):
        folder(str(tmp_path / "odd"))


def test_a_picture_is_written_only_where_asked_and_never_over_another_file(call, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "cache"))
    images(tmp_path / "mine")
    (tmp_path / "data.png").write_text("precious")
    code, out, _ = call("check", "mine")
    assert code == 0 and "picture" not in out and not (tmp_path / "cache").exists()
    for words in (("check", "mine", "--out", "data.png"), ("show", "folder(root=mine)")):
        code, _, err = call(*words)
        assert code == 2 and "data.png exists and is not overwritten; delete it, or give another file" in err
    assert (tmp_path / "data.png").read_text() == "precious"
    for _ in range(2):
        code, out, _ = call("check", "mine", "--picture")
        (path,) = (tmp_path / "cache" / "pictures").iterdir()
        assert code == 0 and f"picture: {path}\n" in out and path.name.startswith("mine-")
