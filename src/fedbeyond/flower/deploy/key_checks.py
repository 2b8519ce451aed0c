"""Check the keys and private files of a site or of the server: they exist, are private, and the server knows them."""

from collections.abc import Iterator
from pathlib import Path

from ...errors import FedbeyondError
from ..site_config import SiteConfig
from . import certificates, keys, operations
from .admission import is_registered
from .finding import Finding
from .folder import FederationConfig


def check_keys(folder: Path, federation: FederationConfig) -> Finding:
    """Check that the public key of every site is registered."""
    try:
        missing = [name for name in federation.members if name not in keys.registered_keys(folder)]
    except FedbeyondError as error:
        return Finding(False, "keys", str(error))
    remedy = f"register what the site sends: fedbeyond federation register {folder} {missing[0]} KEY" if missing else ""
    return Finding(not missing, "keys", f"no key of {', '.join(missing)}; {remedy}" if missing else "of all sites")


def check_private_files(site_config: SiteConfig, bundle: Path) -> Iterator[Finding]:
    """Check that the key, the secret and the private states of a site exist, and are for its user alone."""
    enrol = f"create it: {operations.enrol_command(bundle)}"
    has_key = (bundle / certificates.SITE_KEY).exists()
    yield check_mode("key", bundle / certificates.SITE_KEY, enrol)
    if site_config.secret:
        restore = "restore it; with another secret, repeated rounds give other noise" if has_key else enrol
        yield check_mode("secret", Path(site_config.secret), restore)
    elif site_config.role == "train":
        yield Finding(True, "secret", "none: runs with dp are rejected, or with secret = '' not protected")
    if site_config.folder.exists():
        yield check_mode("state", site_config.folder)


def check_mode(topic: str, path: Path, remedy: str = "restore it") -> Finding:
    """Check that a file or folder exists, and that other users can neither read nor enter it."""
    if not path.exists():
        return Finding(False, topic, f"{path} is missing; {remedy}")
    if path.stat().st_mode & 0o077:
        return Finding(
            False, topic, f"other users can read {path}; run chmod {'700' if path.is_dir() else '600'} {path}"
        )
    return Finding(True, topic, str(path))


def check_registration(site_config: SiteConfig, bundle: Path) -> Finding:
    """Check that the server knows the key of a site."""
    path = bundle / certificates.SITE_KEY
    try:
        known = is_registered(site_config.superlink, bundle)
    except (OSError, ValueError) as error:
        return Finding(False, "registered", f"{path} cannot be read: {error}")
    if known:
        return Finding(True, "registered", f"the server knows the key of {site_config.site}")
    reason = f"the server does not know {path}" if known is False else "the server did not say whether it knows the key"
    return Finding(False, "registered", f"{reason}; send {path}.pub to the federation's operator, who registers it")
