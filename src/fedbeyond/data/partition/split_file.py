"""A split as a file, to be shared and reused: what each client trains and validates on, and what is unseen."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..._io import storing, write
from ...errors import ConfigError, DataError
from ...images import Domains
from .assignment import Division, Holding, Rows, count

FORMAT = "fedbeyond split 1"
ALL = "all"  # in the place of a list of every image
SOME = 3  # names that are given as examples


def save(path: Path, division: Division, domains: Domains, target: str) -> None:
    """Write who holds what: images by the names of their files, or by their numbers where they have none."""

    def named(rows: Rows) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for domain, some in rows.items():
            names = domains.note(domain).names
            whole = np.array_equal(some, np.arange(len(domains.images[domain][1])))
            told[domain] = ALL if whole else [names[row] if names else int(row) for row in some]
        return told

    clients = {}
    for name, holding in division.clients.items():
        clients[name] = {"domain": holding.domain, "train": named(holding.train), "val": named(holding.val)}
        clients[name] |= {"test": named(holding.test)} if holding.test else {}
    about = {
        domain: {"images": len(domains.images[domain][1]), "digest": digest(domains, domain)}
        for domain in domains.images
    }
    told = {"format": FORMAT, "classes": domains.classes, "target": target, "domains": about}
    told |= {"clients": clients, "unseen": named(division.tests)}
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(told, indent=1).encode())


def digest(domains: Domains, domain: str) -> str:
    """What tells a domain's images from others: their names, or their contents, and their labels."""
    note, labels = domains.note(domain), domains.images[domain][1].tolist()
    names = note.names or range(len(labels))
    seen = hashlib.sha256(note.digest.encode())
    for name, label in sorted(zip(names, labels, strict=True)):
        seen.update(f"{name}\0{domains.classes[label]}\n".encode())
    return seen.hexdigest()[:16]


def load(path: Path, domains: Domains, target: str | None) -> Division:
    """Read who holds what, and refuse data that are not those it was made for."""
    told = read(path)
    if told["target"] != target:
        raise ConfigError(f"{path} leaves out {told['target']}, this run {target}; choose another split or target")
    wrong = list(differences(told, domains))
    if wrong:
        raise DataError(f"{path} was made for other data: {'; '.join(wrong)}; use those data, or make a new split")
    places = {domain: {name: row for row, name in enumerate(domains.note(domain).names)} for domain in domains.images}

    def rows(named: dict[str, Any]) -> Rows:
        found = {}
        for domain, some in named.items():
            whole = range(len(domains.images[domain][1]))
            known = places[domain] or whole
            found[domain] = np.array(whole if some == ALL else [known[name] for name in some], np.int64)
        return found

    try:
        clients = {
            name: Holding(held["domain"], rows(held["train"]), rows(held["val"]), rows(held.get("test", {})))
            for name, held in told["clients"].items()
        }
        division = Division(clients, rows(told["unseen"]))
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(f"{path} speaks of {error}, which is not there; make a new split") from None
    require_unseen(path, division, told["target"])
    require_once(path, division)
    return division


def read(path: Path) -> dict[str, Any]:
    """The contents of a split file."""
    try:
        told = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the split {path}: {error.strerror}; make it with fedbeyond data split"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not a split ({error}); make one with fedbeyond data split") from None
    keys = {"classes", "target", "domains", "clients", "unseen"}
    if not isinstance(told, dict) or told.get("format") != FORMAT or not keys <= told.keys():
        raise ConfigError(f"{path} is not a split of this version ({FORMAT}); make one with fedbeyond data split")
    return told


def differences(told: dict[str, Any], domains: Domains) -> Iterator[str]:
    """What the data of a split have and these have not, and the other way round."""
    if tuple(told["classes"]) != domains.classes:
        odd = sorted(set(told["classes"]) ^ set(domains.classes))
        yield f"its classes are {', '.join(odd[:SOME]) if odd else 'in another order'} unlike here"
    for domain in sorted(set(told["domains"]) ^ set(domains.images)):
        yield f"domain {domain!r} is only {'there' if domain in told['domains'] else 'here'}"
    for domain in sorted(set(told["domains"]) & set(domains.images)):
        there, here = told["domains"][domain]["images"], len(domains.images[domain][1])
        names = set(domains.note(domain).names)
        used = {name for name in mentioned(told, domain) if isinstance(name, str)}
        if names and used - names:
            gone = sorted(used - names)
            yield f"{domain!r} lacks {len(gone)} of its images, as {', '.join(gone[:SOME])}"
        elif there != here:
            yield f"{domain!r} has {there:,} images there and {here:,} here"
        elif told["domains"][domain]["digest"] != digest(domains, domain):
            yield f"{domain!r} has as many images here, but other names, labels or contents"


def mentioned(told: dict[str, Any], domain: str) -> Iterator[object]:
    """Every image of a domain that a split names."""
    for held in (*told["clients"].values(), {"unseen": told["unseen"]}):
        for part in ("train", "val", "test", "unseen"):
            some = held.get(part, {}).get(domain, [])
            yield from () if some == ALL else some


def require_unseen(path: Path, division: Division, target: str) -> None:
    """Refuse a split that measures on other domains than it says, or in which clients hold images of those."""
    if set(division.tests) != set(target.split("+")) or not all(map(len, division.tests.values())):
        raise DataError(f"{path}: leaves out {target}, but its unseen images are not those; make a new split")
    for name, holding in division.clients.items():
        known = sorted(division.tests.keys() & (holding.train.keys() | holding.val.keys() | holding.test.keys()))
        if known:
            raise DataError(
                f"{path}: client {name!r} holds images of {known[0]!r}, which is to be unseen; take them out"
            )


def require_once(path: Path, division: Division) -> None:
    """Refuse a split in which an image is held twice, or a client has nothing."""
    held: dict[str, list[np.ndarray]] = {}
    for name, holding in division.clients.items():
        if not count(holding.train) or not count(holding.val):
            raise DataError(f"{path}: client {name!r} has nothing to train on or nothing to validate with")
        for rows in (holding.train, holding.val, holding.test):
            for domain, some in rows.items():
                held.setdefault(domain, []).append(some)
    held |= {domain: [*held.get(domain, []), rows] for domain, rows in division.tests.items()}
    for domain, parts in held.items():
        every = np.concatenate(parts)
        if len(np.unique(every)) < len(every):
            raise DataError(f"{path}: images of {domain!r} are held twice; each may be in one place only")
