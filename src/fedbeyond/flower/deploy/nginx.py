"""The configuration of nginx as a reverse proxy for a federation's server: it forwards only the messages of sites.

Flower's server answers sites (`/v1/fleet/`) and operators who start runs (`/v1/control/`) on one port, and
authenticates only sites. So that port is reachable only on the server's machine, and sites connect to the proxy.
"""

from importlib.resources import files
from string import Template

from . import certificates
from .addresses import is_loopback, split_address

TEMPLATE = "nginx.conf.template"


def nginx_config(address: str, bind: str) -> str:
    """Return the file for `nginx -p FOLDER/server -c nginx.conf`; its paths are relative, and any user can run it."""
    template = Template((files(__package__) / TEMPLATE).read_text("utf-8"))
    return template.substitute(
        listen=listen_address(address),
        bind=bind,
        certificate=certificates.CERTIFICATE,
        key=certificates.SERVER_KEY,
        authority=certificates.CA,
    )


def listen_address(address: str) -> str:
    """Return where the proxy listens: a loopback address as given, otherwise the port on all interfaces."""
    host, port = split_address(address)
    if is_loopback(address) and host != "localhost":
        return address
    return f"[::]:{port}" if ":" in host else str(port)
