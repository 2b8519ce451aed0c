"""The field's datasets by name: their domains, classes and usual size, and how to find them in a folder."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ...errors import MissingError
from ...images import Domains
from ...spec import parse
from ..storage.cache import load, say
from ..storage.listing import Listing
from .naming import Known, Names, matched, subfolders
from .readers import READERS, recognise

Size = Annotated[int, Field(gt=0)]

EVERY = 345  # classes of the whole of DomainNet


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
        some=True,
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
        extra=("human_melanoma", "canine_soft_tissue_sarcoma"),
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
    """A known dataset in a folder, its domains and classes in their usual order; says how it was laid out."""
    listing = locate(name, known, root)
    images = sum(len(records.labels) for records in listing.domains.values())
    say(f"{name} in {root}: {listing.layout}; {images:,} images")
    return load(listing, size)


def locate(name: str, known: Known, root: str) -> Listing:
    """What lies in the folder of a known dataset, or what is missing there."""
    top = Path(root).expanduser()
    expected = f"expected {root}/domain/class/image with the domains {', '.join(known.domains)}"
    if not top.is_dir():
        raise MissingError(f"{root}: no such folder; {expected}; say where they are with {name}(root=...)")
    listing = recognise(top, known)
    if listing is not None:
        return listing
    folders = subfolders(top)
    places = matched(top, folders, known.domains, known.others)
    lacking = ", ".join(domain for domain in known.domains if domain not in places)
    files = sorted({f"*{path.suffix}" for path in top.iterdir() if path.is_file() and path.suffix})
    there = ", ".join([path.name for path in folders] + files) or "nothing"
    others = "; ".join(list(READERS)[:-1])
    raise MissingError(
        f"{root}: no folder of {lacking}; found {there}; {expected} or another layout "
        f"({others}; see fedbeyond data info {name}){_unopened(top)}"
    )


def _unopened(top: Path) -> str:
    """What to do about the lists of FedBN, if they are there."""
    if not any(True for pattern in ("*.pkl", "*/*.pkl", "*/partitions/*.pkl") for _ in top.glob(pattern)):
        return ""
    return (
        "; the .pkl files there are never opened, since that can run any code that is in them: write their paths and "
        "labels into lists <domain>_train.txt, <domain>_test.txt (a path, a blank, a number a line), arrays into .npz"
    )
