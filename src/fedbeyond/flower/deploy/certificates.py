"""Certificates for the server and keys for the sites of a federation, made on the spot.

An authority of the federation's own signs the server's certificate; each site proves who it is with a key pair, whose
public half the server registers under the site's name. Elliptic curves as Flower wants them (NIST P-384).
"""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ..._io import storing
from ...errors import ConfigError

CA, CERTIFICATE, SERVER_KEY, SITE_KEY, SECRET = "ca.crt", "server.pem", "server.key", "key", "secret"
VALID = timedelta(days=825)


def certify(folder: Path, *hosts: str) -> None:
    """An authority and a certificate of the server that it signs; the authority's own key is not kept."""
    x509, hashes, serialization, ec = _tools()
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    signer = _name("fedbeyond federation")
    root = _certificate(signer, signer, authority).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and lists
    root_signed = root.add_extension(usage, True).sign(authority, hashes.SHA384())
    names = x509.SubjectAlternativeName([_address(host) for host in dict.fromkeys(hosts)])
    leaf = _certificate(_name("fedbeyond server"), signer, server).add_extension(names, False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False)
    key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    signed = leaf.add_extension(key_id, False).sign(authority, hashes.SHA384())
    pem = serialization.Encoding.PEM
    private(folder / SERVER_KEY, _secret(server, serialization.PrivateFormat.PKCS8))
    public(folder / CERTIFICATE, signed.public_bytes(pem))
    public(folder / CA, root_signed.public_bytes(pem))


def pair(folder: Path) -> bytes:
    """A site's key pair; its public half, to be registered."""
    _, _, serialization, ec = _tools()
    key = ec.generate_private_key(ec.SECP384R1())
    private(folder / SITE_KEY, _secret(key, serialization.PrivateFormat.OpenSSH))
    open_half = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public(folder / f"{SITE_KEY}.pub", open_half)
    return bytes(open_half)


def end(path: Path) -> datetime:
    """When a certificate ends."""
    x509, *_ = _tools()
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc  # type: ignore[no-any-return]


def private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read; one that is there is not overwritten."""
    _new(path, content, 0o600)


def public(path: Path, content: bytes) -> None:
    """Write a file that everybody may read; one that is there is not overwritten."""
    _new(path, content, 0o644)


def _new(path: Path, content: bytes, mode: int) -> None:
    with storing(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise ConfigError(f"{path} is there already; choose another folder, or delete that one") from None
        with os.fdopen(number, "wb") as file:
            file.write(content)


def _tools() -> Any:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError("keys need the package cryptography; pip install 'fedbeyond[flower]'") from None
    return x509, hashes, serialization, ec


def _secret(key: Any, style: Any) -> bytes:
    _, _, serialization, _ = _tools()
    return bytes(key.private_bytes(serialization.Encoding.PEM, style, serialization.NoEncryption()))


def _name(common: str) -> Any:
    x509, _, _, _ = _tools()
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common)])


def _address(host: str) -> Any:
    x509, _, _, _ = _tools()
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(owner: Any, signer: Any, key: Any) -> Any:
    x509, _, _, _ = _tools()
    now = datetime.now(UTC)
    blank = x509.CertificateBuilder().subject_name(owner).issuer_name(signer).public_key(key.public_key())
    dated = blank.not_valid_before(now - timedelta(minutes=10)).not_valid_after(now + VALID)  # clocks differ
    return dated.serial_number(x509.random_serial_number()).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False
    )
