"""The frozen part of a run's network at a site: built from the seed, read from a file of its digest, or received once.

Every message of a run with `train.part` names the digest. A site whose own network has another one looks for the file
`frozen/DIGEST.safetensors` in its folder, where its operator has put it, or in `frozen/received`, where it is if the
server sent it in an earlier message.
"""

import os
import re
from pathlib import Path
from typing import Any

from torch import nn

from .. import _io, tree
from ..errors import FederationError, StorageError
from ..experiment import checkpoint
from ..networks.frozen import frozen_digest, frozen_part, install
from ..tree import Tree

FOLDER = "frozen"  # in a site's folder, shared by its runs
RECEIVED = "received"  # a folder in it, of what the server sent
MAX_STORED = 16  # frozen parts that were received: a server cannot fill a site's disk with them
REMEDY = "delete the file, and the server sends it again"
DIGEST = re.compile(r"[0-9a-f]{64}")


def is_at_hand(net: nn.Module, folder: Path, digest: object) -> bool:
    """Return whether a network has the frozen part of this digest, or a file with it is in the site's folder."""
    return not frozen_part(net) or frozen_digest(net) == digest or file_of(folder, digest).is_file()


def use(net: nn.Module, folder: Path, run: str, digest: object) -> None:
    """Give a network the frozen part of this digest; `FederationError` if it is not at hand, or not that of the run."""
    if not frozen_part(net):
        return
    file, noted, named = file_of(folder, digest), folder / f"{run}.frozen", str(digest)[:12]
    if noted.exists() and noted.read_text("utf-8") != digest:
        raise FederationError(
            f"the server names another frozen part than when the run began, {named}; if that was agreed on, "
            f"delete {noted.name} in the site's folder"
        )
    if frozen_digest(net) != digest:
        if not file.is_file():
            raise FederationError(f"the frozen part {named} of the network is not here; the server sends it")
        install_checked(net, read(file), digest, f"; {REMEDY}")
    if not noted.exists():
        with _io.storage_errors(folder):
            _io.create_private(folder)
        _io.write(noted, str(digest).encode(), private=True)


def receive(net: nn.Module, folder: Path, digest: object, body: Tree) -> None:
    """Write a frozen part that the server sent to a file, if it has the digest and fits the network."""
    file = folder / FOLDER / RECEIVED / file_of(folder, digest).name
    install_checked(net, body, digest)
    with _io.storage_errors(file.parent):
        _io.create_private(folder / FOLDER)
        _io.create_private(file.parent)
    _io.write(file, checkpoint.content(body), private=True)
    with _io.storage_errors(file.parent):
        others = [other for other in file.parent.glob("*.safetensors") if other != file]
        for other in sorted(others, key=_last_use, reverse=True)[MAX_STORED - 1 :]:
            other.unlink(missing_ok=True)


def read(file: Path) -> Tree:
    """Read a frozen part, and note the time if it was received; a checksum is not needed, because it has a digest."""
    try:
        if file.parent.name == RECEIVED:
            os.utime(file)
        return checkpoint.unpack(file.read_bytes())
    except (OSError, ValueError) as error:
        raise StorageError(f"{file} cannot be read ({error}); {REMEDY}") from None


def _last_use(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0  # another process may have removed it


def install_checked(net: nn.Module, constants: dict[str, Any], digest: object, remedy: str = "") -> None:
    """Copy a frozen part into a network; `FederationError` if it has another digest or does not fit."""
    try:
        if tree.digest(constants).hex() != digest:
            raise FederationError(
                f"this is not the frozen part of the run's network: its digest is another than named{remedy}"
            )
        install(net, constants)
    except (AttributeError, TypeError, ValueError):  # it may be any tree
        raise FederationError(
            f"this is not the frozen part of the run's network: names, shapes or types differ{remedy}"
        ) from None


def file_of(folder: Path, digest: object) -> Path:
    """Return the file of a digest, the operator's if there is one; `FederationError` if it is no digest.

    A server chose it.
    """
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise FederationError("the server names no frozen part of the network, and train.part needs one")
    own = folder / FOLDER / f"{digest}.safetensors"
    return own if own.is_file() else folder / FOLDER / RECEIVED / own.name
