"""The field's datasets by name: their domains, classes and usual size, and how to find them in a folder.

The names of domains and classes differ from copy to copy, so folders are matched without regard to case, `-`, `_` and
blanks, and under the other names that are in use.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ..errors import DataError, MissingError
from ..spelling import parse
from .cache import load
from .domains import Domains, listing, records
from .listing import Listing

Size = Annotated[int, Field(gt=0)]
Names = tuple[str, ...]

EVERY = 345  # classes of the whole of DomainNet


class Known(NamedTuple):
    """A dataset as the field knows it."""

    domains: Names
    classes: Names
    size: int = 224
    others: Mapping[str, Names] = {}  # other names of domains and classes
    part: bool = False  # the classes are some of those in the folders


class Outline(NamedTuple):
    """What is known of a dataset without having it."""

    name: str
    domains: Names
    classes: Names
    shape: tuple[int, int, int]


KNOWN = {
    "pacs": Known(
        ("art_painting", "cartoon", "photo", "sketch"),
        ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    ),
    "vlcs": Known(
        ("caltech", "labelme", "pascal", "sun"),
        ("bird", "car", "chair", "dog", "person"),
        others={"caltech": ("caltech101",), "pascal": ("voc2007",), "sun": ("sun09",)},
    ),
    "officehome": Known(
        ("art", "clipart", "product", "real_world"),
        (
            "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar",
            "Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser",
            "Exit_Sign", "Fan", "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer",
            "Helmet", "Kettle", "Keyboard", "Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse",
            "Mug", "Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer", "Push_Pin",
            "Radio", "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda",
            "Speaker", "Spoon", "TV", "Table", "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam",
        ),
    ),
    "terraincognita": Known(
        ("location_100", "location_38", "location_43", "location_46"),
        ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel"),
        others={f"location_{number}": (f"l{number}", number) for number in ("100", "38", "43", "46")},
    ),
    "domainnet": Known(
        ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        (
            "bird", "feather", "headphones", "ice_cream", "teapot",
            "tiger", "whale", "windmill", "wine_glass", "zebra",
        ),
        part=True,
    ),
    "digits": Known(
        ("mnist", "mnist_m", "svhn", "synth", "usps"),
        tuple("0123456789"),
        size=32,
        others={"synth": ("syn", "synth_digits")},
    ),
    "camelyon17": Known(
        tuple(f"hospital_{number}" for number in range(5)),
        ("normal", "tumor"),
        size=96,
        others={f"hospital_{number}": (f"center_{number}", str(number)) for number in range(5)},
    ),
    "midog": Known(
        (
            "human_breast", "canine_lung", "canine_lymphoma", "canine_cutaneous_mast_cell", "human_neuroendocrine",
        ),
        ("non_mitotic", "mitotic"),
        size=96,
        others={"non_mitotic": ("hard_negative",), "mitotic": ("mitotic_figure",)},
    ),
    "gdrbench": Known(
        ("aptos", "deepdr", "fgadr", "idrid", "messidor", "rldr"),
        ("nodr", "mild_npdr", "moderate_npdr", "severe_npdr", "pdr"),
        others={"messidor": ("messidor_2",)},
    ),
    "isic2019": Known(
        ("bcn", "ham_vidir_molemax", "ham_vidir_modern", "ham_rosendahl", "msk", "ham_vienna_dias"),
        ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"),
    ),
}  # fmt: skip


def outline(spelled: str) -> Outline | None:
    """What is known of the dataset that a spelling names, if it is one of the field's."""
    part, *_ = parse(spelled)
    if part.name not in KNOWN:
        return None
    known = KNOWN[part.name]
    every = part.options.get("classes") == "all"
    classes = tuple(str(number) for number in range(EVERY)) if every else known.classes
    size = int(part.options.get("size", known.size))
    return Outline(part.name, known.domains, classes, (3, size, size))


def pacs(root: str = "data/pacs", size: Size = 224) -> Domains:
    """Seven things in photos, paintings, cartoons and sketches: 9,991 images."""
    return find("pacs", KNOWN["pacs"], root, size)


def vlcs(root: str = "data/vlcs", size: Size = 224) -> Domains:
    """Five things in photos of four collections: 10,729 images."""
    return find("vlcs", KNOWN["vlcs"], root, size)


def officehome(root: str = "data/officehome", size: Size = 224) -> Domains:
    """Sixty-five things of home and office as art, clip art, products and photos: 15,588 images."""
    return find("officehome", KNOWN["officehome"], root, size)


def terraincognita(root: str = "data/terraincognita", size: Size = 224) -> Domains:
    """Nine kinds of animals, or none, before the camera traps of four places."""
    return find("terraincognita", KNOWN["terraincognita"], root, size)


def domainnet(root: str = "data/domainnet", size: Size = 224, classes: Literal["ten", "all"] = "ten") -> Domains:
    """Things in six styles; `classes` is ten (those that FedBN and GA take) or all (those of the folders)."""
    known = KNOWN["domainnet"]
    return find("domainnet", known if classes == "ten" else known._replace(classes=(), part=False), root, size)


def digits(root: str = "data/digits", size: Size = 32) -> Domains:
    """Ten digits, written, printed and photographed, in five collections."""
    return find("digits", KNOWN["digits"], root, size)


def camelyon17(root: str = "data/camelyon17", size: Size = 96) -> Domains:
    """Tissue with and without tumor from five hospitals: 455,954 images."""
    return find("camelyon17", KNOWN["camelyon17"], root, size)


def midog(root: str = "data/midog", size: Size = 96) -> Domains:
    """Cells that divide and cells that only look so, in five kinds of tumor."""
    return find("midog", KNOWN["midog"], root, size)


def gdrbench(root: str = "data/gdrbench", size: Size = 224) -> Domains:
    """Five grades of diabetic retinopathy in six collections of fundus photographs: 11,357 images."""
    return find("gdrbench", KNOWN["gdrbench"], root, size)


def isic2019(root: str = "data/isic2019", size: Size = 224) -> Domains:
    """Eight kinds of skin lesions from six centres: 23,247 images."""
    return find("isic2019", KNOWN["isic2019"], root, size)


def find(name: str, known: Known, root: str, size: int) -> Domains:
    """A known dataset in a folder of `domain/class/image`, its domains and classes in their usual order."""
    top = Path(root).expanduser()
    expected = f"expected {root}/domain/class/image with the domains {', '.join(known.domains)}"
    if not top.is_dir():
        raise MissingError(f"{root}: no such folder; {expected}; say where they are with {name}(root=...)")
    folders = [path for path in sorted(top.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    places = _matched(top, folders, known.domains, known.others)
    lacking = [domain for domain in known.domains if domain not in places]
    if lacking:
        there = ", ".join(path.name for path in folders) or "nothing"
        raise MissingError(f"{root}: no folder of {', '.join(lacking)}; found {there}; {expected}")
    files = {domain: listing(places[domain]) for domain in known.domains}
    if not known.classes:
        known = known._replace(classes=_together(files.values()))
    found = {}
    for domain in known.domains:
        by_class = _by_class(places[domain], files[domain], known)
        found[domain] = records(places[domain], by_class, known.classes)
    return load(Listing(known.classes, found, "domain/class/image"), size)


def _by_class(domain: Path, files: dict[str, list[Path]], known: Known) -> dict[str, list[Path]]:
    """A domain's files under the usual names of the classes, which folders may also give by their places: 0, 1, ..."""
    full = {folder: paths for folder, paths in files.items() if paths}
    others = known.others
    if all(folder.isdecimal() for folder in full) and not full.keys() & set(known.classes):
        others = {name: (str(place),) for place, name in enumerate(known.classes)}
    matched = _matched(domain, [domain / folder for folder in full], known.classes, others)
    names = {path.name: name for name, path in matched.items()}
    odd = [folder for folder in full if folder not in names]
    if not names or (odd and not known.part):
        there = f"folders {', '.join(odd)}" if odd else "no images"
        raise DataError(f"{domain}: {there}; expected class/image with the classes {', '.join(known.classes)}")
    return {names[folder]: full[folder] for folder in names}


def _matched(top: Path, folders: Iterable[Path], names: Names, others: Mapping[str, Names]) -> dict[str, Path]:
    """The folder of each name; those of no name are left alone."""
    meant = {_plain(spelled): name for name in names for spelled in (name, *others.get(name, ()))}
    places: dict[str, Path] = {}
    for folder in folders:
        name = meant.get(_plain(folder.name))
        if name in places:
            both = f"{places[name].name} and {folder.name}"
            raise DataError(f"{top}: {both} are both folders of {name}; keep one of them there")
        if name is not None:
            places[name] = folder
    return places


def _together(domains: Iterable[dict[str, list[Path]]]) -> Names:
    """The classes that folders have, under the first spelling of each."""
    names: dict[str, str] = {}
    for files in domains:
        for folder in files:
            names.setdefault(_plain(folder), folder)
    return tuple(names[key] for key in sorted(names))


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()
