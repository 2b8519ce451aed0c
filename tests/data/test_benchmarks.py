"""The field's datasets by name: found under any spelling, planned without being there."""

import pytest
from PIL import Image

from fedbeyond import _factory
from fedbeyond.data.datasets._benchmarks import KNOWN, outline
from fedbeyond.errors import ConfigError, DataError, MissingError
from fedbeyond.experiment import plan, registry
from fedbeyond.experiment.config import Bench, Config


def make(root, domains, classes, each=1):
    """A folder of domain/class/image, each image of a shade of its own."""
    for shade, domain in enumerate(domains):
        for tint, name in enumerate(classes):
            place = root / domain / name
            place.mkdir(parents=True, exist_ok=True)
            for i in range(each):
                Image.new("RGB", (9, 7), (shade * 20, tint * 3, i)).save(place / f"{i}.png")
    return root


def dataset(name, root, **options):
    told = "".join(f", {key}={value}" for key, value in {"size": 4, **options}.items())
    return registry.make_one("datasets", f"{name}(root='{root}'{told})")


SPELLINGS = {
    "pacs": ["Art Painting", "CARTOON", "photo", "Sketch"],
    "vlcs": ["Caltech101", "LabelMe", "VOC2007", "SUN09"],
    "officehome": ["Art", "Clipart", "Product", "Real World"],
    "terraincognita": ["L100", "location_38", "Location-43", "46"],
    "domainnet": ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"],
    "digits": ["MNIST", "MNIST_M", "SVHN", "SynthDigits", "USPS"],
    "camelyon17": ["hospital0", "hospital_1", "Hospital 2", "center_3", "4"],
    "midog": ["human breast", "canine lung", "canine-lymphoma", "canine cutaneous mast cell", "human neuroendocrine"],
    "gdrbench": ["APTOS", "DeepDR", "FGADR", "IDRID", "MESSIDOR-2", "RLDR"],
    "isic2019": ["BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias"],
}


@pytest.mark.parametrize("name", KNOWN)
def test_domains_are_found_under_the_names_in_use_and_have_their_usual_ones(name, tmp_path):
    known = KNOWN[name]
    make(tmp_path, SPELLINGS[name], [spelled.upper().replace("_", " ") for spelled in known.classes])
    found = dataset(name, tmp_path)
    assert found.classes == known.classes and tuple(found.images) == known.domains
    for shade, (images, labels) in enumerate(found.images.values()):
        assert images.shape == (len(known.classes), 3, 4, 4) and labels.tolist() == list(range(len(known.classes)))
        assert images[:, 0, 0, 0].tolist() == [shade * 20] * len(known.classes)
        assert images[:, 1, 0, 0].tolist() == [3 * tint for tint in range(len(known.classes))]


def test_the_layout_that_was_recognised_is_told_in_a_line(tmp_path, capfd):
    dataset("pacs", make(tmp_path, KNOWN["pacs"].domains, KNOWN["pacs"].classes))
    assert f"pacs in {tmp_path}: folders of domain/class/image; 28 images\n" in capfd.readouterr().err


def test_every_known_dataset_is_on_the_shelf_with_its_usual_place_and_size():
    for name, known in KNOWN.items():
        options = _factory.options(registry.find("datasets", name))
        assert options["root"].default == f"data/{name}" and options["size"].default == known.size
        assert outline(name) == (name, known.domains, known.classes, (3, known.size, known.size))
        assert len(set(known.classes)) == len(known.classes)
    assert [len(KNOWN[name].classes) for name in ("officehome", "domainnet", "isic2019")] == [65, 10, 8]


def test_class_folders_may_be_numbers(tmp_path):
    make(tmp_path, SPELLINGS["vlcs"], ["0", "1", "2", "3", "4"])
    found = dataset("vlcs", tmp_path)
    assert found.classes[3] == "dog" and found.images["sun"][1].tolist() == [0, 1, 2, 3, 4]
    assert found.images["sun"][0][3, :, 0, 0].tolist() == [60, 9, 0]
    make(tmp_path, ["SUN09"], ["5"])
    with pytest.raises(DataError, match=r"SUN09: folders 5; expected class/image with the classes bird, car"):
        dataset("vlcs", tmp_path)


def test_other_folders_and_lacking_classes_are_left_alone(tmp_path):
    make(tmp_path, [*SPELLINGS["isic2019"], "masks", ".cache"], ["MEL", "NV", "SCC"])
    make(tmp_path, ["MSK"], ["BCC"], each=2)
    (tmp_path / "BCN" / "AK").mkdir()
    found = dataset("isic2019", tmp_path)
    assert found.images["msk"][1].tolist() == [0, 1, 2, 2, 7] and found.images["bcn"][1].tolist() == [0, 1, 7]
    assert len(found.images) == 6 and len(found.classes) == 8


def test_domainnet_has_ten_classes_or_all(tmp_path):
    make(tmp_path, SPELLINGS["domainnet"], ["airplane", "ice cream", "zebra"])
    make(tmp_path, ["sketch"], ["Zigzag"])
    assert dataset("domainnet", tmp_path).images["real"][1].tolist() == [3, 9]
    every = dataset("domainnet", tmp_path, classes="all")
    assert every.classes == ("airplane", "ice cream", "zebra", "Zigzag")
    assert every.images["sketch"][1].tolist() == [0, 1, 2, 3] and every.images["real"][1].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"classes='some' is not valid.*'ten' or 'all'"):
        dataset("domainnet", tmp_path, classes="some")


def test_classes_of_all_domains_that_are_numbers_keep_their_names(tmp_path):
    make(tmp_path, SPELLINGS["domainnet"], ["0", "2", "10"])
    found = dataset("domainnet", tmp_path, classes="all")
    tints = {name: found.images["real"][0][label, 1, 0, 0].item() for label, name in enumerate(found.classes)}
    assert tints == {"0": 0, "2": 3, "10": 6}


def test_what_is_not_there_is_said(tmp_path):
    layout = "domain/class/image with the domains art_painting, cartoon, photo, sketch"
    with pytest.raises(MissingError, match=rf"none: no such folder; expected .*none/{layout}; .*pacs\(root="):
        dataset("pacs", tmp_path / "none")
    with pytest.raises(MissingError, match=rf"no folder of art_painting, .*; found nothing; expected .*{layout}"):
        dataset("pacs", tmp_path)
    make(tmp_path, ["photo", "Cartoon", "kunst", "sketch"], KNOWN["pacs"].classes)
    with pytest.raises(MissingError, match="no folder of art_painting; found Cartoon, kunst, photo, sketch"):
        dataset("pacs", tmp_path)
    make(tmp_path, ["art_painting"], ["train", "test"])
    with pytest.raises(DataError, match=r"art_painting: folders test, train; expected class/image with .* dog, eleph"):
        dataset("pacs", tmp_path)


def test_folders_that_cannot_be_told_apart_or_hold_nothing_are_said(tmp_path):
    make(tmp_path, SPELLINGS["officehome"], ["Bed"])
    make(tmp_path, ["Art"], ["Table", "Tabel"])
    with pytest.raises(DataError, match="Art: folders Tabel; expected class/image"):
        dataset("officehome", tmp_path)
    (tmp_path / "Art" / "Tabel").rename(tmp_path / "Art" / "Ta-ble")
    with pytest.raises(DataError, match="Ta-ble and Table are both folders of Table; keep one"):
        dataset("officehome", tmp_path)
    for file in (tmp_path / "Art").rglob("*.png"):
        file.unlink()
    with pytest.raises(DataError, match="Art: no images; expected class/image"):
        dataset("officehome", tmp_path)
    (tmp_path / "Real_World").mkdir()
    with pytest.raises(DataError, match="Real World and Real_World are both folders of real_world"):
        dataset("officehome", tmp_path)


def test_an_outline_is_what_a_spelling_says():
    assert outline("pacs(size=96)").shape == (3, 96, 96)
    assert len(outline("domainnet(classes=all)").classes) == 345 and len(outline("domainnet").classes) == 10
    assert outline("styles") is None
    assert outline("digits").domains == ("mnist", "mnist_m", "svhn", "synth", "usps")


def test_a_plan_without_data_is_that_with_data_but_for_the_images(tmp_path):
    def told(root):
        methods = ("fedavg", "scaffold+ga")
        return plan.plan(Config(data=f"pacs(root='{root}', size=8)", bench=Bench(methods=methods))).splitlines()

    make(tmp_path / "there", SPELLINGS["pacs"], KNOWN["pacs"].classes, each=2)
    there, missing = told(tmp_path / "there"), told(tmp_path / "none")
    assert "  cartoon              13 / 1   or unseen, all 14   majority class 14%" in there
    assert f"data: not found ({tmp_path / 'none'}: no such folder; expected" in missing[1]
    assert missing[1].endswith("planned from the known facts of pacs")
    assert "domains: art_painting, cartoon, photo, sketch" in missing
    assert there[there.index("") - 2 : there.index("")] == missing[2:4] and "8 runs of 20 rounds" in missing[0]
    first = next(line for line in there if line.startswith("fedavg: convnet with"))
    assert there[there.index(first) :] == missing[missing.index(first) :] and "control" in " ".join(missing)


def test_a_plan_without_data_still_refuses_unknown_names(tmp_path):
    data = f"pacs(root='{tmp_path / 'none'}')"
    with pytest.raises(ConfigError, match="no domain 'fresco'; choose the unseen domain among art_painting"):
        plan.plan(Config(data=data, target="fresco"))
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        plan.plan(Config(data=data, method="fedavgg"))
    with pytest.raises(ConfigError, match="did you mean 'resnet18'"):
        plan.plan(Config(data=data, network="resnet19"))
    with pytest.raises(DataError, match="no such folder"):
        plan.plan(Config(data=f"folder(root='{tmp_path / 'none'}')"))
