"""Ask the server whether a run goes on, while a site works on a message of it.

Flower's node learns that a run was stopped only when it sends the reply, and takes no other message before: a message
could not end the work. So the process that works asks, with the site's key, by the request with which a node asks for a
run that it does not know yet.
"""

import os
import ssl
from collections.abc import Callable
from typing import Any

from .deploy.operations import SILENT

os.environ.update(SILENT)  # before Flower is imported, which reads them once

from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.error import FlowerError
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from .deploy.certificates import CA, read_site_key
from .site_config import SiteConfig

TIMEOUT = 5.0  # seconds
FORBIDDEN = 403  # HTTP's code of Flower's replies to requests about a run that is not running


def stop_check(site_config: SiteConfig, run: int, node: int) -> Callable[[], bool]:
    """Return a function that asks whether a run was stopped or has ended; False if the server cannot be asked."""
    bundle, question = site_config.bundle, GetRunRequest(node=Node(node_id=node), run_id=run)

    def is_stopped() -> bool:
        if bundle is None:
            return False  # a node that was started by hand
        try:
            key = read_site_key(bundle)
            proof = NodeAuthHttpInterceptor(key, key.public_key())
            link, authority = f"https://{site_config.superlink}", ssl.create_default_context(cafile=bundle / CA)
            with FleetHttpClient(link, interceptors=[proof], verify=authority, timeout=TIMEOUT) as client:
                client.GetRun(question)
        except Exception as error:  # if the server cannot be reached, the work continues until its deadline
            response: Any = getattr(error, "response", None)
            is_refused = response is not None and response.status_code == FORBIDDEN
            return is_refused and FlowerError.from_json(response.text) is not None  # by Flower, not by a proxy
        return False

    return is_stopped
