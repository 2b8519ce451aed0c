"""Approval of runs by a site's operator: which configurations are approved, and which wait for it.

A run is known by the digest of its configuration, which the site computes from what it received. Everything in the
configuration counts except data and weights, which each site has for itself.
"""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from .. import _io
from ..errors import ApprovalError, ConfigError, StorageError
from ..experiment.config import Config, parse
from .shared_config import DIGITS, run_digest, shared_config
from .site_config import APPROVALS

MIN_PREFIX = 8  # digits of a digest that are enough to name a waiting run
MAX_WAITING, MAX_BYTES = 20, 2**16  # runs, bytes of one: a server cannot fill the disk of a site with requests


class Waiting(NamedTuple):
    """A run that a server wants to start and that waits for approval."""

    digest: str
    asked: str  # when it was first requested
    shared: dict[str, Any]  # its configuration, without data

    def config(self, data: str, public: str | None) -> Config:
        """Return the configuration of the run at a site with these data."""
        return parse(self.shared | {"data": data, "public": public}, f"run {self.digest}")


def ensure_approved(folder: Path, config: Config) -> None:
    """Raise `ApprovalError` if a run is not approved, and note it for the site's operator."""
    digest = run_digest(config)
    if is_approved(folder, digest):
        return
    note_waiting(folder, digest, config)
    raise ApprovalError(
        f"its operator has not approved this configuration, whose digest is {digest}; at the site: fedbeyond approve "
        f"FOLDER lists what waits, and fedbeyond approve FOLDER {digest} approves this one"
    )


def note_waiting(folder: Path, digest: str, config: Config) -> None:
    """Store a run that waits for approval, unless it is too large to be one of ours; too many: remove the oldest."""
    shared, known = shared_config(config), [run.digest for run in waiting(folder)]
    if digest in known or len(json.dumps(shared)) > MAX_BYTES:
        return
    for oldest in known[: max(0, len(known) + 1 - MAX_WAITING)]:
        _waiting_file(folder, oldest).unlink(missing_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    _write(_waiting_file(folder, digest), {"asked": now, "config": shared})


def is_approved(folder: Path, digest: str) -> bool:
    """Return whether the site's operator has approved a configuration."""
    return (folder / APPROVALS / f"{digest}.approved.json").exists()


def waiting(folder: Path) -> list[Waiting]:
    """Return the runs that wait for approval, the oldest first; a file that cannot be read is none, and is replaced."""
    runs = [run for path in (folder / APPROVALS).glob("*.waiting.json") if (run := _read_waiting(path))]
    return sorted(runs, key=lambda run: (run.asked, run.digest))


def _read_waiting(path: Path) -> Waiting | None:
    try:
        entry = _io.read_json(path)
        return Waiting(path.name.partition(".")[0], str(entry["asked"]), dict(entry["config"]))
    except (StorageError, KeyError, TypeError, ValueError):
        return None


def approved(folder: Path) -> dict[str, str]:
    """Return the digests of approved configurations, and when each was approved."""
    paths = sorted((folder / APPROVALS).glob("*.approved.json"))
    remedy = "delete this file, and approve the run again if it is wanted"
    return {path.name.partition(".")[0]: str(_io.read_json(path, remedy).get("approved")) for path in paths}


def approve(folder: Path, given: str) -> str:
    """Approve a configuration by its digest, or by the first digits of one that waits; return the digest."""
    digest = _find(given, [run.digest for run in waiting(folder)])
    now = datetime.now(UTC).isoformat(timespec="seconds")
    _write(folder / APPROVALS / f"{digest}.approved.json", {"approved": now})
    _waiting_file(folder, digest).unlink(missing_ok=True)
    return digest


def revoke(folder: Path, given: str) -> str:
    """Withdraw an approval, or remove a run that waits for one; return the digest."""
    known = [*approved(folder), *(run.digest for run in waiting(folder))]
    digest = _find(given, known)
    if digest not in known:
        raise ConfigError(f"{digest} is not approved and does not wait for it; fedbeyond approve FOLDER lists both")
    for kind in ("approved", "waiting"):
        (folder / APPROVALS / f"{digest}.{kind}.json").unlink(missing_ok=True)
    return digest


def _find(given: str, known: list[str]) -> str:
    """Return the digest that is meant by its first digits; one that is given in full may be unknown yet."""
    if not re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX},{DIGITS}}}", given):
        raise ConfigError(f"a digest has {DIGITS} digits, of which {MIN_PREFIX} or more are needed, not {given!r}")
    found = [digest for digest in known if digest.startswith(given)]
    if len(given) == DIGITS or len(found) == 1:
        return found[0] if found else given
    count = f"{len(found)} digests begin" if found else "no digest here begins"
    raise ConfigError(f"{count} with {given}; give all {DIGITS} digits")


def _waiting_file(folder: Path, digest: str) -> Path:
    return folder / APPROVALS / f"{digest}.waiting.json"


def _write(path: Path, content: dict[str, Any]) -> None:
    with _io.storage_errors(path.parent):
        _io.create_private(path.parent)
    _io.write(path, json.dumps(content, indent=1).encode(), private=True)
