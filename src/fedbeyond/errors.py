"""Exceptions for errors that the user can fix: printed in one line, exit code 2."""

import difflib
from collections.abc import Iterable


class FedbeyondError(Exception):
    """Any error that the user can fix; the command line prints it without a traceback."""


class ConfigError(FedbeyondError):
    """A configuration that cannot be run as written."""


class DataError(FedbeyondError):
    """Data that the run cannot use."""


class MissingError(DataError):
    """Data that do not exist at the given place."""


class FederationError(FedbeyondError):
    """Too few usable replies from the sites, or a site that cannot reply.

    A site sends its text to the server: it must name nothing of the site's files, settings and data.
    """


class PolicyError(FederationError):
    """A request that a site's policy does not allow; a site sends its text, as that of `FederationError`."""


class ApprovalError(PolicyError):
    """A run that a site's operator has not approved yet."""


class StorageError(FedbeyondError):
    """A run folder, or the cache of decoded images, that cannot be read or written."""


class BusyError(StorageError):
    """A run folder that another process is using."""


MAX_REASON = 500  # characters of a text that came from elsewhere


def printable(text: str, limit: int = MAX_REASON) -> str:
    """Return a text from elsewhere for logs and result lines: without control characters, and cut to a length."""
    text = "".join(character if character.isprintable() else " " for character in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest known name, or all known names."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
