"""Known benchmark datasets by name: their domains, classes and usual size, and where to find them in a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from ...errors import MissingError
from ...images import Dataset
from ...spec import parse
from ..storage.cache import Size, load, report
from ..storage.listing import Listing
from .naming import Known, Names, match_paths, spellings, subfolders
from .readers import READERS, recognise

Root = Annotated[str, "the folder; 'fedbeyond data info NAME' prints the layouts that can be read"]

ALL_CLASSES = 345  # of DomainNet


class Outline(NamedTuple):
    """Facts of a known dataset that need no files."""

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
        aliases={"caltech": ("caltech101",), "pascal": ("voc2007",), "sun": ("sun09",)},
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
        aliases={f"location_{number}": (f"l{number}", number) for number in ("100", "38", "43", "46")},
    ),
    "domainnet": Known(
        ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        (
            "bird", "feather", "headphones", "ice_cream", "teapot",
            "tiger", "whale", "windmill", "wine_glass", "zebra",
        ),
        subset=True,
    ),
    "digits": Known(
        ("mnist", "mnist_m", "svhn", "synth", "usps"),
        tuple("0123456789"),
        size=32,
        aliases={"synth": ("syn", "synth_digits")},
        any_two=True,
    ),
    "camelyon17": Known(
        tuple(f"hospital_{number}" for number in range(5)),
        ("normal", "tumor"),
        size=96,
        aliases={f"hospital_{number}": (f"center_{number}", str(number)) for number in range(5)},
    ),
    "midog": Known(
        (
            "human_breast", "canine_lung", "canine_lymphoma", "canine_cutaneous_mast_cell", "human_neuroendocrine",
        ),
        ("non_mitotic", "mitotic"),
        size=96,
        aliases={"non_mitotic": ("hard_negative",), "mitotic": ("mitotic_figure",)},
        extra=("human_melanoma", "canine_soft_tissue_sarcoma"),
    ),
    "gdrbench": Known(
        ("aptos", "deepdr", "fgadr", "idrid", "messidor", "rldr"),
        ("nodr", "mild_npdr", "moderate_npdr", "severe_npdr", "pdr"),
        aliases={"messidor": ("messidor_2",)},
    ),
    "isic2019": Known(
        ("bcn", "ham_vidir_molemax", "ham_vidir_modern", "ham_rosendahl", "msk", "ham_vienna_dias"),
        ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"),
    ),
}  # fmt: skip


def outline(spelled: str) -> Outline | None:
    """Return the facts of the dataset that a spelling names, or None if it is no known benchmark."""
    spec, *_ = parse(spelled)
    if spec.name not in KNOWN:
        return None
    known = KNOWN[spec.name]
    all_classes = spec.options.get("classes") == "all"
    classes = tuple(str(number) for number in range(ALL_CLASSES)) if all_classes else known.classes
    size = int(spec.options.get("size", known.size))
    return Outline(spec.name, known.domains, classes, (3, size, size))


def benchmark(name: str, contents: str) -> Callable[[str, int], Dataset]:
    """Return the function that reads a known dataset from its folder."""

    def read(root: Root = f"data/{name}", size: Size = KNOWN[name].size) -> Dataset:
        return find(name, KNOWN[name], root, size)

    read.__doc__ = f"Read {contents}."
    return read


pacs = benchmark("pacs", "PACS: 7 classes in photos, paintings, cartoons and sketches; 9,991 images")
vlcs = benchmark("vlcs", "VLCS: 5 classes in photos of four collections; 10,729 images")
officehome = benchmark(
    "officehome", "Office-Home: 65 classes of objects in art, clip art, product images and photos; 15,588 images"
)
terraincognita = benchmark(
    "terraincognita", "Terra Incognita: 10 classes (9 animals, or empty) from camera traps at four locations"
)
digits = benchmark("digits", "digits: 10 classes in up to five collections (MNIST, MNIST-M, SVHN, SynthDigits, USPS)")
camelyon17 = benchmark("camelyon17", "Camelyon17: tissue with and without tumor from five hospitals; 455,954 images")
midog = benchmark("midog", "MIDOG: mitotic figures and hard negatives in five kinds of tumor")
gdrbench = benchmark(
    "gdrbench",
    "GDRBench: 5 grades of diabetic retinopathy in six collections of fundus photographs; 11,357 images",
)
isic2019 = benchmark("isic2019", "ISIC 2019: 8 kinds of skin lesions from six centres; 23,247 images")


def domainnet(
    root: Root = "data/domainnet",
    size: Size = 224,
    classes: Annotated[Literal["ten", "all"], "the ten classes of FedBN and GA, or all of the folders"] = "ten",
) -> Dataset:
    """Read DomainNet: objects in six styles."""
    known = KNOWN["domainnet"]
    return find("domainnet", known if classes == "ten" else known._replace(classes=(), subset=False), root, size)


def find(name: str, known: Known, root: str, size: int) -> Dataset:
    """Load a known dataset from a folder, with domains and classes in the usual order; print its layout."""
    listing = locate(name, known, root)
    images = sum(len(records.labels) for records in listing.domains.values())
    report(f"{name} in {root}: {listing.layout}; {images:,} images")
    return load(listing, size)


def locate(name: str, known: Known, root: str) -> Listing:
    """Return the listing of a known dataset in a folder; raise if a domain is missing."""
    top = Path(root).expanduser()
    expected = f"expected {root}/domain/class/image with the domains {', '.join(known.domains)}"
    if not top.is_dir():
        raise MissingError(f"{root}: no such folder; {expected}; give its path with {name}(root=...)")
    listing = recognise(top, known)
    if listing is not None:
        return listing
    folders = subfolders(top)
    missing = known.missing(match_paths(top, folders, spellings(known.domains, known.aliases)))
    files = sorted({f"*{path.suffix}" for path in top.iterdir() if path.is_file() and path.suffix})
    present = ", ".join([path.name for path in folders] + files) or "nothing"
    layouts = "; ".join(READERS)
    raise MissingError(
        f"{root}: no folder of {missing}; found {present}; {expected} or another layout "
        f"({layouts}; see fedbeyond data info {name}){_unreadable_hint(top)}"
    )


def _unreadable_hint(top: Path) -> str:
    """Return what to do about FedBN's .pkl lists, if there are any."""
    if not any(True for pattern in ("*.pkl", "*/*.pkl", "*/partitions/*.pkl") for _ in top.glob(pattern)):
        return ""
    return (
        "; .pkl files are never opened, since opening one can run code: write their paths and labels into lists "
        "<domain>_train.txt, <domain>_test.txt (in each line a path, a blank and a number), arrays into .npz"
    )
