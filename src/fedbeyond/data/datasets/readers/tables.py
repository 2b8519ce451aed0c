"""Tables of images: the metadata.csv of WILDS (Camelyon17, PACS) and the split of FLamby's ISIC 2019."""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ....errors import DataError, MissingError
from ...storage.listing import Files, Listing, Records
from ..naming import Known, ordered, plain, spellings, subfolders

Row = Mapping[str, str]
Told = tuple[str, str, int, str, str]  # domain, name, label, fold, group

FOLDS = {
    "0": "train", "1": "val", "2": "test", "3": "val",
    "train": "train", "val": "val", "id_val": "val", "test": "test", "id_test": "test",
}  # fmt: skip


def camelyon(root: Path, known: Known) -> Listing | None:
    """`metadata.csv` with patient, node, x_coord, y_coord, tumor and center, and the patches it names.

    The official split is given where it cuts a hospital in two (train and id_val).
    """
    table = _table(root, "metadata.csv", {"patient", "node", "x_coord", "y_coord", "tumor", "center"})
    if table is None or "tumor" not in known.classes:
        return None

    def told(row: Row) -> Told:
        slide = f"patient_{row['patient'].zfill(3)}_node_{row['node']}"
        name = f"patches/{slide}/patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png"
        return row["center"], name, int(row["tumor"]), FOLDS.get(row.get("split", ""), ""), row["patient"].zfill(3)

    return _listing(table, known, told, "metadata.csv and patches, as WILDS has them; grouped by patient")


def wilds(root: Path, known: Known) -> Listing | None:
    """`metadata.csv` with domain, category (or y) and path, as WILDS-style copies of PACS have it."""
    table = _table(root, "metadata.csv", {"domain", "category", "path"})
    if table is None:
        return None
    classes = spellings(known.classes, known.others)

    def told(row: Row) -> Told:
        name = classes.get(plain(row["category"]))
        if name is None:
            raise DataError(f"{table}: category {row['category']!r}; expected one of {', '.join(known.classes)}")
        fold = FOLDS.get(row.get("split", "").lower(), "")
        return row["domain"], row["path"], known.classes.index(name), fold, ""

    return _listing(table, known, told, "metadata.csv with domain, category and path, as in WILDS")


def isic(root: Path, known: Known) -> Listing | None:
    """FLamby's `train_test_split` table with image, target, center and fold, and the folder of images."""
    table = _table(root, "train_test_split*", {"image", "target", "center", "fold"})
    if table is None or "MEL" not in known.classes:
        return None
    inputs = [
        path for path in (*subfolders(table.parent), *subfolders(root)) if "ISIC_2019_Training_Input" in path.name
    ]
    if not inputs:
        raise MissingError(f"{table}: no folder of images beside it; expected ISIC_2019_Training_Input_preprocessed")
    images = max(inputs, key=lambda path: "preprocessed" in path.name)
    folder = images.relative_to(table.parent) if images.is_relative_to(table.parent) else images

    def told(row: Row) -> Told:
        return row["center"], f"{folder}/{row['image']}.jpg", int(float(row["target"])), row["fold"], ""

    return _listing(table, known, told, f"table {table.name} and {images.name}, as FLamby has them")


def _table(root: Path, name: str, columns: set[str]) -> Path | None:
    """The first table of that name, in a folder or one further down, that has the columns."""
    for top in (root, *subfolders(root)):
        for path in sorted(path for path in top.glob(name) if path.is_file()):
            with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                if columns <= set(next(csv.reader(file), [])):
                    return path
    return None


def _rows(table: Path) -> Iterator[tuple[int, Row]]:
    with table.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        yield from enumerate(csv.DictReader(file), 2)


def _listing(table: Path, known: Known, told: Callable[[Row], Told], layout: str) -> Listing:
    """The rows of a table by domain, each domain by class and name; domains may be numbers: their places."""
    meant = spellings((*known.domains, *known.extra), known.others)
    meant |= {str(place): name for place, name in enumerate(known.domains) if str(place) not in meant}
    rows: dict[str, list[tuple[int, str, str, str]]] = {}
    for number, row in _rows(table):
        try:
            domain, name, label, fold, group = told(row)
        except (ValueError, TypeError, AttributeError):
            raise DataError(f"{table}, line {number}: cannot be understood; expected numbers as labels") from None
        known_as = meant.get(plain(domain))
        if known_as is None or not 0 <= label < len(known.classes):
            given = f"domain {domain!r} and label {label}"
            raise DataError(f"{table}, line {number}: {given}; expected {', '.join(known.domains)} and their classes")
        rows.setdefault(known_as, []).append((label, name, fold, group))
    found = ordered(rows, known)
    if found is None:
        lacking = ", ".join(name for name in known.domains if name not in rows)
        raise MissingError(f"{table}: no line of {lacking}; found {', '.join(sorted(rows))}")
    return Listing(known.classes, {domain: _records(table.parent, found[domain]) for domain in found}, layout)


def _records(root: Path, rows: list[tuple[int, str, str, str]]) -> Records:
    rows = sorted(rows)
    parts = np.array([fold for _, _, fold, _ in rows])
    folds = {str(part): np.nonzero(parts == part)[0] for part in np.unique(parts) if part}
    return Records(
        Files(root, tuple(name for _, name, _, _ in rows)),
        np.array([label for label, _, _, _ in rows], np.int64),
        folds if "train" in folds and len(folds) > 1 else {},
        tuple(group for _, _, _, group in rows) if rows[0][3] else (),
    )
