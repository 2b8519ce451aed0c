"""Every layout in which the field's datasets are kept: a tiny copy of each is recognised and read."""

import csv
import gzip
import json
import struct

import numpy as np
import pytest
from PIL import Image

from fedbeyond.data.datasets._benchmarks import KNOWN, locate
from fedbeyond.data.datasets.readers import recognise
from fedbeyond.data.datasets.readers.midog import square
from fedbeyond.data.storage import decode
from fedbeyond.errors import ConfigError, DataError, MissingError
from fedbeyond.experiment import registry

PACS, VLCS = KNOWN["pacs"], KNOWN["vlcs"]


def picture(path, red=0, green=0, blue=0):
    """One pixel as a portable pixmap, quick to write; an image is opened by its content, not by its ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"P6 1 1 255\n" + bytes((red, green, blue)))


def tree(root, domains, classes, each=2, part=""):
    """domain/class/image, or domain/part/class/image; an image's colors are its domain, class and number."""
    for red, domain in enumerate(domains):
        for green, name in enumerate(classes):
            for blue in range(each):
                picture(root / domain / part / name / f"{part}{blue}.png", red, green, blue)


def write_lists(folder, domains, classes, base, parts, line="{domain}/{name}/{blue}.png", ending="_kfold.txt"):
    """A list for each part of each domain; `parts` says which images of a class are in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for domain in domains:
        for part, members in parts.items():
            lines = [
                f"{line.format(domain=domain, name=name, blue=blue)} {label + base}\n"
                for label, name in enumerate(classes)
                for blue in members
            ]
            (folder / f"{domain}_{part}{ending}").write_text("".join(lines))


def decoded(listing, size):
    """The images and labels of each domain, decoded without the cache."""
    return {
        domain: (np.stack([decode.decoded(pixels, row, size) for row in range(len(labels))]), labels)
        for domain, (pixels, labels, *_) in listing.domains.items()
    }


def is_right(listing, known, each=2, domains=None):
    """Whether every image has the colors of its domain and label."""
    assert tuple(listing.domains) == (domains or known.domains) and listing.classes == known.classes
    for red, (images, labels) in enumerate(decoded(listing, 4).values()):
        assert labels.tolist() == [label for label in range(len(known.classes)) for _ in range(each)]
        assert np.unique(images[:, 0, 0, 0]).tolist() == [red]
        assert images[:, 1, 0, 0].tolist() == labels.tolist()


KFOLD = {"train": [0], "crossval": [1], "test": [0, 1]}


def test_folders_may_lie_one_level_further_down(tmp_path):
    tree(tmp_path / "kfold", PACS.domains, PACS.classes)
    listing = locate("pacs", PACS, str(tmp_path))
    is_right(listing, PACS)
    assert listing.layout == "folders of domain/class/image" and listing.domains["photo"].folds == {}


def test_pacs_as_it_is_given_out_has_lists_with_labels_from_1_and_test_is_all(tmp_path):
    tree(tmp_path / "raw_images", PACS.domains, PACS.classes)
    splits = tmp_path / "raw_images" / "Train val splits and h5py files pre-read"
    write_lists(splits, PACS.domains, PACS.classes, 1, KFOLD)
    listing = locate("pacs", PACS, str(tmp_path))
    is_right(listing, PACS)
    folds = {part: rows.tolist() for part, rows in listing.domains["cartoon"].folds.items()}
    assert folds == {"train": list(range(0, 14, 2)), "val": list(range(1, 14, 2)), "test": list(range(14))}
    assert "images in raw_images, labels from 1" in listing.layout


def test_dassls_pacs_is_without_the_file_that_it_leaves_out(tmp_path):
    tree(tmp_path / "images", PACS.domains, PACS.classes)
    write_lists(tmp_path / "splits", PACS.domains, PACS.classes, 1, {"train": [0], "crossval": [1]})
    is_right(locate("pacs", PACS, str(tmp_path)), PACS)
    picture(tmp_path / "images" / "sketch" / "dog" / "n02103406_4068-1.png")
    with (tmp_path / "splits" / "sketch_train_kfold.txt").open("a") as file:
        file.write("sketch/dog/n02103406_4068-1.png 1\n")
    listing = locate("pacs", PACS, str(tmp_path))
    is_right(listing, PACS)
    assert listing.layout.endswith("without sketch/dog/n02103406_4068-1.png as in Dassl")


@pytest.mark.parametrize(
    "line", ["/home/x/data/PACS/kfold/{domain}/{name}/{blue}.png", "PACS/{domain}/{name}/{blue}.png"]
)
def test_jigens_lists_begin_with_0_and_with_folders_of_another_computer(line, tmp_path):
    tree(tmp_path, PACS.domains, PACS.classes)
    write_lists(tmp_path / "txt_lists", PACS.domains, PACS.classes, 0, {"train": [0, 1], "test": [0, 1]}, line, ".txt")
    listing = locate("pacs", PACS, str(tmp_path))
    is_right(listing, PACS)
    assert "images in the root folder" in listing.layout and "from 1" not in listing.layout


@pytest.mark.parametrize("line", ["{domain}/{name}/{blue}.png", "/home/you/PACS/kfold/{domain}/{name}/{blue}.png"])
def test_folders_may_be_spelled_otherwise_than_in_the_lists(line, tmp_path):
    tree(tmp_path / "images", ["Art Painting", "CARTOON", "photo", "Sketch"], [name.title() for name in PACS.classes])
    write_lists(tmp_path / "splits", PACS.domains, PACS.classes, 1, KFOLD, line)
    listing = locate("pacs", PACS, str(tmp_path))
    is_right(listing, PACS)
    assert listing.domains["art_painting"].pixels.names[0] == "images/Art Painting/Dog/0.png"


def test_lists_may_name_images_elsewhere_by_absolute_paths(tmp_path):
    tree(tmp_path / "far", PACS.domains, PACS.classes)
    line = f"{tmp_path}/far/{{domain}}/{{name}}/{{blue}}.png"
    write_lists(tmp_path / "near", PACS.domains, PACS.classes, 0, {"train": [0, 1]}, line, ".txt")
    is_right(locate("pacs", PACS, str(tmp_path / "near")), PACS)


def test_labels_from_1_are_known_by_their_range_where_paths_have_no_class_folder(tmp_path):
    for red, domain in enumerate(PACS.domains):
        for green in range(7):
            picture(tmp_path / domain / f"{green}.png", red, green)
    line = "{domain}/{name}.png"
    for base in (0, 1):
        numbers = [str(label) for label in range(7)]
        write_lists(tmp_path, PACS.domains, numbers, base, {"train": [0]}, line, ".txt")
        is_right(locate("pacs", PACS, str(tmp_path)), PACS, each=1)
    write_lists(tmp_path, PACS.domains, numbers, 2, {"train": [0]}, line, ".txt")
    with pytest.raises(DataError, match="labels 2 to 8; expected 0 to 6 or 1 to 7: dog, elephant"):
        locate("pacs", PACS, str(tmp_path))


def test_labels_that_contradict_the_folder_are_named(tmp_path):
    tree(tmp_path, PACS.domains, PACS.classes)
    write_lists(tmp_path, PACS.domains, PACS.classes, 1, KFOLD)
    path = tmp_path / "photo_test_kfold.txt"
    path.write_text(path.read_text().replace("house/0.png 6", "house/0.png 3").replace("dog/1.png 1", "dog/1.png 2"))
    said = (
        r"photo_test_kfold.txt: labels contradict .* photo/dog/1.png is 2, expected 1 \(dog\); photo/house/0.png is 3"
    )
    with pytest.raises(DataError, match=said):
        locate("pacs", PACS, str(tmp_path))
    path.write_text("photo/dog/1.png\n")
    with pytest.raises(DataError, match=r"line 1: 'photo/dog/1.png'; expected a path, a blank and a number"):
        locate("pacs", PACS, str(tmp_path))


def test_lists_without_their_images_are_said(tmp_path):
    write_lists(tmp_path, PACS.domains, PACS.classes, 1, KFOLD)
    with pytest.raises(MissingError, match=r"kfold.txt lists art_painting/dog/1.png, which does not exist in"):
        locate("pacs", PACS, str(tmp_path))


def test_pacs_as_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py", reason="reading HDF5 needs h5py")
    for red, domain in enumerate(PACS.domains):
        for part, many in {"train": 1, "val": 1, "test": 2}.items():
            labels = np.repeat(np.arange(1, 8), many)
            images = np.zeros((len(labels), 5, 5, 3), np.uint8)
            images[..., 0], images[..., 1] = red, (labels - 1)[:, None, None]
            with h5py.File(tmp_path / f"{domain}_{part}.hdf5", "w") as file:
                file["images"], file["labels"] = images, labels
    listing = locate("pacs", PACS, str(tmp_path))
    records = listing.domains["cartoon"]
    assert records.labels.tolist() == [*range(7), *range(7)] and records.pixels[:, 0, 0, 1].tolist() == [*range(7)] * 2
    assert {part: len(rows) for part, rows in records.folds.items()} == {"train": 7, "val": 7, "test": 14}
    assert decoded(listing, 4)["sketch"][0][0, :, 0, 0].tolist() == [3, 0, 0]
    (tmp_path / "photo_train.hdf5").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"photo_train.hdf5: cannot be read .* expected HDF5 with images and labels"):
        locate("pacs", PACS, str(tmp_path))


def test_any_known_dataset_may_be_arrays_with_labels_of_its_classes(tmp_path):
    for red, domain in enumerate(PACS.domains):
        images = np.full((7, 5, 5, 3), red, np.uint8)
        images[..., 1] = np.arange(7)[:, None, None]
        np.savez(tmp_path / f"{domain.title()}.npz", x_train=images, y_train=np.arange(7))
    listing = locate("pacs", PACS, str(tmp_path))
    is_right(listing, PACS, each=1)
    assert listing.domains["photo"].folds["train"].tolist() == list(range(7))
    np.savez(tmp_path / "Photo.npz", x=images, y=np.arange(1, 8))
    with pytest.raises(DataError, match=r"Photo.npz: labels 0 to 7; expected 0 to 6; fix the labels"):
        locate("pacs", PACS, str(tmp_path))


def write_table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def test_pacs_in_the_manner_of_wilds(tmp_path):
    top = tmp_path / "pacs_v1.0"
    tree(top / "images", PACS.domains, PACS.classes)
    official = {"photo": ("test", "test"), "art_painting": ("val", "val")}
    rows = [
        {"split": official.get(domain, ("train", "id_val"))[blue], "domain_remapped": 0,
         "domain": domain.replace("_", "-"), "category": name.title(), "y": label,
         "path": f"images/{domain}/{name}/{blue}.png"}
        for domain in PACS.domains for label, name in enumerate(PACS.classes) for blue in range(2)
    ]  # fmt: skip
    write_table(top / "metadata.csv", rows)
    listing = locate("pacs", PACS, str(tmp_path))
    is_right(listing, PACS)
    assert listing.domains["photo"].folds == {} and len(listing.domains["sketch"].folds["val"]) == 7
    write_table(top / "metadata.csv", [{**rows[0], "category": "cat"}])
    with pytest.raises(DataError, match="category 'cat'; expected one of dog"):
        locate("pacs", PACS, str(tmp_path))


def test_vlcs_in_parts_with_classes_by_number(tmp_path):
    names = ["CALTECH", "LABELME", "PASCAL", "SUN"]
    for part in ("train", "crossval", "test", "full"):
        tree(tmp_path / "VLCS", names, list("01234"), each=1, part=part)
    listing = locate("vlcs", VLCS, str(tmp_path))
    is_right(listing, VLCS, each=3)
    assert {part: len(rows) for part, rows in listing.domains["sun"].folds.items()} == {"train": 5, "val": 5, "test": 5}
    records = listing.domains["sun"]
    assert all("/test/" in records.pixels.names[row] for row in records.folds["test"])


def test_vlcs_may_have_no_part_but_full_or_train_and_test(tmp_path):
    tree(tmp_path / "a", ["CALTECH", "LABELME", "PASCAL", "SUN"], list("01234"), part="full")
    listing = locate("vlcs", VLCS, str(tmp_path / "a"))
    is_right(listing, VLCS)
    assert listing.domains["sun"].folds == {}
    for part in ("train", "test"):
        tree(tmp_path / "b", ["Caltech101", "LabelMe", "VOC2007", "SUN09"], VLCS.classes, each=1, part=part)
    listing = locate("vlcs", VLCS, str(tmp_path / "b"))
    is_right(listing, VLCS)
    assert set(listing.domains["sun"].folds) == {"train", "test"}


def test_officehome_in_dassls_parts_and_with_the_lists_of_ga(tmp_path):
    known = KNOWN["officehome"]
    for part in ("train", "val"):
        tree(tmp_path / "a" / "office_home_dg", ["art", "clipart", "product", "real_world"], known.classes, 1, part)
    is_right(locate("officehome", known, str(tmp_path / "a")), known)
    names = ["Art", "Clipart", "Product", "Real_World"]
    tree(tmp_path / "b", names, known.classes, 1)
    for domain in names:  # numbers in the order in which a computer happened to list the folders
        lines = [f"{domain}/{name}/0.png {(label * 7) % 65}\n" for label, name in enumerate(known.classes)]
        (tmp_path / "b" / f"{domain}_img_label_list.txt").write_text("".join(lines))
    listing = locate("officehome", known, str(tmp_path / "b"))
    is_right(listing, known, each=1)
    assert listing.layout.startswith("lists of files") and listing.domains["art"].folds == {}


def test_domainnet_by_lists_with_all_classes_or_ten(tmp_path):
    known, classes = KNOWN["domainnet"], ["aircraft_carrier", "bird", "train", "zebra"]
    tree(tmp_path, known.domains, classes)
    write_lists(tmp_path / "splits", known.domains, classes, 0, {"train": [0], "test": [1]}, ending=".txt")
    listing = locate("domainnet", known, str(tmp_path))
    assert listing.domains["real"].labels.tolist() == [0, 0, 9, 9] and len(listing.domains["real"].folds["test"]) == 2
    is_right(recognise(tmp_path, known._replace(classes=(), subset=False)), known._replace(classes=tuple(classes)))


def test_files_that_could_run_code_are_not_opened_and_it_is_said_how_to_convert_them(tmp_path):
    (tmp_path / "DomainNet").mkdir()
    (tmp_path / "DomainNet" / "clipart_train.pkl").write_bytes(b"")
    with pytest.raises(MissingError, match=r"\.pkl files are never opened.* write their paths and labels into lists"):
        locate("domainnet", KNOWN["domainnet"], str(tmp_path))


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def digits(shade, colors=3):
    """One image of each digit, of the shade of its collection and of its own."""
    images = np.zeros((10, 6, 6, 3), np.uint8)
    images[..., 0], images[..., 1] = shade, np.arange(10)[:, None, None]
    return (images if colors == 3 else images[..., 1]), np.arange(10)


DIGITS = KNOWN["digits"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_digits_as_idx(ending, tmp_path):
    images, labels = digits(0, 1)
    for start, times in {"train": 2, "t10k": 1}.items():
        write_idx(tmp_path / "MNIST" / "raw" / f"{start}-images-idx3-ubyte{ending}", np.tile(images, (times, 1, 1)))
        write_idx(
            tmp_path / "MNIST" / "raw" / f"{start}-labels-idx1-ubyte{ending}", np.tile(labels, times).astype("u1")
        )
    tree(tmp_path, ["USPS"], list("0123456789"), 1)
    listing = locate("digits", DIGITS, str(tmp_path))
    assert listing.layout == "mnist as idx, usps as folders" and list(listing.domains) == ["mnist", "usps"]
    mnist = listing.domains["mnist"]
    assert mnist.pixels[13, 0, 0] == 3 and mnist.labels.tolist() == [*range(10)] * 3
    assert mnist.folds["test"].tolist() == list(range(20, 30))
    path = tmp_path / "MNIST" / "raw" / f"t10k-images-idx3-ubyte{ending}"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.*download it again"):
        locate("digits", DIGITS, str(tmp_path))


def test_digits_as_mat(tmp_path):
    from scipy import io

    images, labels = digits(0)
    ten = np.where(labels == 0, 10, labels)[:, None]
    hot, grey = np.eye(10)[labels], digits(0, 1)[0]
    for part in ("train", "test"):
        io.savemat(tmp_path / f"svhn_{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": ten})
        io.savemat(tmp_path / f"synth_{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": labels[:, None]})
    io.savemat(tmp_path / "svhn_extra_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": ten})  # never read
    both = {"label_train": hot, "label_test": hot}
    io.savemat(tmp_path / "mnist_data.mat", {"train_32": grey, "test_32": grey[..., None], "train_28": grey, **both})
    io.savemat(tmp_path / "mnistm_with_label.mat", {"train": images, "test": images, **both})
    usps = np.empty((2, 2), object)
    for row in range(2):
        usps[row, 0], usps[row, 1] = grey[:, None] / 255.0, labels[:, None]
    usps[0, 0][0] = 1.0  # as bright as can be: pixels are between 0 and 1
    usps[1, 0][0] = 1.0
    io.savemat(tmp_path / "usps_28x28.mat", {"dataset": usps})
    listing = locate("digits", DIGITS, str(tmp_path))
    assert tuple(listing.domains) == DIGITS.domains
    for domain, records in listing.domains.items():
        assert records.labels.tolist() == [*range(10)] * 2, domain
        flat = records.pixels[..., 1] if records.pixels.ndim == 4 else records.pixels
        assert flat[11:, 0, 0].tolist() == [*range(1, 10)], domain
        assert records.folds["test"].tolist() == list(range(10, 20))


def test_digits_as_npz_and_any_domains_as_npz(tmp_path):
    images, labels = digits(7)
    for name in ("mnist", "mnistm", "usps"):
        np.savez(tmp_path / f"{name}.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    listing = locate("digits", DIGITS, str(tmp_path))
    assert list(listing.domains) == ["mnist", "mnist_m", "usps"] and "mnist_m as npz" in listing.layout
    found = registry.make_one("datasets", f"npz(root='{tmp_path}', size=4)")
    assert found.classes == tuple("0123456789") and list(found.images) == ["mnist", "mnistm", "usps"]
    assert found.images["usps"][0].shape == (20, 3, 4, 4) and found.images["usps"][0][3, :, 0, 0].tolist() == [7, 3, 0]


def test_npz_may_name_its_classes_and_what_is_wrong_is_said(tmp_path):
    images = np.random.default_rng(0).random((4, 3, 5, 5))
    with pytest.raises(DataError, match=r"no \.npz in it; expected a file domain\.npz"):
        registry.make_one("datasets", f"npz(root='{tmp_path}')")
    np.savez(tmp_path / "a.npz", x=images, y=[0, 1, 1, 0], classes=["cat", "dog"])
    np.savez(tmp_path / "b.npz", x=np.zeros((4, 5, 5)), y=[0, 1, 1, 0])
    found = registry.make_one("datasets", f"npz(root='{tmp_path}', size=5)")
    assert found.classes == ("cat", "dog")
    assert found.images["a"][0][0, 2, 1, 1].item() == round(images[0, 2, 1, 1] * 255)
    for wrong, said in {
        "images of shape": {"x": np.zeros((4, 5)), "y": [0] * 4},
        "3 images and 4 labels": {"x": np.zeros((3, 5, 5)), "y": [0] * 4},
        "labels up to 2, but 2 classes": {"x": np.zeros((1, 5, 5)), "y": [2]},
        "pixels from -1.0": {"x": np.full((1, 5, 5), -1.0), "y": [0]},
        "pixels from nan": {"x": np.full((1, 5, 5), np.nan), "y": [0]},
        "has z; expected x_train": {"z": [0]},
        "differ in their classes": {"x": np.zeros((1, 5, 5)), "y": [0], "classes": ["x"]},
        "cannot be read as .npz": {"x": np.array([{}]), "y": [0]},
    }.items():
        np.savez(tmp_path / "b.npz", **said)
        with pytest.raises(DataError, match=wrong):
            registry.make_one("datasets", f"npz(root='{tmp_path}')")
    for root, said in {"": "needs a path", str(tmp_path / "none"): "no such folder"}.items():
        with pytest.raises(DataError, match=said):
            registry.make_one("datasets", f"npz(root='{root}')")


def test_camelyon17_by_hospital_with_patients(tmp_path):
    known, rows = KNOWN["camelyon17"], []
    for center in range(5):
        for tumor in range(2):
            for split in range(2):
                patient = f"{center * 10 + split:03}"
                slide = f"patient_{patient}_node_4"
                name = f"patch_{slide}_x_{tumor}_y_9.png"
                picture(tmp_path / "camelyon17_v1.0" / "patches" / slide / name, center, tumor)
                place = {"patient": patient.lstrip("0"), "node": 4, "x_coord": tumor, "y_coord": 9}
                rows.append({**place, "tumor": tumor, "center": center, "split": split if center != 2 else 0})
    write_table(tmp_path / "camelyon17_v1.0" / "metadata.csv", rows)
    listing = locate("camelyon17", known, str(tmp_path))
    is_right(listing, known)
    assert listing.domains["hospital_3"].groups == ("030", "031", "030", "031")
    assert listing.domains["hospital_3"].folds["val"].tolist() == [1, 3] and listing.domains["hospital_2"].folds == {}
    write_table(tmp_path / "camelyon17_v1.0" / "metadata.csv", [{**rows[0], "tumor": 5}])
    with pytest.raises(DataError, match="line 2: domain '0' and label 5"):
        locate("camelyon17", known, str(tmp_path))
    write_table(tmp_path / "camelyon17_v1.0" / "metadata.csv", rows[:8])
    with pytest.raises(
        MissingError, match="no line of hospital_2, hospital_3, hospital_4; found hospital_0, hospital_1"
    ):
        locate("camelyon17", known, str(tmp_path))


def midog_file(root, kinds, corners=True, with_kind=True):
    """One slide of each kind, with one cell of either class."""
    images, annotations = [], []
    for number, (case, kind) in enumerate(kinds.items()):
        Image.new("RGB", (200, 150), (number, 0, 0)).save(root / f"{case:03}.tiff")
        images.append({"id": case, "file_name": f"{case:03}.tiff", "width": 200, "height": 150})
        if with_kind:
            images[-1]["tumor_type"] = kind
        for category in (1, 2):
            box = [50, 60, 100, 110] if corners else [50, 60, 50, 50]
            annotations.append({"id": len(annotations), "image_id": case, "category_id": category, "bbox": box})
    categories = [{"id": 1, "name": "mitotic figure"}, {"id": 2, "name": "hard negative"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "MIDOG.json").write_text(json.dumps(content))


KINDS = {7: "human breast cancer", 151: "canine lung cancer", 195: "canine lymphoma",
         250: "canine cutaneous mast cell tumor", 354: "human neuroendocrine tumor"}  # fmt: skip


@pytest.mark.parametrize(("corners", "with_kind"), [(True, True), (False, True), (True, False)])
def test_midog_has_a_square_around_each_cell(corners, with_kind, tmp_path):
    known = KNOWN["midog"]
    midog_file(tmp_path, KINDS, corners, with_kind)
    listing = locate("midog", known, str(tmp_path))
    assert tuple(listing.domains) == known.domains
    for red, (domain, (images, labels)) in enumerate(decoded(listing, 4).items()):
        assert sorted(labels.tolist()) == [0, 1] and np.unique(images[:, 0]).tolist() == [red], domain
    assert listing.domains["canine_lung"].pixels.boxes == ((43, 53, 107, 117),) * 2
    assert listing.domains["canine_lung"].groups == ("151", "151")


def test_midog_plus_plus_has_two_kinds_more(tmp_path):
    midog_file(tmp_path, {**KINDS, 400: "human melanoma", 500: "canine soft tissue sarcoma"})
    assert list(locate("midog", KNOWN["midog"], str(tmp_path)).domains)[5:] == [
        "human_melanoma",
        "canine_soft_tissue_sarcoma",
    ]


def test_midogs_kinds_may_be_in_a_table_and_what_is_missing_is_said(tmp_path):
    midog_file(tmp_path, dict(zip(range(600, 605), KINDS.values(), strict=True)), with_kind=False)
    with pytest.raises(MissingError, match=r"no cell of human_breast, .*; found unknown"):
        locate("midog", KNOWN["midog"], str(tmp_path))
    lines = [f"{600 + place};train;{kind}\n" for place, kind in enumerate(KINDS.values())]
    (tmp_path / "datasets_xvalidation.csv").write_text("Slide;Dataset;Tumor\n" + "".join(lines))
    assert tuple(locate("midog", KNOWN["midog"], str(tmp_path)).domains) == KNOWN["midog"].domains
    for path in tmp_path.glob("*.tiff"):
        path.unlink()
    with pytest.raises(MissingError, match="none of its 5 images exists"):
        locate("midog", KNOWN["midog"], str(tmp_path))


def test_annotations_that_cannot_be_understood_are_said(tmp_path):
    (tmp_path / "MIDOG.json").write_text("{")
    with pytest.raises(DataError, match=r"MIDOG.json: not valid JSON"):
        locate("midog", KNOWN["midog"], str(tmp_path))
    midog_file(tmp_path, KINDS)
    content = json.loads((tmp_path / "MIDOG.json").read_text())
    for key, wrong, said in (
        ("annotations", [{"id": 7, "bbox": [0, 0, 9, 9]}], r"not in COCO format \(KeyError: 'image_id'\)"),
        (
            "annotations",
            [{"id": 7, "image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9]}],
            "annotation 7 has an unknown image",
        ),
        ("categories", [{"id": 1, "name": "cell"}], "category 'cell'; expected mitotic figure"),
    ):
        (tmp_path / "MIDOG.json").write_text(json.dumps({**content, key: wrong}))
        with pytest.raises(DataError, match=said):
            locate("midog", KNOWN["midog"], str(tmp_path))


def test_a_square_stays_within_its_image():
    assert square([0, 0, 50, 50], True, {"width": 100, "height": 80}) == (0, 0, 64, 64)
    assert square([50, 30, 100, 80], True, {"width": 100, "height": 80}) == (36, 16, 100, 80)
    assert square([0, 0, 50, 50], True, {}) == (-7, -7, 57, 57)


def test_gdrbench_has_lists_and_collections_that_are_left_alone(tmp_path):
    known, names = KNOWN["gdrbench"], ["APTOS", "DEEPDR", "FGADR", "IDRID", "MESSIDOR", "RLDR"]
    tree(tmp_path / "images", [*names, "DDR"], known.classes)
    write_lists(tmp_path / "splits", [*names, "DDR"], known.classes, 0, {"train": [0], "crossval": [1]}, ending=".txt")
    listing = locate("gdrbench", known, str(tmp_path))
    is_right(listing, known)
    assert listing.domains["idrid"].folds["val"].tolist() == [1, 3, 5, 7, 9]


def test_isic2019_by_center_with_folds(tmp_path):
    known, rows = KNOWN["isic2019"], []
    for center in range(6):
        for target in range(8):
            for number, fold in enumerate(("train", "test")):
                image = f"ISIC_{center}{target}{number}"
                picture(tmp_path / "ISIC_2019_Training_Input_preprocessed" / f"{image}.jpg", center, target)
                rows.append(
                    {"image": image, "target": target, "center": center, "fold": fold, "fold2": f"{fold}_{center}"}
                )
    write_table(tmp_path / "train_test_split", rows)
    listing = locate("isic2019", known, str(tmp_path))
    assert tuple(listing.domains) == known.domains
    records = listing.domains["msk"]
    assert records.labels.tolist() == [label for label in range(8) for _ in range(2)]
    assert records.folds["test"].tolist() == list(range(1, 16, 2)) and "ISIC_431" in records.pixels.names[7]
    (tmp_path / "ISIC_2019_Training_Input_preprocessed").rename(tmp_path / "images")
    with pytest.raises(MissingError, match="no folder of images beside it"):
        locate("isic2019", known, str(tmp_path))


def test_a_library_that_is_missing_is_said_with_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    for domain in PACS.domains:
        (tmp_path / f"{domain}_train.hdf5").touch()
    with pytest.raises(ConfigError, match=r"reading HDF5 needs h5py; install it with: pip install 'fedbeyond\[data\]'"):
        locate("pacs", PACS, str(tmp_path))


@pytest.mark.parametrize("name", ["pacs", "vlcs", "domainnet", "gdrbench"])
def test_images_are_in_the_same_order_whatever_the_layout(name, tmp_path):
    known = KNOWN[name]
    tree(tmp_path / "a", known.domains, known.classes, 3)
    tree(tmp_path / "b" / "images", known.domains, known.classes, 3)
    write_lists(tmp_path / "b", known.domains, known.classes, 0, {"train": [2, 0], "val": [1]}, ending=".txt")
    one, other = recognise(tmp_path / "a", known), recognise(tmp_path / "b", known)
    for domain in known.domains:
        plain = [f"images/{path}" for path in one.domains[domain].pixels.names]
        assert plain == list(other.domains[domain].pixels.names)
