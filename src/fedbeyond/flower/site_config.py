"""What a site says of itself, in its own folder; checked without torch, so that whoever starts it stays small."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from ..errors import ConfigError, nearest

EXAMPLE = """site="hospital_a" data="folder(root='/data')" folder="/var/lib/fedbeyond\""""
Role = Literal["train", "guest"]


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Machine:
    """What a site says of itself: where it is started, never by letter."""

    site: str  # its name in the federation
    data: str  # spelled as in a configuration
    folder: Path  # what it keeps between requests, for no other eyes
    role: Role = "train"  # a guest judges the model and takes no part in making it
    domain: str | None = None  # which of the data's domains it holds; None: the one of its name
    public: str | None = None  # images without labels, for methods that need them
    device: str = "cpu"
    threads: int = 1
    policy: Path | None = None  # what it allows
    secret: str | None = None  # file of random bytes that noise is drawn from; "": openly none, as in a simulation
    superlink: str = ""  # where it finds the federation's server, for who starts it
    classes: tuple[str, ...] = ()  # what the federation's images are of; none: whatever its own are of

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Machine":
        """A site's own settings, checked."""
        known = {field.name for field in fields(cls)}
        for key in given:
            if key not in known:
                raise ConfigError(f"the node's config: {key} is not known; {nearest(key, known)}")
        classes = given.get("classes", ())  # as JSON where Flower's config carried it
        try:
            return cls(**{**given, "classes": json.loads(classes) if isinstance(classes, str) else classes})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            raise ConfigError(f"the node's config: {place} does not fit: {first['msg']}; it needs {EXAMPLE}") from None
