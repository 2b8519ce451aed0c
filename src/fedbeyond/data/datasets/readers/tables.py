"""Read tables of images: the metadata.csv of WILDS (Camelyon17, PACS) and the split of FLamby's ISIC 2019."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

from ....errors import DataError, MissingError
from ...storage.listing import Listing, Records, sorted_records
from ..naming import Known, plain, spellings, subfolders

Row = Mapping[str, str]
Fields = tuple[str, str, int, str, str]  # domain, name, label, fold, group

FOLDS = {
    "0": "train", "1": "val", "2": "test", "3": "val",
    "train": "train", "val": "val", "id_val": "val", "test": "test", "id_test": "test",
}  # fmt: skip


def camelyon(root: Path, known: Known) -> Listing | None:
    """Read `metadata.csv` with patient, node, x_coord, y_coord, tumor and center, and the patches that it names.

    The official split is kept where it divides a hospital (train and id_val).
    """
    table = _table(root, "metadata.csv", {"patient", "node", "x_coord", "y_coord", "tumor", "center"})
    if table is None or "tumor" not in known.classes:
        return None

    def parse(row: Row) -> Fields:
        slide = f"patient_{row['patient'].zfill(3)}_node_{row['node']}"
        name = f"patches/{slide}/patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png"
        return row["center"], name, int(row["tumor"]), FOLDS.get(row.get("split", ""), ""), row["patient"].zfill(3)

    return _listing(table, known, parse, "metadata.csv and patches (WILDS), grouped by patient")


def wilds(root: Path, known: Known) -> Listing | None:
    """Read `metadata.csv` with domain, category and path, as in WILDS-style copies of PACS."""
    table = _table(root, "metadata.csv", {"domain", "category", "path"})
    if table is None:
        return None
    classes = spellings(known.classes, known.aliases)

    def parse(row: Row) -> Fields:
        name = classes.get(plain(row["category"]))
        if name is None:
            raise DataError(
                f"{table}: category {row['category']!r}; expected one of {', '.join(known.classes)}; fix it"
            )
        fold = FOLDS.get(row.get("split", "").lower(), "")
        return row["domain"], row["path"], known.classes.index(name), fold, ""

    return _listing(table, known, parse, "metadata.csv with domain, category and path (WILDS)")


def isic(root: Path, known: Known) -> Listing | None:
    """Read FLamby's `train_test_split` table with image, target, center and fold, and the folder of images."""
    table = _table(root, "train_test_split*", {"image", "target", "center", "fold"})
    if table is None or "MEL" not in known.classes:
        return None
    inputs = [
        path for path in (*subfolders(table.parent), *subfolders(root)) if "ISIC_2019_Training_Input" in path.name
    ]
    if not inputs:
        raise MissingError(f"{table}: no folder of images beside it; put ISIC_2019_Training_Input_preprocessed there")
    images = max(inputs, key=lambda path: "preprocessed" in path.name)
    folder = images.relative_to(table.parent) if images.is_relative_to(table.parent) else images

    def parse(row: Row) -> Fields:
        return row["center"], f"{folder}/{row['image']}.jpg", int(float(row["target"])), row["fold"], ""

    return _listing(table, known, parse, f"table {table.name} and {images.name} (FLamby)")


def _table(root: Path, name: str, columns: set[str]) -> Path | None:
    """Return the first table of a name that has the columns, in a folder or its subfolders."""
    for top in (root, *subfolders(root)):
        for path in sorted(path for path in top.glob(name) if path.is_file()):
            with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
                if columns <= set(next(csv.reader(file), [])):
                    return path
    return None


def _listing(table: Path, known: Known, parse: Callable[[Row], Fields], layout: str) -> Listing:
    """Return the rows of a table by domain, in order of class and name; domains may be given by number."""
    usual = known.domain_spellings()
    usual |= {str(index): name for index, name in enumerate(known.domains) if str(index) not in usual}
    rows: dict[str, list[tuple[int, str, str, str]]] = {}
    with table.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                domain, name, label, fold, group = parse(row)
            except (ValueError, TypeError, AttributeError):
                raise DataError(
                    f"{table}, line {number}: it cannot be parsed; labels must be numbers; fix that line"
                ) from None
            usual_name = usual.get(plain(domain))
            if usual_name is None or not 0 <= label < len(known.classes):
                raise DataError(
                    f"{table}, line {number}: domain {domain!r} and label {label}; expected a domain of "
                    f"{', '.join(known.domains)} and a label of 0 to {len(known.classes) - 1}; fix that line"
                )
            rows.setdefault(usual_name, []).append((label, name, fold, group))
    by_domain = known.in_usual_order(rows)
    if by_domain is None:
        found = ", ".join(sorted(rows))
        raise MissingError(f"{table}: no line of {known.missing(rows)}; found {found}; use a complete table")
    return Listing(known.classes, {domain: _records(table.parent, rows) for domain, rows in by_domain.items()}, layout)


def _records(root: Path, rows: list[tuple[int, str, str, str]]) -> Records:
    parts = sorted({part for _, _, part, _ in rows if part})
    return sorted_records(root, rows, parts if "train" in parts and len(parts) > 1 else ())
