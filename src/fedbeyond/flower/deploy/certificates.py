"""Create the certificate of a federation's server, signed by the federation's own certificate authority."""

import os
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ..._io import PRIVATE_FOLDER, storage_errors
from ...errors import ConfigError

CA, CERTIFICATE, SERVER_KEY, SITE_KEY, SECRET = "ca.crt", "server.pem", "server.key", "key", "secret"
AUTHORITY = "fedbeyond federation"  # the name of the federation's certificate authority
VALIDITY = timedelta(days=825)


def write_certificates(folder: Path, *hosts: str) -> None:
    """Write a certificate authority and the server's certificate signed by it; the authority's key is not stored."""
    x509, hashes, serialization, ec = import_cryptography()
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = _certificate(x509, AUTHORITY, authority)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    usage = x509.KeyUsage(*[False] * 5, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False)
    root = root.add_extension(usage, True).sign(authority, hashes.SHA384())
    leaf = _certificate(x509, "fedbeyond server", server)
    names = x509.SubjectAlternativeName([_address(x509, host) for host in dict.fromkeys(hosts)])
    leaf = leaf.add_extension(names, False).add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False)
    key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    leaf = leaf.add_extension(key_id, False).sign(authority, hashes.SHA384())
    write_key(folder / SERVER_KEY, server, serialization.PrivateFormat.PKCS8)
    write_new(folder / CERTIFICATE, leaf.public_bytes(serialization.Encoding.PEM))
    write_new(folder / CA, root.public_bytes(serialization.Encoding.PEM))


def read_site_key(folder: Path) -> Any:
    """Read the private key of a site."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    return load_ssh_private_key((folder / SITE_KEY).read_bytes(), None)


def expiry(path: Path) -> datetime:
    """Return the time at which a certificate expires."""
    x509, *_ = import_cryptography()
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc  # type: ignore[no-any-return]


def authority_fingerprint(path: Path) -> str:
    """Return the fingerprint of a certificate, for operators to compare that they have the same authority."""
    x509, hashes, *_ = import_cryptography()
    digest = x509.load_pem_x509_certificate(path.read_bytes()).fingerprint(hashes.SHA256())
    return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


def write_new(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file that every user may read, or with 0o600 only its owner; `ConfigError` if it exists."""
    with storage_errors(path):
        path.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise ConfigError(f"{path} already exists; choose another folder, or delete that one") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def write_key(path: Path, key: Any, file_format: Any) -> None:
    """Write a private key, which only its owner may read."""
    _, _, serialization, _ = import_cryptography()
    write_new(path, key.private_bytes(serialization.Encoding.PEM, file_format, serialization.NoEncryption()), 0o600)


def import_cryptography() -> Any:
    """Import the parts of cryptography that are used here; `ConfigError` if it is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError("keys need the package cryptography; pip install 'fedbeyond[flower]'") from None
    return x509, hashes, serialization, ec


def _address(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(x509: Any, owner: str, key: Any) -> Any:
    """Begin a certificate that the federation's authority signs."""
    now = datetime.now(UTC)
    subject, issuer = (
        x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)]) for name in (owner, AUTHORITY)
    )
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(minutes=10)).not_valid_after(now + VALIDITY)  # clocks may differ
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
