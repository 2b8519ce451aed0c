"""Own data in Python: arrays and torch datasets by site, their labels, digests and refusals."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import fedbeyond
from fedbeyond import _progress
from fedbeyond.data.partition.assignment import build_splits
from fedbeyond.data.partition.splits import Rules, divide
from fedbeyond.errors import DataError
from fedbeyond.experiment import registry, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.export.export import export
from fedbeyond.export.predict import predict
from fedbeyond.images import content_digest, pixels

from_arrays, from_torch = fedbeyond.datasets.from_arrays, fedbeyond.datasets.from_torch
RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
Y = [0, 1, 2, 0, 1, 2]


def two(x, y=Y, **options):
    return from_arrays({"a": (x, y), "b": (x, y)}, **options)


@pytest.mark.parametrize(
    "x",
    [
        BYTES,
        BYTES.transpose(0, 3, 1, 2),
        torch.from_numpy(BYTES),
        BYTES.tolist(),
        BYTES[::-1][::-1],
        BYTES.astype(">i4"),
    ],
)
def test_images_of_bytes_in_any_layout_are_the_same_dataset(x):
    data = two(x)
    assert (
        torch.equal(data["a"].images, torch.from_numpy(BYTES).movedim(3, 1)) and data["a"].images.dtype == torch.uint8
    )
    assert content_digest(data) == content_digest(two(BYTES)) and data.classes == ("0", "1", "2")
    assert data.complete is None and not data.columns


def test_grey_images_have_one_channel_and_floats_stay_floats():
    assert two(BYTES[..., 0])["a"].images.shape == (6, 1, 5, 7)
    floats = two(BYTES / np.float64(255))["b"].images
    assert (
        floats.dtype == torch.float32 and torch.equal(pixels(floats), floats) and 0 <= floats.min() < floats.max() <= 1
    )
    square = RNG.integers(0, 256, (6, 3, 4, 3), dtype=np.uint8)
    with pytest.raises(DataError, match=r"x of site 'a' has shape 6 x 3 x 4 x 3, and either axis .*layout='NCHW' or"):
        two(square)
    assert two(square, layout="NCHW")["a"].images.shape == (6, 3, 4, 3)
    assert torch.equal(two(square, layout="NHWC")["a"].images[0, 1], torch.from_numpy(square[0, :, :, 1]))
    with pytest.raises(DataError, match="no axis of size 1 or 3 holds the channels"):
        two(np.zeros((6, 4, 5, 5), np.uint8))
    assert two(np.zeros((6, 4, 5, 5), np.uint8), layout="NCHW")["a"].images.shape == (6, 4, 5, 5)


def test_arrays_and_memory_maps_are_not_copied(tmp_path):
    x = BYTES.transpose(0, 3, 1, 2).copy()
    assert two(x)["a"].images.data_ptr() == x.ctypes.data
    np.save(tmp_path / "x.npy", BYTES)
    held = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = two(held)
    assert data["a"].images.data_ptr() == held.ctypes.data and content_digest(data) == content_digest(two(BYTES))


@pytest.mark.parametrize(
    ("y", "classes", "names", "numbers"),
    [
        ([5, 10, 5, 7, 7, 10], None, ("5", "7", "10"), [0, 2, 0, 1, 1, 2]),
        (np.array([1.0, 0, 0, 1, 1, 0]), None, ("0", "1"), [1, 0, 0, 1, 1, 0]),
        (np.array([[1], [0], [0], [1], [1], [0]]), ("no", "yes"), ("no", "yes"), [1, 0, 0, 1, 1, 0]),
        ([True, False] * 3, None, ("False", "True"), [1, 0] * 3),
        ([True, False] * 3, ("no", "yes"), ("no", "yes"), [1, 0] * 3),
        (list("bacbac"), None, ("a", "b", "c"), [1, 0, 2, 1, 0, 2]),
        (np.array(list("bacbac")), ("c", "b", "a"), ("c", "b", "a"), [1, 2, 0, 1, 2, 0]),
        (torch.tensor(Y), np.array(["u", "v", "w", "x"]), ("u", "v", "w", "x"), Y),
        ([torch.tensor(n) for n in Y], None, ("0", "1", "2"), Y),
    ],
)
def test_labels_are_numbers_texts_or_booleans(y, classes, names, numbers):
    data = two(BYTES, y, classes=classes)
    assert data.classes == names and data["b"].labels.tolist() == numbers and data["b"].labels.dtype == torch.int64


def test_classes_are_those_of_all_sites():
    data = from_arrays({"a": (BYTES, ["x", "z"] * 3), "b": (BYTES, ["y", "z"] * 3)})
    assert data.classes == ("x", "y", "z") and data["b"].labels.tolist() == [1, 2] * 3


def test_rows_are_filled_in_and_standardised_as_those_of_tables():
    rows = np.array([[1.0, np.nan], [3, 4], [5, 6], [7, 2], [9, 0], [1, 1]])
    sites, unseen = build_splits(data := two(rows, [0, 1] * 3), divide(data, "b", 0, Rules(validation=0.3)))
    train = sites["a"]["train"][0]
    assert train.isfinite().all() and train.mean(0).abs().max() < 1e-6 and unseen["b"][0].isfinite().all()
    assert data.columns == [("x0", ()), ("x1", ())] and "rows of 2" in repr(data)
    plain = two(np.nan_to_num(rows), [0, 1] * 3, standardise=False)
    sites, unseen = build_splits(plain, divide(plain, "b", 0))
    assert torch.equal(unseen["b"][0], torch.from_numpy(np.nan_to_num(rows)).float()) and "rows of 2" in repr(plain)
    assert content_digest(plain) != content_digest(two(np.nan_to_num(rows), [0, 1] * 3))


WITH_NAN = np.where(np.arange(6)[:, None, None, None] == 4, np.nan, BYTES / 255)
ROWS = BYTES.reshape(6, -1).astype(float)


@pytest.mark.parametrize(
    ("sites", "options", "message"),
    [
        ([BYTES], {}, r"^sites is of type list; give from_arrays a dict"),
        (BYTES, {}, r"^sites is an array of uint8 and shape 6 x 5 x 7 x 3; give from_arrays a dict"),
        ({}, {}, r"^sites has no site; give two or more"),
        ({"a": (BYTES, Y)}, {}, r"^sites has one site, 'a'; give two or more"),
        ({"a": (BYTES, Y), "b": BYTES}, {}, r"^site 'b' is an array of uint8 and shape .*; give a pair \(x, y\)"),
        ({"a": (BYTES, Y), "b": (BYTES,)}, {}, r"^site 'b' is of type tuple; give a pair"),
        ({"a": (BYTES, Y), "b/c": (BYTES, Y)}, {}, r"^site name 'b/c' is not accepted"),
        ({"a": (BYTES, Y), 1: (BYTES, Y)}, {}, r"^site name 1 is not accepted; give a text"),
        ({"a": (BYTES, Y), "b": (BYTES[:4], Y)}, {}, r"^site 'b' has 4 inputs in x and 6 labels in y; give one"),
        ({"a": (BYTES, Y), "b": (BYTES[:0], [])}, {}, r"^x of site 'b' is empty, of shape 0 x 5 x 7 x 3; add data"),
        ({"a": (BYTES, Y), "b": (BYTES[:, 1:], Y)}, {}, r"^inputs are 3 x 5 x 7 of uint8 at site 'a' and 3 x 4 x 7 of"),
        ({"a": (BYTES, Y), "b": (BYTES / 255, Y)}, {}, r"uint8 at site 'a' and 3 x 5 x 7 of float32 at site 'b'"),
        ({"a": (BYTES, Y), "b": (ROWS, Y)}, {}, r"^inputs are 3 x 5 x 7 of uint8 at site 'a' and 105 of float32"),
        ({"a": (BYTES, Y), "b": (WITH_NAN, Y)}, {}, r"^x of site 'b' has NaN or infinite numbers, the first in row 4;"),
        (
            {"a": (ROWS, Y), "b": (np.full_like(ROWS, np.inf), Y)},
            {},
            r"^x of site 'b' has infinite numbers, the first in row 0; rep",
        ),
        (
            {"a": (ROWS, Y), "b": (np.full_like(ROWS, np.nan), Y)},
            {"standardise": False},
            r"^x of site 'b' has NaN .*standardise=True",
        ),
        ({"a": (BYTES, Y), "b": ("x.npy", Y)}, {}, r"^x of site 'b' is 'x.npy'; give images as bytes or floats"),
        ({"a": (BYTES, Y), "b": (None, Y)}, {}, r"^x of site 'b' is None; give images"),
        (
            {"a": (BYTES, Y), "b": (BYTES.astype(str), Y)},
            {},
            r"^x of site 'b' is an array of <U3 and shape 6 x 5 x 7 x 3",
        ),
        ({"a": (BYTES, Y), "b": (BYTES.astype(complex), Y)}, {}, r"^x of site 'b' is an array of complex128"),
        ({"a": (BYTES, Y), "b": (torch.zeros(2, 3).to_sparse(), Y)}, {}, r"^x of site 'b' is a tensor of float32"),
        ({"a": (BYTES, Y), "b": (np.ma.masked_equal(ROWS, 0), Y)}, {}, r"^x of site 'b' is a masked array"),
        ({"a": (BYTES, Y), "b": ([[1, 2], [3]], Y)}, {}, r"^x of site 'b' is nested lists of different lengths"),
        ({"a": (BYTES, Y), "b": (Y, Y)}, {}, r"^x of site 'b' has shape 6; give images"),
        (
            {"a": (BYTES, Y), "b": (BYTES.astype(int) * 9, Y)},
            {},
            r"^x of site 'b' has pixels from 0 to \d{4}; give bytes",
        ),
        (
            {"a": (BYTES, Y), "b": (BYTES.astype("u2") * 9, Y)},
            {},
            r"^x of site 'b' has pixels from 0 to \d{4}; give bytes",
        ),
        ({"a": (BYTES, Y), "b": (BYTES > 9, Y)}, {}, r"^x of site 'b' has pixels true and false"),
        ({"a": (BYTES, Y), "b": (BYTES, np.eye(6))}, {}, r"^y of site 'b' has shape 6 x 6; .*give y.argmax\(1\)"),
        (
            {"a": (BYTES, Y), "b": (BYTES, RNG.random(6))},
            {},
            r"^label 0 of y of site 'b' is 0.\d+; .* regression is not",
        ),
        (
            {"a": (BYTES, Y), "b": (BYTES, [np.nan] * 6)},
            {},
            r"^label 0 of y of site 'b' is nan; give a whole number, a text",
        ),
        ({"a": (BYTES, Y), "b": (BYTES, [None] * 6)}, {}, r"^label 0 of y of site 'b' is None"),
        ({"a": (BYTES, Y), "b": (BYTES, 3)}, {}, r"^y of site 'b' is of type int"),
        (
            {"a": (BYTES, Y), "b": (BYTES, list("abcabc"))},
            {},
            r"^labels are of type int at site 'a' and of type str at",
        ),
        ({"a": (BYTES, [1] * 6), "b": (BYTES, [1] * 6)}, {}, r"^all labels are 1; give data of two classes or more"),
        ({"a": (ROWS.T, range(0)), "b": (ROWS, Y)}, {}, r"^y of site 'a' is of type range; give"),
        ({"a": (ROWS.T, [*range(105)]), "b": (ROWS.T, [*range(105)])}, {}, None),
        (
            {"a": (ROWS.T, [*range(105)]), "b": (ROWS.T, [*range(105, 210)])},
            {},
            r"^y has 210 different labels in 210 rows",
        ),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"classes": ["u", "v"]},
            r"^labels of site 'a' are not in classes: 2; 2 .*0 to 1",
        ),
        (
            {"a": (BYTES, [-1, *Y[1:]]), "b": (BYTES, Y)},
            {"classes": list("uvw")},
            r"^labels of site 'a' are not in classes: -1",
        ),
        (
            {"a": (BYTES, list("uvuvuv")), "b": (BYTES, list("uvuvux"))},
            {"classes": ["u", "v"]},
            r"^labels of site 'b' .*: 'x';",
        ),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"classes": "abc"},
            r"^classes is of type str; give the name of each class",
        ),
        ({"a": (BYTES, Y), "b": (BYTES, Y)}, {"classes": 3}, r"^classes is of type int"),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"classes": ["u", "u", "v"]},
            r"^classes has 3 names: u, u, v; give two or",
        ),
        ({"a": (BYTES, Y), "b": (BYTES, Y)}, {"name": 3}, r"^name is 3; give a text"),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"layout": "HWC"},
            r"^layout='HWC' is not known; give one of NHW, NHWC, NCHW",
        ),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"layout": "NHW"},
            r"^x of site 'a' has shape .*; layout='NHW' needs 3 axes",
        ),
        ({"a": (BYTES, Y), "b": (BYTES, Y)}, {"groups": Y}, r"^groups is of type list; give a dict"),
        ({"a": (BYTES, Y), "b": (BYTES, Y)}, {"groups": {"a": Y}}, r"^groups and sites have different names: .*'b'"),
        ({"a": (BYTES, Y), "b": (BYTES, Y)}, {"groups": {"a": Y, "b": Y, "c": Y}}, r"different names: .*'c'"),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"groups": {"a": Y, "b": Y[1:]}},
            r"^groups\['b'\] has 5 groups for 6 rows",
        ),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"groups": {"a": Y, "b": "abcdef"}},
            r"^groups\['b'\] is of type str; give a",
        ),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"groups": {"a": Y, "b": [*Y[1:], None]}},
            r"^the group in row 5 of .* is None",
        ),
        (
            {"a": (BYTES, Y), "b": (BYTES, Y)},
            {"groups": {"a": Y, "b": [0.5] * 6}},
            r"^the group in row 0 of .* is 0.5; give",
        ),
    ],
)
def test_input_that_cannot_be_right_is_refused_in_one_sentence(sites, options, message):
    if message is None:
        assert len(from_arrays(sites, **options).classes) == 105
        return
    with pytest.raises(DataError, match=message) as caught:
        from_arrays(sites, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300 and "array([" not in str(caught.value)


def test_the_digest_is_of_the_content():
    groups = {"a": Y, "b": Y}
    base = two(BYTES, groups=groups)
    same = from_arrays({"b": (BYTES, Y), "a": (BYTES, Y)}, groups=groups, name="other")
    assert content_digest(base) == content_digest(same) and same.name == "other" and "<Dataset other: " in repr(same)
    assert len(content_digest(base)) == 16 and int(content_digest(base), 16)
    changed = BYTES.copy()
    changed[5, 4, 6, 2] ^= 1
    others = [
        two(changed, groups=groups),
        two(BYTES, Y[::-1], groups=groups),
        two(BYTES, groups=groups, classes=["u", "v", "w"]),
        two(BYTES),
        two(BYTES, groups={"a": Y, "b": Y[::-1]}),
        two(BYTES / np.float32(1), groups=groups),
        two(BYTES.reshape(6, 7, 5, 3), groups=groups),
        from_arrays({"a": (BYTES, Y), "c": (BYTES, Y)}, groups={"a": Y, "c": Y}),
        replace(base, images={**base.images, "b": base.images["a"]}, notes={}),
    ]
    assert len({content_digest(data) for data in (base, *others)}) == 1 + len(others)


def test_each_tensor_is_hashed_once_until_torch_changes_it(monkeypatch):
    data = two(torch.from_numpy(BYTES.copy()))
    first = content_digest(data)
    hashed = []
    monkeypatch.setattr(torch.Tensor, "split", lambda x, size: hashed.append(x) or iter(()))
    assert content_digest(replace(data, name="new")) == first and not hashed
    data["a"].images[0] += 1
    assert content_digest(data) != first and len(hashed) == 2  # the sites share memory


@given(st.lists(st.integers(0, 12), min_size=30, max_size=60), st.integers(0, 5), st.integers(1, 2), st.booleans())
def test_groups_stay_in_one_split(ids, seed, clients, mixed):
    x, y = np.zeros((len(ids), 2)), [n % 2 for n in range(len(ids))]
    data = from_arrays({s: (x, y) for s in "abc"}, groups={s: [f"p{n}" for n in ids] for s in "abc"})
    rules = Rules(0.2, clients, mixing=0.5 * mixed, disjoint="groups", test=0.2)
    try:
        divided = divide(data, "c", seed, rules)
    except DataError:
        return  # too few groups
    parts = [part for held in divided.clients.values() for part in (held.train, held.val, held.test)]
    held = [{(site, data[site].groups[row]) for site, rows in part.items() for row in rows} for part in parts]
    assert sum(map(len, held)) == len(set.union(*held)) and min(map(len, held)) > 0


def test_a_run_on_arrays_learns(tmp_path, monkeypatch):
    y = np.arange(40) % 2
    sites = {s: ((np.full((40, 8, 8, 3), 60) + 120 * y[:, None, None, None]).astype(np.uint8), y) for s in "abc"}
    monkeypatch.setitem(registry.REGISTRY["datasets"], "mine", lambda: from_arrays(sites))
    config = Config(data="mine", target="c", network="convnet(width=4)", train=Train(rounds=4, batch_size=4))
    *_, last = runner.run(runner.prepare(config), tmp_path / "run")
    assert last["scores"]["c"]["test"]["accuracy"] == 1


def test_an_exported_model_of_rows_predicts_a_table_if_its_columns_have_names(tmp_path, monkeypatch):
    y = np.arange(60) % 2
    sites = {s: (np.stack([y * 2.0 + 5, RNG.random(60)], 1), y) for s in "abc"}
    (tmp_path / "new.csv").write_text("\n".join(["x1,x0", *(f"0.5,{row[0]}" for row in sites["a"][0])]))
    for standardise in (True, False):
        made = from_arrays(sites, standardise=standardise)
        monkeypatch.setitem(registry.REGISTRY["datasets"], f"mine{standardise}", lambda made=made: made)
        train = Train(rounds=3, batch_size=4)
        config = Config(data=f"mine{standardise}", target="c", network="mlp(hidden=[8])", train=train)
        out = tmp_path / str(standardise)
        list(runner.run(runner.prepare(config), out / "run"))
        export(out / "run", out / "model")
        if standardise:
            predict(out / "model", [tmp_path / "new.csv"], out / "p.csv")
            lines = (out / "p.csv").read_text().splitlines()
            assert [line.split(",")[1] for line in lines[1:]] == [str(label) for label in y]
        else:
            with pytest.raises(
                DataError, match=r"rows without names of columns \(standardise=False\); call it in Python"
            ):
                predict(out / "model", [tmp_path / "new.csv"], out / "p.csv")


class Items:
    """A torch dataset by duck typing; its items are given."""

    def __init__(self, items, classes=None):
        self.items = items
        if classes:
            self.classes = classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


PICTURES = [Image.fromarray(x) for x in BYTES]


def test_torch_datasets_of_pictures_tensors_and_arrays_are_those_of_arrays():
    want = content_digest(two(BYTES))
    tensor = torch.from_numpy(BYTES).movedim(3, 1)
    for items in (PICTURES, tensor, BYTES, list(tensor.numpy())):
        site = Items(list(zip(items, Y, strict=True)))
        assert content_digest(from_torch({"a": site, "b": site})) == want
    site = TensorDataset(tensor / 255, torch.tensor(Y))
    data = from_torch({"a": site, "b": Subset(site, [3, 4, 5])}, name="mine", groups={"a": Y, "b": Y[3:]})
    assert data["a"].images.dtype == torch.float32 and torch.equal(data["b"].images, (tensor / 255)[3:])
    assert data.name == "mine" and data["b"].groups == ("0", "1", "2")
    rows = TensorDataset(torch.tensor(ROWS), torch.tensor(Y))
    assert content_digest(from_torch({"a": rows, "b": rows})) == content_digest(two(ROWS))


def test_pictures_are_resized_and_become_rgb():
    site = Items([(p.convert("L").resize((9 + n, 4)), n % 2) for n, p in enumerate(PICTURES)])
    assert from_torch({"a": site, "b": site}, size=8)["a"].images.shape == (6, 3, 8, 8)
    with pytest.raises(DataError, match=r"^item 1 of site 'a' has shape 3 x 4 x 10 and .*; give size= to resize all"):
        from_torch({"a": site, "b": site})


def test_labels_are_named_by_the_classes_of_the_datasets():
    one, other = (
        Items([(PICTURES[n], n % 2) for n in range(6)], ["cat", "dog"]),
        Items([(PICTURES[0], 1)], ["ape", "cat"]),
    )
    data = from_torch({"a": one, "b": other})
    assert (
        data.classes == ("ape", "cat", "dog")
        and data["a"].labels.tolist() == [1, 2] * 3
        and data["b"].labels.tolist() == [1]
    )
    data = from_torch({"a": one, "b": Subset(one, [0, 1])})
    assert data.classes == ("cat", "dog") and data["b"].labels.tolist() == [0, 1]
    assert from_torch({"a": one, "b": other}, classes=["u", "v"]).classes == ("u", "v")
    with pytest.raises(DataError, match=r"site 'b' has label 2, and its dataset has 2 classes"):
        from_torch({"a": one, "b": Items([(PICTURES[0], 2)], ["ape", "cat"])})


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


GOOD = Items(list(zip(PICTURES, Y, strict=True)))


@pytest.mark.parametrize(
    ("site", "options", "message"),
    [
        (Stream(), {}, r"^site 'b' is an IterableDataset, which has no length; give torch datasets"),
        (DataLoader(GOOD), {}, r"^site 'b' is a DataLoader; give its dataset, as in loader.dataset"),
        (BYTES, {}, r"^site 'b' is an array of uint8 and shape 6 x 5 x 7 x 3; give torch datasets"),
        (None, {}, r"^site 'b' is None; give torch datasets"),
        ("path", {}, r"^site 'b' is 'path'; give torch datasets"),
        (Items([]), {}, r"^site 'b' has no items"),
        (Items([{"image": 1}]), {}, r"^item 0 of site 'b' is of type dict; give datasets whose items are pairs"),
        (Items([(PICTURES[0], 1, 2)]), {}, r"^item 0 of site 'b' is of type tuple"),
        (
            Items([("x.png", 1)]),
            {},
            r"^item 0 of site 'b' has an image 'x.png'; give a PIL image, a tensor or an array",
        ),
        (Items([(PICTURES[0].convert("I"), 1)]), {}, r"^item 0 of site 'b' has more than 8 bits a pixel"),
        (
            Items([(np.zeros((5, 5, 5)), 1)]),
            {},
            r"^item 0 of site 'b' is an array of float64 .* neither 1 nor 3 channels",
        ),
        (Items([(BYTES[0], 1)]), {"size": 8}, r"^item 0 of site 'b' is an array .* size= resizes PIL images"),
        (Items([(PICTURES[0], 0.5)]), {}, r"^the label of item 0 of site 'b' is 0.5; .*regression"),
        (
            Items([(torch.full((3, 5, 7), torch.nan), 1)]),
            {},
            r"^site 'b' has NaN or infinite numbers, the first in row 0",
        ),
        (
            Items([(PICTURES[0], 1), (BYTES[1] / 255, 1)]),
            {},
            r"^item 1 of site 'b' has shape 3 x 5 x 7 and type float32",
        ),
        (GOOD, {"size": 0}, r"^size is 0; give the side"),
        (GOOD, {"classes": ["u", "v"]}, r"^labels of site 'a' are not in classes: 2"),
        (GOOD, {"groups": {"a": Y}}, r"^groups and sites have different names"),
    ],
)
def test_torch_datasets_that_cannot_be_read_are_refused(site, options, message):
    with pytest.raises(DataError, match=message):
        from_torch({"a": GOOD, "b": site}, **options)


def test_an_error_inside_a_dataset_names_the_item():
    class Broken(Items):
        def __getitem__(self, row):
            return self.items[row] if row < 3 else {}["no"]

    with pytest.raises(DataError, match=r"^item 3 of site 'b' cannot be read \(KeyError: 'no'\)") as caught:
        from_torch({"a": GOOD, "b": Broken(GOOD.items)})
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(DataError, match=r"^sites is of type Items; give from_torch a dict .* to a torch dataset"):
        from_torch(GOOD)


def test_reading_that_takes_long_prints_progress(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "PATIENCE", 0.001)

    class Slow(Items):
        def __getitem__(self, row):
            time.sleep(0.002)
            return self.items[row]

    from_torch({"a": Slow(GOOD.items), "b": GOOD})
    assert "reading a: " in capsys.readouterr().err


def test_the_functions_are_in_the_module_and_not_in_the_registry():
    names = [name for name in dir(fedbeyond.datasets) if name.startswith("from_")]
    assert names == ["from_arrays", "from_huggingface", "from_pandas", "from_torch"]
    assert not set(names) & set(registry.REGISTRY["datasets"])
    with pytest.raises(AttributeError, match="did you mean 'from_arrays'"):
        fedbeyond.datasets.from_array  # noqa: B018
