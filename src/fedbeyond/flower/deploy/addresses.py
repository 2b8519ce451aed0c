"""Parse and check addresses: host:port, an IPv6 address in brackets."""

import re
from ipaddress import ip_address

from ...errors import ConfigError

EXAMPLE = "link.example.org:443 or [2001:db8::7]:443"
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")  # a part of a host name between two dots


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address, an IPv6 address without its brackets; `ConfigError` if it is not valid."""
    found = re.fullmatch(r"(\[[^\[\]]*\]|[^\[\]:]*):([0-9]+)", address)
    if not found:
        raise ConfigError(f"an address must be host:port, as in {EXAMPLE}, not {address!r}")
    host, port = found[1], int(found[2])
    if not 1 <= port <= 65535:
        raise ConfigError(f"the port of {address!r} must be from 1 to 65535")
    if host.startswith("[") and not (is_ip(host[1:-1]) and ":" in host):
        raise ConfigError(f"{host} in {address!r} is not an IPv6 address; write an address as in {EXAMPLE}")
    host = host.removeprefix("[").removesuffix("]")
    if not is_ip(host) and not is_host_name(host):
        raise ConfigError(f"{host!r} in {address!r} is not the name or IP address of a host; write it as in {EXAMPLE}")
    return host, port


def is_ip(host: str) -> bool:
    """Return whether this is an IP address."""
    try:
        ip_address(host)
        return True
    except ValueError:
        return False


def is_host_name(host: str) -> bool:
    """Return whether this can be the name of a host in a certificate; a number, as in 10.0.0.256, cannot."""
    labels = host.removesuffix(".").split(".")
    return len(host) <= 253 and all(LABEL.fullmatch(label) for label in labels) and not labels[-1].isdecimal()


def is_loopback(address: str) -> bool:
    """Return whether only the machine itself can reach this host:port."""
    host, _ = split_address(address)
    return host == "localhost" or (is_ip(host) and ip_address(host).is_loopback)


def is_unspecified(address: str) -> bool:
    """Return whether this host:port stands for all interfaces of a machine, as 0.0.0.0 does."""
    host, _ = split_address(address)
    return is_ip(host) and ip_address(host).is_unspecified
