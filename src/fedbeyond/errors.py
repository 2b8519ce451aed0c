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
    """Too few usable replies from the sites, or a site that cannot reply."""


class PolicyError(FederationError):
    """A request that a site's policy does not allow."""


class StorageError(FedbeyondError):
    """A run folder, or the cache of decoded images, that cannot be read or written."""


class BusyError(StorageError):
    """A run folder that another process is using."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint for an unknown name: the closest known name, or all known names."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
