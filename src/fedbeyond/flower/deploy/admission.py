"""Say why a site is not admitted by its server, or why its Flower node ended.

Flower's answer to an unknown key is that to a site which is connected already, and its node ends with exit code 0 when
the server rejects it. So the server is asked, and the node's log is read.
"""

import re
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...errors import printable
from . import certificates

ACTIVATE = "/v1/fleet/activate-node"
CAUSES = {  # words in the log of a node: what they mean, and what to do
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not signed by ca.crt of this site's folder; ask the "
    "federation's operator for the present ca.crt",
    "certificate verify failed": "the server's certificate is not signed by ca.crt of this site's folder; ask the "
    "federation's operator for the present ca.crt",
    "401 Unauthorized": "the server rejected this site: its key was replaced or withdrawn, or its clock is more than "
    "5 s ahead of the server's; run fedbeyond preflight",
    "does not recognize this SuperNode": "the server does not know this site any more; run fedbeyond preflight",
    "Address already in use": "the local port is in use; leave out --port, or give another",
    "address already in use": "the local port is in use; leave out --port, or give another",
    "Exit Code: 606": "the server has another version of Flower; install the same fedbeyond everywhere",
}


def is_registered(address: str, bundle: Path) -> bool | None:
    """Ask the server whether it knows the key of a site; None if it gives no answer to that, for example a 401.

    The request is an activation with an interval of 0, which is refused before it has an effect: as an interval that
    is not valid if the key is known, and as an activation that failed if it is not.
    """
    key = certificates.read_site_key(bundle)
    headers, public_key = _sign(key)
    body = b"\x0a" + _varint(len(public_key)) + public_key  # protobuf: field 1, bytes
    request = urllib.request.Request(f"https://{address}{ACTIVATE}", body, headers)
    context = ssl.create_default_context(cafile=str(bundle / certificates.CA))
    try:
        with urllib.request.urlopen(request, timeout=10, context=context):
            return None
    except urllib.error.HTTPError as error:
        answer = {400: "heartbeat interval", 412: "failed to activate"}.get(error.code)
        text = error.read(2000).decode("utf-8", "replace").lower()
        return error.code == 400 if answer and answer in text else None
    except (OSError, ValueError):
        return None


def reason_for_end(output: str, code: int) -> str:
    """Return why a site's node ended, from what it logged since it was started."""
    text = " ".join(line.strip() for line in output.splitlines())
    for words, cause in CAUSES.items():
        if words in text:
            return cause
    errors = re.findall(r"\b(?:ERROR|error|Error)\b ?:?\s*(.*)", output)
    last = errors[-1] if errors else (output.strip().splitlines() or ["it logged nothing"])[-1]
    return f"exit code {code}: {printable(' '.join(last.split()), 300)}"


def _sign(key: Any) -> tuple[dict[str, str], bytes]:
    """Return the headers by which a node authenticates, with a signed time, and its public key."""
    _, hashes, serialization, ec = certificates.import_cryptography()
    formats = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public_key, moment = key.public_key().public_bytes(*formats), datetime.now(UTC).isoformat()
    signature = key.sign(moment.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    headers = {"flwr-public-key": b64encode(public_key).decode(), "flwr-timestamp": moment}
    headers |= {"flwr-signature": b64encode(signature).decode(), "Content-Type": "application/protobuf"}
    return headers, bytes(public_key)


def _varint(number: int) -> bytes:
    """Encode a length as protobuf does: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number % 128 | 128)
        number //= 128
    return bytes([*encoded, number])
