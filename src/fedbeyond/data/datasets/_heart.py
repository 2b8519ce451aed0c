"""Heart disease by hospital: four hospitals, 13 features, many of them missing.

Janosi, Steinbrunn, Pfisterer, Detrano: Heart Disease; UCI Machine Learning Repository; https://doi.org/10.24432/C52P4X
"""

from ...images import Domains
from ._table import Row, assemble, by_file, is_number

COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg",
    "thalach", "exang", "oldpeak", "slope", "ca", "thal", "num",
)  # fmt: skip
CATEGORICAL = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")
NEVER_ZERO = ("trestbps", "chol")  # a zero there was not measured


def heart(root: str = "data/heart") -> Domains:
    """Whether patients of four hospitals have a heart disease: 920 rows, in files processed.HOSPITAL.data."""
    path = f"{root}/processed.*.data"
    rows = {site: [cleaned(row) for row in some] for site, some in by_file(path, COLUMNS).items()}
    return assemble(rows, path, "num", CATEGORICAL, ())


def cleaned(row: Row) -> Row:
    """A row in which disease is no or yes, and what cannot have been measured is missing."""
    zeros = {name: "?" for name in NEVER_ZERO if is_number(row[name]) and float(row[name]) == 0}
    known = {"num": "yes" if float(row["num"]) > 0 else "no"} if is_number(row["num"]) else {}
    return row | zeros | known
