"""The configuration of a run as sites receive it, and the digests by which sites recognise it."""

import json
from hashlib import sha256
from typing import Any

from ..experiment.build import rules, without_weights
from ..experiment.config import Config

DIGITS = 32  # of the digest that operators approve: nobody finds two configurations with the same
OWN = ("data", "public")  # what each site has for itself


def shared_config(config: Config) -> dict[str, Any]:
    """Return what sites receive of a configuration: no files, which each site has for itself."""
    shared = {key: value for key, value in config.identity().items() if key not in OWN}
    return shared | {"network": without_weights(config.network)}


def run_digest(config: Config) -> str:
    """Return the digest by which operators approve a run: the same at the server and at all sites."""
    return _digest(shared_config(config))[:DIGITS]


def config_digest(config: Config) -> str:
    """Return a digest of what a server can choose of a run, except the number of rounds."""
    shared = shared_config(config)
    return _digest(shared | {"train": {key: value for key, value in shared["train"].items() if key != "rounds"}})


def splits_digest(config: Config) -> str:
    """Return a digest of what a server can choose of a site's splits: seed, shares, clients, skew, what is disjoint."""
    return _digest([config.seed, rules(config.train)])


def _digest(content: object) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
