"""The UCI heart disease dataset: four hospitals, 13 features, many values missing.

Janosi, Steinbrunn, Pfisterer, Detrano: Heart Disease; UCI Machine Learning Repository; https://doi.org/10.24432/C52P4X
"""

from typing import Annotated

from ...images import Dataset
from ._table import assemble
from .columns import is_number
from .table_rows import Row, by_file

COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg",
    "thalach", "exang", "oldpeak", "slope", "ca", "thal", "num",
)  # fmt: skip
CATEGORICAL = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")
NEVER_ZERO = ("trestbps", "chol")  # a zero means that it was not measured


def heart(root: Annotated[str, "the folder with the files processed.HOSPITAL.data"] = "data/heart") -> Dataset:
    """Read heart disease (yes or no) of patients in four hospitals: 920 rows, in files processed.HOSPITAL.data."""
    path = f"{root}/processed.*.data"
    records = {
        site: [row._replace(values=clean(row.values)) for row in rows] for site, rows in by_file(path, COLUMNS).items()
    }
    return assemble(records, path, "num", CATEGORICAL)


def clean(row: Row) -> Row:
    """Return a row in which the label is no or yes, and values that were not measured are missing."""
    zeros = {name: "?" for name in NEVER_ZERO if is_number(row[name]) and float(row[name]) == 0}
    known = {"num": "yes" if float(row["num"]) > 0 else "no"} if is_number(row["num"]) else {}
    return row | zeros | known
