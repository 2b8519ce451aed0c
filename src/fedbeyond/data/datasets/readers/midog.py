"""Read MIDOG 2022 and MIDOG++: regions of slides as TIFF, cells as boxes in a JSON file in COCO format.

A sample is the square around the centre of a box; its domain is the kind of tumor, its group is the case.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError, MissingError
from ...storage.listing import Box, Files, Listing, Records
from ..naming import Known, plain, subfolders

SIDE = 64  # pixels around the centre of a box
CASES = {  # case numbers of each kind of tumor in the MIDOG 2022 challenge (not checked by us)
    "human_breast": (1, 150),
    "canine_lung": (151, 194),
    "canine_lymphoma": (195, 249),
    "canine_cutaneous_mast_cell": (250, 299),
    "human_neuroendocrine": (300, 354),
}
MITOTIC, IMPOSTER = "mitoticfigure", ("hardnegative", "nonmitotic", "imposter", "impostor")


def midog(root: Path, known: Known) -> Listing | None:
    """Read a JSON file with images, annotations and categories, and the TIFF files that it names."""
    file, content = _annotations(root) if "mitotic" in known.classes else (None, {})
    if file is None:
        return None
    try:
        return _listing(root, file, content, known)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: not in COCO format ({type(error).__name__}: {error}); download it again") from None


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
            raise DataError(f"{file}: annotation {each.get('id')} has an unknown image or category; download it again")
        box = square(each["bbox"], corners, image)
        rows.setdefault(kinds[image["id"]], []).append((image["file_name"], label, box))
    by_domain = known.in_usual_order(rows)
    if by_domain is None:
        raise MissingError(
            f"{file}: no cell of {known.missing(rows)}; found {', '.join(sorted(rows))}; add tumor_type to the images "
            f"of the file, or a CSV table with Slide and Tumor beside it"
        )
    layout = f"{file.name} and TIFF files; {SIDE} pixels around each box, grouped by case"
    return Listing(known.classes, {domain: _records(folder, by_domain[domain]) for domain in by_domain}, layout)


def square(bbox: list[float], corners: bool, image: Mapping[str, Any]) -> Box:
    """Return the square around the centre of a box, moved inside the image if it crosses an edge."""
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
            raise DataError(f"{path}: not valid JSON ({error}); download it again") from None
        if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
            return path, content
    return None, {}


def _label(file: Path, name: str) -> int:
    category = plain(name)
    if any(word in category for word in IMPOSTER):
        return 0
    if MITOTIC in category:
        return 1
    raise DataError(f"{file}: category {name!r}; expected mitotic figure and hard negative (non-mitotic)")


def _folder(root: Path, file: Path, images: Mapping[Any, Mapping[str, Any]]) -> Path:
    tops = (root, root / "images", file.parent, file.parent / "images")
    for image in images.values():
        for top in tops:
            if (top / image["file_name"]).is_file():
                return top
    raise MissingError(f"{file}: none of its {len(images)} images exists; put them beside it or into images/")


def _kinds(file: Path, images: Mapping[Any, Mapping[str, Any]], known: Known) -> dict[Any, str]:
    """Return the kind of tumor of each image: from the JSON file, a table beside it, or the case number."""
    listed = _table(file)
    kinds = {}
    for key, image in images.items():
        case = Path(image["file_name"]).stem
        given = image.get("tumor_type") or image.get("tumour_type") or listed.get(case.lstrip("0"), "")
        kind = next((d for d in (*known.domains, *known.extra) if plain(given).startswith(plain(d))), None)
        if kind is None and not given and not listed and case.isdecimal():
            kind = next((name for name, (first, last) in CASES.items() if first <= int(case) <= last), None)
        kinds[key] = kind or given or "unknown"
    return kinds


def _table(file: Path) -> dict[str, str]:
    """Return the kind of tumor by case, if there is a table with the columns Slide and Tumor beside the file."""
    for path in sorted((*file.parent.glob("*.csv"), *file.parent.parent.glob("datasets_xvalidation.csv"))):
        with path.open(newline="") as opened:
            rows = list(csv.DictReader(opened, delimiter=";" if ";" in path.read_text()[:200] else ","))
        if rows and {"Slide", "Tumor"} <= rows[0].keys():
            return {Path(row["Slide"]).stem.lstrip("0"): row["Tumor"] for row in rows}
    return {}


def _records(folder: Path, rows: list[tuple[str, int, Box]]) -> Records:
    """Return cells in order of image, so that each large image is opened once."""
    rows = sorted(rows)
    names = tuple(name for name, _, _ in rows)
    files = Files(folder, names, tuple(box for _, _, box in rows))
    return Records(files, np.array([label for _, label, _ in rows], np.int64), {}, tuple(Path(n).stem for n in names))
