"""Split files: save and load a partition as JSON, so that runs and people can share it."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..._io import storage_errors, write
from ...errors import ConfigError, DataError
from ...images import Dataset
from .assignment import ClientRows, Partition, Rows, count_rows

FORMAT = "fedbeyond split 1"
ALL = "all"  # written instead of a list of every image
MAX_EXAMPLES = 3  # names in a message

REMEDY = "make a new split with fedbeyond data split"


def save(path: Path, partition: Partition, domains: Dataset, target: str) -> None:
    """Write a partition; images are given by file name, or by row number if they have no names."""

    def named(rows: Rows) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for domain, index in rows.items():
            names = domains.note(domain).names
            complete = np.array_equal(index, np.arange(len(domains.images[domain][1])))
            entries[domain] = ALL if complete else [names[row] if names else int(row) for row in index]
        return entries

    clients = {}
    for name, rows in partition.clients.items():
        clients[name] = {"domain": rows.domain, "train": named(rows.train), "val": named(rows.val)}
        clients[name] |= {"test": named(rows.test)} if rows.test else {}
    described = {
        domain: {"images": len(domains.images[domain][1]), "digest": digest(domains, domain)}
        for domain in domains.images
    }
    content = {"format": FORMAT, "classes": domains.classes, "target": target, "domains": described}
    content |= {"clients": clients, "unseen": named(partition.tests)}
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(content, indent=1).encode())


def digest(domains: Dataset, domain: str) -> str:
    """Compute a digest of a domain's labels and groups, and of the names, or else the contents, of its images."""
    note, labels = domains.note(domain), domains.images[domain][1].tolist()
    names = note.names or range(len(labels))
    hashed = hashlib.sha256(note.digest.encode())
    groups = [f"\0{group}" for group in note.groups] or [""] * len(labels)
    for name, label, group in sorted(zip(names, labels, groups, strict=True)):
        hashed.update(f"{name}\0{domains.classes[label]}{group}\n".encode())
    return hashed.hexdigest()[:16]


def load(path: Path, domains: Dataset, target: str | None) -> Partition:
    """Read a partition; raise if it was made for another target or other data."""
    content = read(path)
    if content["target"] != target:
        raise ConfigError(
            f"{path} was made for target {content['target']}, this run has target {target}; "
            f"choose another split file or target"
        )
    wrong = list(differences(content, domains))
    if wrong:
        raise DataError(f"{path} was made for other data: {'; '.join(wrong)}; use those data, or {REMEDY}")
    row_of = {domain: {name: row for row, name in enumerate(domains.note(domain).names)} for domain in domains.images}

    def rows(entries: dict[str, Any]) -> Rows:
        indices = {}
        for domain, names in entries.items():
            every = range(len(domains.images[domain][1]))
            known = row_of[domain] or every
            indices[domain] = np.array(every if names == ALL else [known[name] for name in names], np.int64)
        return indices

    try:
        clients = {
            name: ClientRows(entry["domain"], rows(entry["train"]), rows(entry["val"]), rows(entry.get("test", {})))
            for name, entry in content["clients"].items()
        }
        partition = Partition(clients, rows(content["unseen"]))
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(f"{path} names {error}, which the data do not have; {REMEDY}") from None
    require_unseen(path, partition, content["target"])
    require_disjoint(path, partition)
    return partition


def read(path: Path) -> dict[str, Any]:
    """Return the content of a split file; raise if it is not one."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the split file {path}: {error.strerror}; make it with fedbeyond data split"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not a split file ({error}); make one with fedbeyond data split") from None
    keys = {"classes", "target", "domains", "clients", "unseen"}
    if not isinstance(content, dict) or content.get("format") != FORMAT or not keys <= content.keys():
        raise ConfigError(f"{path} is not a split file of this version ({FORMAT}); make one with fedbeyond data split")
    return content


def differences(content: dict[str, Any], domains: Dataset) -> Iterator[str]:
    """Describe how the data differ from those that a split file was made for."""
    if tuple(content["classes"]) != domains.classes:
        odd = sorted(set(content["classes"]) ^ set(domains.classes))
        yield f"only one of them has the classes {', '.join(odd[:MAX_EXAMPLES])}" if odd else "classes in another order"
    for domain in sorted(set(content["domains"]) ^ set(domains.images)):
        yield f"domain {domain!r} is only in {'the split file' if domain in content['domains'] else 'the data'}"
    clients = (entry.get(part, {}) for entry in content["clients"].values() for part in ("train", "val", "test"))
    parts = [*clients, content["unseen"]]
    for domain in sorted(set(content["domains"]) & set(domains.images)):
        expected, actual = content["domains"][domain]["images"], len(domains.images[domain][1])
        names = set(domains.note(domain).names)
        listed = [part[domain] for part in parts if part.get(domain, ALL) != ALL]
        used = {name for each in listed for name in each if isinstance(name, str)}
        if names and used - names:
            missing = sorted(used - names)
            yield f"{domain!r} lacks {len(missing)} of the split's images, such as {', '.join(missing[:MAX_EXAMPLES])}"
        elif expected != actual:
            yield f"{domain!r} has {expected:,} images in the split file and {actual:,} in the data"
        elif content["domains"][domain]["digest"] != digest(domains, domain):
            yield f"{domain!r} has the same number of images, but other names, labels, groups or contents"


def require_unseen(path: Path, partition: Partition, target: str) -> None:
    """Raise if the unseen images are not those of the target, or if a client has images of the target."""
    if set(partition.tests) != set(target.split("+")) or not all(map(len, partition.tests.values())):
        raise DataError(f"{path}: its target is {target}, but its unseen images are not those of {target}; {REMEDY}")
    for name, rows in partition.clients.items():
        known = sorted(partition.tests.keys() & (rows.train.keys() | rows.val.keys() | rows.test.keys()))
        if known:
            raise DataError(
                f"{path}: client {name!r} has images of {known[0]!r}, which must be unseen; remove them from the file"
            )


def require_disjoint(path: Path, partition: Partition) -> None:
    """Raise if an image is used twice, or if a client has no training or no validation images."""
    for name, rows in partition.clients.items():
        train, val = count_rows(rows.train), count_rows(rows.val)
        if not train or not val:
            raise DataError(f"{path}: client {name!r} has {train} training and {val} validation images; give it both")
    clients = (part for rows in partition.clients.values() for part in (rows.train, rows.val, rows.test))
    parts = [*clients, partition.tests]
    for domain in dict.fromkeys(domain for part in parts for domain in part):
        joined = np.concatenate([part[domain] for part in parts if domain in part])
        if len(np.unique(joined)) < len(joined):
            raise DataError(f"{path}: some images of {domain!r} are used twice; keep each in one split of one client")
