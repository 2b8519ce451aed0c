"""What leaves a site that cannot answer: the class of the error. Its text, which may name a patient, stays in a log.

Only two classes of error leave with their text, `FederationError` and `PolicyError`. Their texts are made of what the
server sent and of what the site's policy decides: no path, no value and no number of the site's data.
"""

import secrets
import sys
import textwrap
import traceback
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from .._io import create_private, private_opener
from ..errors import FederationError, PolicyError, printable
from .messages import FAILURE, Message

LOG = "errors.log"  # in the site's folder
SPOKEN = (FederationError, PolicyError)  # and no class derived from them
MAX_LINES, MAX_LINE = 200, 2000  # of an entry
FLOWER_ERRORS = {  # Flower's codes of errors
    1: "the app could not be loaded at the site",
    2: "the app failed at the site",
    3: "the message was not available",
    4: "the reply was not available",
    5: "the site is not connected",
    7: "the app could not be installed at the site",
    8: "the app's process ended at the site",
}


def failure_message(error: Exception, folder: Path | None, request: Message | None, **notes: str) -> Message:
    """Return the reply of a site that cannot answer a request, and write the error to the log in the site's folder."""
    entry = entry_name(request)
    write_entry(folder, entry, error)
    name = type(error).__name__
    reason = f"{name}: {error}" if type(error) in SPOKEN else f"{name} at the site: see its {LOG}, entry {entry}"
    return Message(FAILURE, {"reason": reason} | notes)


def entry_name(request: Message | None) -> str:
    """Name an entry by the request, as its line in the audit log does (sha256): the name says nothing of the error."""
    if request is None:
        return secrets.token_hex(4)
    return sha256(request.text.encode() + request.content).hexdigest()[:8]


def write_entry(folder: Path | None, entry: str, error: Exception) -> None:
    """Write an error with its traceback to the site's log; to standard error if there is no folder to write to."""
    lines = "".join(traceback.format_exception(error)).splitlines()[-MAX_LINES:]
    text = "\n".join(printable(line, MAX_LINE) for line in lines)  # the server's words cannot forge an entry
    content = f"{datetime.now(UTC).isoformat(timespec='milliseconds')} entry {entry}\n{textwrap.indent(text, '  ')}\n"
    try:
        if folder is None:
            raise OSError("no folder")
        create_private(folder)
        with open(folder / LOG, "ab", opener=private_opener) as file:
            file.write(content.encode(errors="replace"))
    except OSError:
        print(content, end="", file=sys.stderr, flush=True)
