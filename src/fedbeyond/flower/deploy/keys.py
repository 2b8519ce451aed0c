"""The keys by which sites authenticate: a site creates its own, and the operator registers the public half.

Keys use the curve that Flower requires (NIST P-384) and the form of OpenSSH. A private key never leaves its site.
"""

import json
import os
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ..._io import read_json, storage_errors, write
from ...errors import ConfigError, nearest
from ..site_config import MIN_SECRET
from .certificates import SITE_KEY, import_cryptography, write_key, write_new
from .folder import read_federation_config, site_settings

CURVE = "secp384r1"
REGISTERED = "registered.json"  # in the folder of the server
LOST = (
    "restore it from a backup, or delete this file alone: to replace a key, you then have to find its number at Flower"
)


def enrol(bundle: Path) -> str:
    """Create the key pair and the secret of a site in its folder, and return the public key; refuse a second time."""
    settings, path = site_settings(bundle), bundle / SITE_KEY
    if path.exists():
        raise ConfigError(
            f"{path} already exists: this site has enrolled, and its public key is {path}.pub. To replace a key that "
            f"others may have seen, delete {path}, enrol again, and ask the operator to register it with --replace"
        )
    if settings.get("secret") and not (secret := Path(settings["secret"])).exists():
        write_new(secret, os.urandom(MIN_SECRET), 0o600)
    _, _, serialization, ec = import_cryptography()
    key = ec.generate_private_key(ec.SECP384R1())
    public_key = as_text(key.public_key())
    write(bundle / f"{SITE_KEY}.pub", f"{public_key}\n".encode())  # before the key: a site with a key has both
    write_key(path, key, serialization.PrivateFormat.OpenSSH)
    return public_key


def enrol_all(folder: Path) -> None:
    """Enrol and register every site of a federation whose sites are all on this machine."""
    for name in read_federation_config(folder).members:
        store_key(folder, name, enrol(folder / "sites" / name))


def store_key(folder: Path, name: str, given: str, replace: bool = False) -> str:
    """Store the public key of a site, given as text or as a file, for the server to accept; return it as text."""
    federation = read_federation_config(folder)
    if name not in federation.members:
        raise ConfigError(f"the federation has no site {name!r}; {nearest(name, federation.members)}")
    public_key = read_public_key(given)
    if public_key in read_record(folder).withdrawn:
        raise ConfigError(
            f"the key {fingerprint(public_key)} was replaced by another and is not accepted again; create a new one at "
            "the site: delete key, then fedbeyond join --enrol"
        )
    for other, known in registered_keys(folder).items():
        if other != name and known == public_key:
            raise ConfigError(f"this is the key of {other!r}; each site needs a key of its own: send that of {name!r}")
        if other == name and known != public_key and not replace:
            raise ConfigError(
                f"{name!r} has another key already ({fingerprint(known)}); if the site really replaced it, register "
                f"the new one ({fingerprint(public_key)}) with --replace: the old one is then rejected"
            )
        if other == name and known != public_key:
            ensure_withdrawable(folder, known)
    path = folder / "server" / "sites" / f"{name}.pub"
    with storage_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write(path, f"{public_key}\n".encode())
    return public_key


class Record(NamedTuple):
    """The keys that Flower's server has been given: by its numbers of them, and those that it must not accept again."""

    accepted: dict[str, str]
    withdrawn: list[str]
    unnumbered: list[str]  # that it may accept, by a number that is not known


def read_record(folder: Path) -> Record:
    """Read which keys the server has been given."""
    path = folder / "server" / REGISTERED
    content = read_json(path, LOST) if path.exists() else {}
    return Record(dict(content.get("accepted", {})), *(list(content.get(key, [])) for key in Record._fields[1:]))


def write_record(folder: Path, record: Record) -> None:
    """Write which keys the server has been given."""
    write(folder / "server" / REGISTERED, json.dumps(record._asdict(), indent=1).encode())


def ensure_withdrawable(folder: Path, key: str) -> None:
    """Raise `ConfigError` if the server may accept a key that cannot be withdrawn: its number is not known."""
    path, home = folder / "server" / REGISTERED, folder.absolute() / "server" / "flower"
    if key in read_record(folder).unnumbered:
        raise ConfigError(
            f"the server may accept the old key {fingerprint(key)}, which cannot be withdrawn: Flower's number of it "
            f"is not known. Start the server (fedbeyond serve {folder}), then try again. If this remains, "
            f"FLWR_HOME={home} flwr supernode list shows the number, one that {path} does not have: move the key there "
            'from "unnumbered" to "accepted", as "NUMBER": "ecdsa-sha2-nistp384 ..."'
        )


def registered_keys(folder: Path) -> dict[str, str]:
    """Return the public keys that the server accepts, by the name of the site."""
    paths = sorted((folder / "server" / "sites").glob("*.pub"))
    return {path.stem: read_public_key(str(path)) for path in paths}


def read_public_key(given: str) -> str:
    """Return a public key, given as text or as the path of a file, in one form; `ConfigError` if it is none."""
    text, source = given.strip(), "the given key"
    if len(text.split(maxsplit=1)) < 2 or _is_file(text):  # a key has a type and a body
        source = text
        try:
            text = Path(text).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{source!r} is neither a public key nor a file with one ({error}); give the file key.pub of the site, "
                "or its text in quotes: 'ecdsa-sha2-nistp384 AAAA...'"
            ) from None
    if "PRIVATE KEY" in text:
        raise ConfigError(
            f"{source} is a private key, which must never leave its site. Delete it here; at the site delete key, "
            "enrol again, and send key.pub"
        )
    return as_text(_load_public_key(text, source))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a path
        return False


def _load_public_key(text: str, source: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    _, _, _, ec = import_cryptography()
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{source} is not a public key ({error}); give the file key.pub of the site") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != CURVE:
        kind = getattr(getattr(key, "curve", None), "name", type(key).__name__.strip("_"))
        raise ConfigError(
            f"{source} is a key of another kind ({kind}); Flower needs NIST P-384, as 'fedbeyond join --enrol' creates"
        )
    return key


def as_text(public_key: Any) -> str:
    """Return a public key in the form of OpenSSH: its type and its body, without a comment."""
    _, _, serialization, _ = import_cryptography()
    encoded = public_key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return str(encoded.decode())


def fingerprint(public_key: str) -> str:
    """Return the fingerprint of a public key as ssh-keygen prints it, to be compared by people."""
    return f"SHA256:{b64encode(sha256(b64decode(public_key.split()[1])).digest()).decode().rstrip('=')}"
