"""Own data from pandas, by the rules of tables, and from Hugging Face's datasets, without a network."""

import datetime
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedbeyond
from fedbeyond.data.datasets._table import table
from fedbeyond.data.partition.assignment import build_splits
from fedbeyond.data.partition.splits import Rules, divide
from fedbeyond.errors import ConfigError, DataError
from fedbeyond.images import content_digest

hub = pytest.importorskip("datasets")
from_pandas, from_huggingface = fedbeyond.datasets.from_pandas, fedbeyond.datasets.from_huggingface


def visits(rows=60) -> str:
    """A table with numbers, categories, codes and gaps of three hospitals."""
    rng = np.random.default_rng(1)
    lines = ["hospital,age,dose,smokes,code,weight,patient,state"]
    for row in range(rows):
        age = "" if row % 7 == 0 else int(rng.integers(20, 90))
        dose = "NA" if row % 11 == 0 else repr(float(rng.normal()))
        weight = "-9" if row % 5 == 0 else f"{rng.normal(70, 9):.2f}"
        smokes, code = ("yes", "no", "")[row % 3], ("4", "04", "7")[row % 3]
        lines.append(
            f"{'nsw'[row % 3]},{age},{dose},{smokes},{code},{weight},{row // 4:02},{'ill' if row % 2 else 'well'}"
        )
    return "\n".join(lines)


OPTIONS = {"site": "hospital", "label": "state", "categorical": ("code",), "missing": ("-9",), "groups": "patient"}


@pytest.mark.parametrize(
    "read",
    [
        pd.read_csv,
        partial(pd.read_csv, dtype=str, keep_default_na=False),
        partial(pd.read_csv, dtype_backend="numpy_nullable"),
        partial(pd.read_csv, dtype={"smokes": "category"}),
    ],
)
def test_a_frame_is_the_table_of_the_same_file_to_the_bit(read, tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text(visits())
    want, got = table(str(path), **OPTIONS), from_pandas(read(path), **OPTIONS, name="visits")
    assert got.classes == want.classes == ("ill", "well") and got.columns == want.columns and got.name == "visits"
    assert got.notes == want.notes and content_digest(got) == content_digest(want) and got.about == want.about
    assert dict(want.columns).keys() == {"age", "dose", "smokes", "code", "weight"}
    assert dict(want.columns)["code"] == ("4", "7") and want["n"].images[:, -1].isnan().any()
    rules = Rules(0.2, disjoint="groups")
    one, other = (build_splits(data, divide(data, "w", 0, rules))[0]["s"]["val"][0] for data in (want, got))
    assert torch.equal(one, other) and one.isfinite().all()


def frame(**columns):
    rows = {"hospital": list("nsw") * 10, "age": [*range(20, 50)], "state": ["ill", "well"] * 15}
    return pd.DataFrame({**rows, **columns})


def test_a_column_of_dtype_category_is_categorical_and_an_index_names_rows():
    grade = pd.Categorical([1, 2, 3] * 10)
    data = from_pandas(frame(grade=grade), site="hospital", label="state")
    assert dict(data.columns)["grade"] == ("1", "2", "3")
    odd = frame(age=[*range(20, 49), "6o"]).set_axis([f"visit {n}" for n in range(30)])
    with pytest.raises(
        DataError, match=r"column 'age' has numbers, and in 1 row .*'6o' \(row visit 29\).*missing=\['6o'\]"
    ):
        from_pandas(odd, site="hospital", label="state")
    assert from_pandas(odd, site="hospital", label="state", missing=["6o"])["w"].images.isnan().sum() == 1


DAYS = [datetime.date(2024, 1, 1 + n) for n in range(30)]
GIVEN = {"site": "hospital", "label": "state"}


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        ([1, 2], GIVEN, r"^frame is of type list; give a pandas DataFrame"),
        (np.zeros((3, 2)), GIVEN, r"^frame is an array of float64 and shape 3 x 2; give a pandas DataFrame"),
        ("visits.csv", GIVEN, r"^frame is 'visits.csv'; give a pandas DataFrame"),
        (frame()["age"], GIVEN, r"^frame is an array of int64 and shape 30; give a pandas DataFrame"),
        (frame()[:0], GIVEN, r"^frame has no rows"),
        (
            frame(),
            GIVEN | {"label": "stat"},
            r"^frame: no column 'stat'; its columns are hospital, age, state; give one",
        ),
        (frame(), GIVEN | {"site": "place", "name": "mine"}, r"^mine: no column 'place'"),
        (frame(), GIVEN | {"site": None}, r"^site is None; give the name of a column"),
        (frame(), GIVEN | {"groups": 3}, r"^groups is 3; give the name of a column"),
        (frame(), GIVEN | {"groups": "state"}, r"^groups='state' is the column of the label; give another"),
        (frame(), GIVEN | {"drop": "age"}, r"^drop is 'age'; give a list, as in drop=\['a', 'b'\]"),
        (frame(), GIVEN | {"drop": ["agee"]}, r"no column 'agee'"),
        (frame(hospital="n"), GIVEN, r"column 'hospital' has one site, 'n'; give rows of two or more"),
        (frame(hospital=[None, *"sw"] * 10), GIVEN, r"^frame, row 0, row 3, .*: no value in column 'hospital'"),
        (frame(state="ill"), GIVEN, r"state is ill in every row"),
        (frame(day=DAYS), GIVEN, r"column 'day' holds dates, which are not numbers"),
        (frame(day=pd.to_datetime(DAYS)), GIVEN, r"column 'day' holds dates, which are not numbers"),
        (
            frame(key=[f"k{n}" for n in range(30)]),
            GIVEN,
            r"'key' has 30 different values in 30 rows, like an identifier",
        ),
        (frame(age=[np.inf] * 30), GIVEN, r"column 'age' has numbers, and in 30 rows of 30 something else"),
        (
            frame(vector=[[1, 2]] * 30),
            GIVEN,
            r"^frame, row 0: column 'vector' has a value of type list; give numbers, texts",
        ),
        (frame(day=DAYS, age=[np.inf] * 30), GIVEN, r"\(1 more: fix it first\)$"),
        (pd.concat([frame(), frame()[["age"]]], axis=1), GIVEN, r"more than one column has the name 'age'"),
        (
            frame(p=[None] * 30),
            GIVEN | {"groups": "p"},
            r"^frame, row 0, row 3, .*: no value in column 'p'; give the group",
        ),
    ],
)
def test_frames_that_cannot_be_right_are_refused(made, options, message):
    with pytest.raises(DataError, match=message) as caught:
        from_pandas(made, **options)
    assert "\n" not in str(caught.value)


RNG = np.random.default_rng(0)
PICTURES = [Image.fromarray(x) for x in RNG.integers(0, 256, (24, 6, 5, 3), dtype=np.uint8)]


def pictures(**columns):
    """Images of two hospitals, of classes with names, several of each patient."""
    rows = {"image": PICTURES, "label": [n % 2 for n in range(24)], "hospital": [n // 12 for n in range(24)]}
    rows |= {"patient": [n // 3 for n in range(24)], "extra": ["x"] * 24}
    features = {"image": hub.Image(), "label": hub.ClassLabel(names=["well", "ill"])}
    features |= {"hospital": hub.ClassLabel(names=["north", "south"]), "patient": hub.Value("int64")}
    features |= {"extra": hub.Value("string")}
    return hub.Dataset.from_dict({**rows, **columns}, features=hub.Features(features))


def own(data, **options):
    return from_huggingface(data, site="hospital", **options)


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Any connection is an error, and prepared files go to a folder of the test."""
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection was opened"))


def test_a_huggingface_dataset_is_the_arrays_of_its_images(tmp_path):
    data = own(pictures(), groups="patient", name="scans")
    assert data.classes == ("well", "ill") and data.domains == ("north", "south") and data.name == "scans"
    assert data["north"].labels.tolist() == [0, 1] * 6 and data["south"].groups == tuple(
        str(4 + n // 3) for n in range(12)
    )
    assert np.array_equal(data["south"].images[0].movedim(0, 2), np.asarray(PICTURES[12]))
    sites = {
        name: ([*map(np.asarray, some)], [0, 1] * 6)
        for name, some in (("north", PICTURES[:12]), ("south", PICTURES[12:]))
    }
    arrays = {name: (np.stack(x), y) for name, (x, y) in sites.items()}
    groups = {"north": [n // 3 for n in range(12)], "south": [4 + n // 3 for n in range(12)]}
    same = fedbeyond.datasets.from_arrays(arrays, classes=["well", "ill"], groups=groups)
    assert content_digest(data) == content_digest(same)
    assert own(pictures().with_format("torch"), size=4)["north"].images.shape == (12, 3, 4, 4)


def test_local_folders_and_files_are_read_without_a_network(tmp_path):
    want = content_digest(own(pictures()))
    pictures().save_to_disk(tmp_path / "saved")
    pictures().to_parquet(tmp_path / "scans.parquet")
    before = hub.config.HF_HUB_OFFLINE
    assert content_digest(own(tmp_path / "saved")) == content_digest(own(str(tmp_path / "scans.parquet"))) == want
    folder = tmp_path / "folder"
    folder.mkdir()
    pictures().to_parquet(folder / "train-00000-of-00001.parquet")
    assert content_digest(own(str(folder), split="train")) == want and before == hub.config.HF_HUB_OFFLINE
    (tmp_path / "broken.parquet").write_text("no")
    with pytest.raises(DataError, match=r"broken.parquet: datasets cannot load it \(.*\); fix it, or load it yourself"):
        own(tmp_path / "broken.parquet")
    with pytest.raises(DataError, match=r"note.txt is no file of a known kind; give a folder, or .parquet"):
        (tmp_path / "note.txt").write_text("no")
        own(tmp_path / "note.txt")


def test_splits_become_the_official_split_or_one_is_chosen():
    both = hub.DatasetDict({"train": pictures(), "validation": pictures(), "test": pictures()})
    data = own(both)
    assert len(data["north"].labels) == 36
    assert data.notes["north"].folds["val"].tolist() == [*range(12, 24)]
    assert content_digest(own(both, split="test")) == content_digest(own(pictures()))
    assert not own(hub.DatasetDict({"one": pictures(), "two": pictures()})).notes["north"].folds
    with pytest.raises(DataError, match=r"source has no split 'dev'; its splits are train, validation, test; give one"):
        own(both, split="dev")
    with pytest.raises(DataError, match=r"source has no split 'dev'; it is one table; leave split out"):
        own(pictures(), split="dev")


def test_nothing_is_downloaded_without_download_and_a_commit(monkeypatch):
    asked = []
    monkeypatch.setattr(hub, "load_dataset", lambda *args, **options: asked.append((args, options)) or pictures())
    commit = "0123456789abcdef" * 2 + "01234567"
    for options in ({}, {"revision": commit}, {"download": True}, {"download": True, "revision": "main"}):
        with pytest.raises(
            DataError, match=r"'someone/scans' is no file or folder here; .*give download=True and revision="
        ):
            own("someone/scans", **options)
    assert not asked
    own("someone/scans", download=True, revision=commit)
    assert asked == [(("someone/scans",), {"revision": commit})]
    with pytest.raises(DataError, match=r"revision and download are for a name on the Hugging Face Hub"):
        own(pictures(), download=True)


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    pictures().to_parquet(tmp_path / "scans.parquet")
    data = pictures()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r'needs datasets; install it with: pip install "fedbeyond\[hf\]"'):
        own(tmp_path / "scans.parquet")
    assert len(own(data)["north"].labels) == 12  # objects need no import


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (lambda: [1], {}, r"^source is of type list; give a datasets.Dataset or DatasetDict, a local folder or file"),
        (lambda: {"a": 3}, {}, r"^source is of type dict; give a datasets.Dataset"),
        (
            lambda: pictures().to_iterable_dataset(),
            {},
            r"^source is streamed, without a length; load it with streaming=False",
        ),
        (
            pictures,
            {"label": "grade"},
            r"^source has no column 'grade'; its columns are image, label, hospital, patient",
        ),
        (pictures, {"image": "scan"}, r"no column 'scan'; .*for rows without images use from_pandas\(source.to_pandas"),
        (pictures, {"image": 3}, r"^image is 3; give the name of a column"),
        (pictures, {"groups": "person"}, r"^source has no column 'person'"),
        (pictures, {"size": -1}, r"^size is -1; give the side"),
        (
            lambda: pictures(hospital=[0] * 24),
            {},
            r"^column 'hospital' of source has one site, 'north'; give data of two",
        ),
        (
            lambda: pictures(label=[-1] * 24),
            {},
            r"^column 'label' of source has no value in row 0, row 1, row 2 and 21 more",
        ),
        (
            lambda: pictures(patient=[None] * 24),
            {"groups": "patient"},
            r"^the group in row 0 of groups\['north'\] is None",
        ),
        (lambda: pictures(label=[1] * 24), {}, r"^all labels are 'ill'; give data of two classes"),
        (pictures, {"image": "extra"}, r"^item 0 of site 'north' has an image 'x'; give a PIL image"),
    ],
)
def test_sources_that_cannot_be_right_are_refused(made, options, message):
    with pytest.raises(DataError, match=message):
        own(made(), **options)
