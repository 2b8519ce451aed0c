"""Datasets from the library `datasets` of Hugging Face: objects, local files, or, if asked to, a download."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import ConfigError, DataError
from ...images import Dataset
from ..finding import shortened
from ._items import read_site, require_size
from ._own import assembled, described, require_site_name
from .labels import label_of

BUILDERS = {".parquet": "parquet", ".arrow": "arrow", ".json": "json", ".jsonl": "json", ".csv": "csv"}
FOLDS = {"train": "train", "validation": "val", "val": "val", "test": "test"}  # names of splits as official parts
COMMIT = re.compile(r"[0-9a-f]{40}")


class Cells(NamedTuple):
    """Where an image is, and what is known about it."""

    split: str
    row: int
    site: str
    label: object
    group: object


def from_huggingface(
    source: Any,
    *,
    site: str,
    label: str = "label",
    image: str = "image",
    split: str | None = None,
    groups: str | None = None,
    size: int | None = None,
    revision: str | None = None,
    download: bool = False,
    name: str = "",
) -> Dataset:
    """Make a dataset of a `datasets.Dataset` or `DatasetDict`, a local folder or file, or a name on the Hub.

    `site`, `label`, `image` and `groups` name columns: of the site (domain) of each image, its class, the image, and
    its patient. `split` chooses a split of several; without it all are read, and train, validation and test become the
    official split. `size` resizes images to a square. A name on the Hub needs download=True and a commit as
    `revision`; nothing is downloaded otherwise. Rows without images: from_pandas(source.to_pandas(), ...).
    """
    require_size(size)
    columns = {"site": site, "label": label, "image": image, "groups": groups}
    for argument, column in columns.items():
        if not (isinstance(column, str) and column) and not (argument == "groups" and column is None):
            raise DataError(f"{argument} is {described(column)}; give the name of a column")
    splits = chosen_splits(loaded(source, revision, download), split)
    used = [column for column in columns.values() if column]
    for table in splits.values():
        if unknown := [column for column in used if column not in table.column_names]:
            rows = "; for rows without images use from_pandas(source.to_pandas(), ...)" if unknown[0] == image else ""
            raise DataError(
                f"source has no column {unknown[0]!r}; its columns are {', '.join(table.column_names)}; give one of "
                f"these{rows}"
            )
    by_site: dict[str, list[Cells]] = {}
    for part, table in splits.items():
        for cells in cells_of(table, part, site, label, groups):
            by_site.setdefault(cells.site, []).append(cells)
    if len(by_site) < 2:
        has = f"one site, {next(iter(by_site))!r}" if by_site else "no rows"
        raise DataError(f"column {site!r} of source has {has}; give data of two sites or more")
    images = {part: table.with_format(None).select_columns([image]) for part, table in splits.items()}

    def item(cells: Cells) -> tuple[Any, int]:
        value = images[cells.split][cells.row][image]
        return np.asarray(value) if isinstance(value, list) else value, 0  # labels are read before

    sites = {}
    for place in sorted(by_site):
        held = by_site[place]
        read = read_site(place, len(held), lambda number, held=held: item(held[number]), size)  # type: ignore[misc]
        sites[place] = read._replace(labels=[cells.label for cells in held], folds=official_parts(held, splits))
    patients = {place: [cells.group for cells in held] for place, held in by_site.items()} if groups else None
    return assembled(sites, class_list(splits, label), patients, name)


def loaded(source: Any, revision: str | None, download: bool) -> Any:
    """Return the object that `source` is or names; download it only if asked to."""
    named = isinstance(source, str | Path)
    path = Path(source).expanduser() if named else None
    if path is None or path.exists():
        if revision is not None or download:
            raise DataError(
                "revision and download are for a name on the Hugging Face Hub, and source is none; omit them"
            )
        return from_disk(path) if path else source
    if not download or not COMMIT.fullmatch(str(revision)):
        lacks = "download=True" if not download else f"a commit (40 hex digits) and not revision={revision!r}"
        raise DataError(
            f"source {str(source)!r} is no file or folder here; as a name on the Hugging Face Hub it needs {lacks}: "
            f"give download=True and revision=, the commit to download"
        )
    return call(str(source), "load_dataset", str(source), revision=revision)


def from_disk(path: Path) -> Any:
    """Load a folder of save_to_disk, another folder that `datasets` recognises, or one file; use no network."""
    file, ending = str(path), path.suffix.lower()
    if path.is_file() and ending not in BUILDERS:
        raise DataError(f"source {file} is no file of a known kind; give a folder, or {', '.join(BUILDERS)}")
    with offline():
        if path.is_file():
            return call(file, "load_dataset", BUILDERS[ending], data_files=file)
        saved = any((path / mark).is_file() for mark in ("state.json", "dataset_dict.json"))
        return call(file, "load_from_disk" if saved else "load_dataset", file)


@contextmanager
def offline() -> Iterator[None]:
    """Keep `datasets` from network requests; some versions count what is loaded, local files included."""
    config, hub = library().config, import_module("huggingface_hub.constants")
    wanted = {"HF_HUB_OFFLINE": True, "HF_DATASETS_OFFLINE": True, "HF_UPDATE_DOWNLOAD_COUNTS": False}
    before = [(where, key, getattr(where, key)) for where in (config, hub) for key in wanted if hasattr(where, key)]
    try:
        for where, key, _ in before:
            setattr(where, key, wanted[key])
        yield
    finally:
        for where, key, value in before:
            setattr(where, key, value)


def library() -> Any:
    """Import `datasets`; raise with the command that installs it."""
    try:
        return import_module("datasets")
    except ImportError:
        raise ConfigError('from_huggingface needs datasets; install it with: pip install "fedbeyond[hf]"') from None


def call(shown: str, function: str, *args: Any, **options: Any) -> Any:
    """Call a function of `datasets`; turn its errors into one line."""
    load = getattr(library(), function)
    if "trust_remote_code" in signature(load).parameters:  # older versions can run code of a dataset
        options["trust_remote_code"] = False
    try:
        return load(*args, **options)
    except Exception as error:  # of many kinds: files, parsers, connections
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"source {shown}: datasets cannot load it ({reason}); fix it, or load it yourself and give the object"
        ) from error


def chosen_splits(source: Any, split: str | None) -> dict[str, Any]:
    """Return the tables of a source by split; a single table has no name."""
    tables = dict(source) if isinstance(source, Mapping) else {"": source}
    for table in tables.values():
        if not (hasattr(table, "column_names") and hasattr(table, "with_format")):
            raise DataError(
                f"source is {described(source)}; give a datasets.Dataset or DatasetDict, a local folder or file, or a "
                f"name on the Hugging Face Hub"
            )
        if not hasattr(table, "__len__"):
            raise DataError("source is streamed, without a length; load it with streaming=False")
    if split is None:
        return tables
    if split not in tables:
        known = ", ".join(filter(None, tables))
        has = f"its splits are {known}; give one of these" if known else "it is one table; leave split out"
        raise DataError(f"source has no split {split!r}; {has}")
    return {"": tables[split]}


def cells_of(table: Any, split: str, site: str, label: str, groups: str | None) -> Iterator[Cells]:
    """Yield the site, label and group of each row; names of classes instead of their numbers."""
    plain = table.with_format(None).select_columns(list(dict.fromkeys(filter(None, (site, label, groups)))))
    columns = {column: list(plain[column]) for column in plain.column_names}
    for column in filter(None, (site, label)):
        names = getattr(table.features[column], "names", None)
        whole = [
            names[value] if names and isinstance(value, int) and value >= 0 else value for value in columns[column]
        ]
        if without := [f"row {row}" for row, value in enumerate(whole) if value is None or (names and value == -1)]:
            raise DataError(
                f"column {column!r} of source has no value in {shortened(without, 3)}; give a value to every row"
            )
        columns[column] = whole
    for row, place in enumerate(columns[site]):
        require_site_name(str(place))
        group = columns[groups][row] if groups else None
        known = label_of(columns[label][row], f"column {label!r}, row {row}, of source")
        yield Cells(split, row, str(place), known, group)


def class_list(splits: Mapping[str, Any], label: str) -> tuple[str, ...] | None:
    """Return the names of the classes, if the label column has them."""
    lists = [tuple(getattr(table.features[label], "names", None) or ()) for table in splits.values()]
    if len(set(lists)) > 1:
        raise DataError(f"splits of source have different classes in column {label!r}; give one list of classes to all")
    return lists[0] or None


def official_parts(rows: list[Cells], splits: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the rows of each official part, if the splits are named as such."""
    if len(splits) < 2 or not all(part in FOLDS for part in splits):
        return {}
    return {FOLDS[part]: np.array([i for i, c in enumerate(rows) if c.split == part], np.int64) for part in splits}
