"""Create the certificate of a federation's server and the key pairs of its sites.

The federation's own certificate authority signs the server's certificate. Each site authenticates with a key pair; the
server registers its public key under the site's name. Keys use the curve that Flower requires (NIST P-384).
"""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ..._io import storage_errors
from ...errors import ConfigError

CA, CERTIFICATE, SERVER_KEY, SITE_KEY, SECRET = "ca.crt", "server.pem", "server.key", "key", "secret"
VALIDITY = timedelta(days=825)


def write_certificates(folder: Path, *hosts: str) -> None:
    """Write a certificate authority and the server's certificate signed by it; the authority's key is not stored."""
    x509, hashes, serialization, ec = _cryptography()
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    signer = _name("fedbeyond federation")
    root = _certificate(signer, signer, authority).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    usage = x509.KeyUsage(
        False, False, False, False, False, True, True, False, False
    )  # signs certificates and revocation lists
    root_signed = root.add_extension(usage, True).sign(authority, hashes.SHA384())
    names = x509.SubjectAlternativeName([_address(host) for host in dict.fromkeys(hosts)])
    leaf = _certificate(_name("fedbeyond server"), signer, server).add_extension(names, False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False)
    key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    signed = leaf.add_extension(key_id, False).sign(authority, hashes.SHA384())
    pem = serialization.Encoding.PEM
    write_private(folder / SERVER_KEY, _private_bytes(server, serialization.PrivateFormat.PKCS8))
    write_public(folder / CERTIFICATE, signed.public_bytes(pem))
    write_public(folder / CA, root_signed.public_bytes(pem))


def write_key_pair(folder: Path) -> bytes:
    """Write the key pair of a site, and return the public key, which the server registers."""
    _, _, serialization, ec = _cryptography()
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / SITE_KEY, _private_bytes(key, serialization.PrivateFormat.OpenSSH))
    public_key = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_public(folder / f"{SITE_KEY}.pub", public_key)
    return bytes(public_key)


def expiry(path: Path) -> datetime:
    """Return the time at which a certificate expires."""
    x509, *_ = _cryptography()
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc  # type: ignore[no-any-return]


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read; `ConfigError` if it exists."""
    _write_new(path, content, 0o600)


def write_public(path: Path, content: bytes) -> None:
    """Write a new file that every user may read; `ConfigError` if it exists."""
    _write_new(path, content, 0o644)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    with storage_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise ConfigError(f"{path} already exists; choose another folder, or delete that one") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def _cryptography() -> Any:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError("keys need the package cryptography; pip install 'fedbeyond[flower]'") from None
    return x509, hashes, serialization, ec


def _private_bytes(key: Any, file_format: Any) -> bytes:
    _, _, serialization, _ = _cryptography()
    return bytes(key.private_bytes(serialization.Encoding.PEM, file_format, serialization.NoEncryption()))


def _name(common: str) -> Any:
    x509, _, _, _ = _cryptography()
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common)])


def _address(host: str) -> Any:
    x509, _, _, _ = _cryptography()
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(owner: Any, signer: Any, key: Any) -> Any:
    x509, _, _, _ = _cryptography()
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(owner).issuer_name(signer).public_key(key.public_key())
    builder = builder.not_valid_before(now - timedelta(minutes=10)).not_valid_after(now + VALIDITY)  # clocks may differ
    return builder.serial_number(x509.random_serial_number()).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False
    )
