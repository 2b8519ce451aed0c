"""What can go wrong, told to the person who can mend it: one line each, exit code 2."""

import difflib
from collections.abc import Iterable


class FedbeyondError(Exception):
    """Anything the user can act upon; the command line prints it without a traceback."""


class ConfigError(FedbeyondError):
    """What was asked for cannot be run as written."""


class DataError(FedbeyondError):
    """The data are not what the run needs."""


class MissingError(DataError):
    """The data are not there."""


class FederationError(FedbeyondError):
    """Too few sites gave an answer that can be used."""


class PolicyError(FederationError):
    """A site does not allow what was asked of it."""


class StorageError(FedbeyondError):
    """A run's folder, or the cache of decoded images, cannot be read or written."""


class BusyError(StorageError):
    """Another process is playing this run."""


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at what was probably meant."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
