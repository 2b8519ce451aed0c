"""Find the line of a plugin that an exception came from, and describe exceptions that are not ours."""

import os
import traceback
from pathlib import Path

from .errors import FedbeyondError

PLUGINS: set[str] = set()  # files and modules of plugins that this process has loaded or tried to load
VARIABLE = "FEDBEYOND_TRACEBACK"  # set in the environment, it shows the traceback of errors


def place(error: BaseException) -> str:
    """Return file and line of a plugin where an exception was raised or passed; empty if there is none."""
    if isinstance(error, FedbeyondError):
        return ""
    if isinstance(error, SyntaxError) and error.filename in PLUGINS:
        return f"{Path(error.filename).name}, line {error.lineno}"
    packages, found = {plugin.partition(".")[0] for plugin in PLUGINS if not plugin.endswith(".py")}, ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if file in PLUGINS or module.partition(".")[0] in packages:
            found = f"{Path(file).name}, line {line}"  # of several, the last: the others called it
    return found


def describe(error: BaseException) -> str:
    """Describe an exception in one line: its type and message, after the line of the plugin that it came from."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return ": ".join(part for part in (place(error), type(error).__name__, message) if part)


def traceback_wanted() -> bool:
    """Return whether the user asks for tracebacks of errors."""
    return bool(os.environ.get(VARIABLE))


def print_traceback_if_wanted() -> None:
    """Print the traceback of the exception being handled, where it would be lost, if the user asks for tracebacks."""
    if traceback_wanted():
        traceback.print_exc()
