"""MIDOG 2022 and MIDOG++: regions of slides as TIFF, cells as boxes in a JSON file in the manner of COCO.

An example is the square around the middle of a box; its domain is the kind of tumor, its group the case.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError, MissingError
from ...storage.listing import Box, Files, Listing, Records
from ..naming import Known, ordered, plain, subfolders

SIDE = 64  # pixels around the middle of a box
CASES = {  # the kind of tumor by the number of the case, as the MIDOG 2022 challenge gives it (not checked by us)
    "human_breast": (1, 150),
    "canine_lung": (151, 194),
    "canine_lymphoma": (195, 249),
    "canine_cutaneous_mast_cell": (250, 299),
    "human_neuroendocrine": (300, 354),
}
MITOTIC, IMPOSTER = "mitoticfigure", ("hardnegative", "nonmitotic", "imposter", "impostor")


def midog(root: Path, known: Known) -> Listing | None:
    """A JSON file with images, annotations and categories, and the TIFF files it names."""
    file, content = _annotations(root) if "mitotic" in known.classes else (None, {})
    if file is None:
        return None
    try:
        return _listing(root, file, content, known)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: not in the manner of COCO ({type(error).__name__}: {error}); get it again") from None


def _listing(root: Path, file: Path, content: dict[str, Any], known: Known) -> Listing:
    images = {image["id"]: image for image in content["images"]}
    labels = {category["id"]: _label(file, category["name"]) for category in content["categories"]}
    folder = _folder(root, file, images)
    kinds = _kinds(file, images, known)
    corners = all(x1 > x0 and y1 > y0 for x0, y0, x1, y1 in (each["bbox"] for each in content["annotations"]))
    rows: dict[str, list[tuple[str, int, Box]]] = {}
    for each in content["annotations"]:
        image, label = images.get(each["image_id"]), labels.get(each["category_id"])
        if image is None or label is None:
            raise DataError(f"{file}: annotation {each.get('id')} is of an image or a category that the file lacks")
        rows.setdefault(kinds[image["id"]], []).append(
            (image["file_name"], label, square(each["bbox"], corners, image))
        )
    found = ordered(rows, known)
    if found is None:
        lacking = ", ".join(name for name in known.domains if name not in rows)
        raise MissingError(f"{file}: no cell of {lacking}; found {', '.join(sorted(rows))}")
    layout = f"{file.name} and TIFF files; {SIDE} pixels around each box, grouped by case"
    return Listing(known.classes, {domain: _records(folder, found[domain]) for domain in found}, layout)


def square(bbox: list[float], corners: bool, image: Mapping[str, Any]) -> Box:
    """The square around the middle of a box, moved into the image where it would lie over an edge."""
    x0, y0, x1, y1 = bbox if corners else (bbox[0], bbox[1], bbox[0] + bbox[2], bbox[1] + bbox[3])
    left, top = round((x0 + x1) / 2) - SIDE // 2, round((y0 + y1) / 2) - SIDE // 2
    if "width" in image and "height" in image:
        left = max(0, min(left, int(image["width"]) - SIDE))
        top = max(0, min(top, int(image["height"]) - SIDE))
    return left, top, left + SIDE, top + SIDE


def _annotations(root: Path) -> tuple[Path | None, dict[str, Any]]:
    likely = [path for path in subfolders(root) if path.name in ("databases", "annotations", "images")]
    for path in sorted(path for top in (root, *likely) for path in top.glob("*.json")):
        try:
            content = json.loads(path.read_text())
        except ValueError as error:
            raise DataError(f"{path}: no JSON ({error}); download it again") from None
        if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
            return path, content
    return None, {}


def _label(file: Path, name: str) -> int:
    told = plain(name)
    if any(word in told for word in IMPOSTER):
        return 0
    if MITOTIC in told:
        return 1
    raise DataError(f"{file}: category {name!r}; expected mitotic figure and hard negative (non-mitotic)")


def _folder(root: Path, file: Path, images: Mapping[Any, Mapping[str, Any]]) -> Path:
    tops = (root, root / "images", file.parent, file.parent / "images")
    for image in images.values():
        for top in tops:
            if (top / image["file_name"]).is_file():
                return top
    raise MissingError(f"{file}: none of its {len(images)} images is there; expected them beside it or in images/")


def _kinds(file: Path, images: Mapping[Any, Mapping[str, Any]], known: Known) -> dict[Any, str]:
    """The kind of tumor of each image: told with it, in a table beside, or by the number of the case."""
    listed = _table(file)
    kinds = {}
    for key, image in images.items():
        case = Path(image["file_name"]).stem
        told = image.get("tumor_type") or image.get("tumour_type") or listed.get(case.lstrip("0"), "")
        kind = next((d for d in (*known.domains, *known.extra) if plain(told).startswith(plain(d))), None)
        if kind is None and not told and not listed and case.isdecimal():
            kind = next((name for name, (first, last) in CASES.items() if first <= int(case) <= last), None)
        kinds[key] = kind or told or "unknown"
    return kinds


def _table(file: Path) -> dict[str, str]:
    """The kind of tumor by case, if a table with the columns Slide and Tumor lies near."""
    for path in sorted((*file.parent.glob("*.csv"), *file.parent.parent.glob("datasets_xvalidation.csv"))):
        with path.open(newline="") as opened:
            rows = list(csv.DictReader(opened, delimiter=";" if ";" in path.read_text()[:200] else ","))
        if rows and {"Slide", "Tumor"} <= rows[0].keys():
            return {Path(row["Slide"]).stem.lstrip("0"): row["Tumor"] for row in rows}
    return {}


def _records(folder: Path, rows: list[tuple[str, int, Box]]) -> Records:
    """Cells by image, so that each large image is opened once."""
    rows = sorted(rows)
    names = tuple(name for name, _, _ in rows)
    files = Files(folder, names, tuple(box for _, _, box in rows))
    return Records(files, np.array([label for _, label, _ in rows], np.int64), {}, tuple(Path(n).stem for n in names))
