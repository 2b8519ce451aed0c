"""What can go wrong, told to the person who can mend it: one line each, exit code 2."""


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
