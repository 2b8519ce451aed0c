"""The settings of a site, from the site's own folder.

Torch is not imported here, so that the process that starts a site needs little memory.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from ..errors import ConfigError, nearest

EXAMPLE = """site="hospital_a" data="folder(root='/data')" folder="/var/lib/fedbeyond\""""
Role = Literal["train", "guest"]
APPROVALS = "approvals"  # the folder of approved and waiting runs, in that of private states
MIN_SECRET = 32  # bytes from which a site draws its noise


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class SiteConfig:
    """The settings of a site. They come from the machine where it is started, never from a message."""

    site: str  # its name in the federation
    data: str  # written as in a configuration
    folder: Path  # private state and the audit log
    role: Role = "train"  # a guest evaluates the model and takes no part in training
    domain: str | None = None  # the site's domain in the data; None: the one with the site's name
    public: str | None = None  # images without labels, for methods that need them
    device: str = "cpu"
    threads: int = 1
    policy: Path | None = None  # what may run here and what may leave
    secret: str | None = None  # file of random bytes that noise is drawn from; "": no secret, as in a simulation
    superlink: str = ""  # host:port of the federation's server; used when the site is started
    bundle: Path | None = None  # the site's folder, with its key and the federation's certificate; set by `join`
    classes: tuple[str, ...] = ()  # the federation's classes; (): the site's own
    # days for which `join` keeps the private state of a run after it was last written; None: until deleted by hand
    keep_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "SiteConfig":
        """Parse and check the settings of a site."""
        known = {field.name for field in fields(cls)}
        for key in given:
            if key not in known:
                raise ConfigError(f"the node's config: {key} is not known; {nearest(key, known)}")
        classes = given.get("classes", ())  # JSON if it comes from Flower's config, which has no lists
        try:
            return cls(**{**given, "classes": json.loads(classes) if isinstance(classes, str) else classes})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(step) for step in first["loc"])
            raise ConfigError(f"the node's config: {key} is not valid: {first['msg']}; it needs {EXAMPLE}") from None
