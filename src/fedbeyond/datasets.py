"""Datasets: the built-in one, folders, tables, known benchmarks, and objects of one's own (`from_...`).

Each is imported when it is first used.
"""

from typing import TYPE_CHECKING

from ._factory import namespace, places

if TYPE_CHECKING:
    from .data.datasets._benchmarks import camelyon17 as camelyon17
    from .data.datasets._benchmarks import digits as digits
    from .data.datasets._benchmarks import domainnet as domainnet
    from .data.datasets._benchmarks import gdrbench as gdrbench
    from .data.datasets._benchmarks import isic2019 as isic2019
    from .data.datasets._benchmarks import midog as midog
    from .data.datasets._benchmarks import officehome as officehome
    from .data.datasets._benchmarks import pacs as pacs
    from .data.datasets._benchmarks import terraincognita as terraincognita
    from .data.datasets._benchmarks import vlcs as vlcs
    from .data.datasets._folder import folder as folder
    from .data.datasets._frame import from_pandas as from_pandas
    from .data.datasets._heart import heart as heart
    from .data.datasets._huggingface import from_huggingface as from_huggingface
    from .data.datasets._items import from_torch as from_torch
    from .data.datasets._own import from_arrays as from_arrays
    from .data.datasets._styles import styles as styles
    from .data.datasets._table import table as table
    from .data.datasets.readers.arrays import npz as npz

PLACES = {
    **places("data.datasets._*", "styles folder"),
    **places("data.datasets.readers.arrays", "npz"),
    **places("data.datasets._benchmarks", "pacs vlcs officehome terraincognita domainnet digits"),
    **places("data.datasets._benchmarks", "camelyon17 midog gdrbench isic2019"),
    **places("data.datasets._*", "table heart"),
}

OWN = {  # these take objects, so they have no spec and are not in the registry
    **places("data.datasets._own", "from_arrays"),
    **places("data.datasets._items", "from_torch"),
    **places("data.datasets._frame", "from_pandas"),
    **places("data.datasets._huggingface", "from_huggingface"),
}

__getattr__, __dir__ = namespace(__name__, PLACES, OWN)
