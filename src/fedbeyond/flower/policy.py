"""The policy of a site, a TOML file that is checked before the site's data are read; and the audit log of its messages.

A policy prevents mistakes between honest parties. It cannot stop a server that sends other code: the site's operator
decides what is installed and started on the site's machine.
"""

import json
import math
import tomllib
from dataclasses import fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from .. import spec
from .._io import storage_errors
from ..errors import PolicyError, nearest
from ..experiment.config import Config
from ..method import Kind, Method
from .messages import Message

LOG = "audit.jsonl"


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Policy:
    """What may run at a site and what may leave it; a key that is left out forbids nothing."""

    methods: tuple[str, ...] | None = None  # methods and wrappers by name
    sends: tuple[Kind, ...] | None = None  # kinds of content that may leave
    max_rounds: int | None = None
    min_images: int | None = None  # to train on: a model of few images reveals more of each
    max_epsilon: float | None = None  # of all rounds of a run; a run without dp is rejected
    max_delta: float = 1e-5  # at which epsilon may be computed
    sums_only: bool = False  # replies may leave only under secure aggregation
    scores: bool = True  # whether scores of models on its images may leave, with the confusion of classes

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """Read a policy from a file; `PolicyError` if it cannot be understood, so that nothing runs."""
        try:
            given = tomllib.loads(path.read_text("utf-8"))
            known = [field.name for field in fields(cls)]
            for key in given:
                if key not in known:
                    raise PolicyError(f"{path}: {key} is not known; {nearest(key, known)}")
            return cls(**given)
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise PolicyError(f"{path}: the site's policy cannot be read: {' '.join(str(error).split())}") from None

    def ensure_allowed(self, config: Config, method: Method, number: int = 0) -> None:
        """Raise `PolicyError` if the site does not allow a run; call it before data are read."""
        names = [part.name for part in spec.parse(config.method)]
        forbidden = [name for name in names if self.methods is not None and name not in self.methods]
        if forbidden:
            allowed = ", ".join(self.methods or ()) or "nothing"
            raise PolicyError(f"the site's policy does not allow {forbidden[0]!r}; it allows {allowed}")
        for request, contents in method.sends.items():
            for name, content in contents.items():
                if self.sends is not None and content.kind not in self.sends:
                    raise PolicyError(
                        f"{config.method} sends {name!r} in reply to {request!r}, which is of kind {content.kind}; the "
                        f"site's policy allows {', '.join(self.sends) or 'nothing'} to leave"
                    )
        rounds = max(config.train.rounds, number + 1)
        if self.max_rounds is not None and rounds > self.max_rounds:
            raise PolicyError(f"{rounds} rounds are requested; the site's policy allows {self.max_rounds}")
        self._ensure_private(config, method, rounds)
        if self.sums_only:
            reason = "it is not available yet"
            if not method.linear_aggregation:
                reason = f"{config.method} cannot use it, because its server needs the reply of each site"
            raise PolicyError(
                f"the site's policy allows its replies to leave only under secure aggregation (sums_only): {reason}"
            )

    def _ensure_private(self, config: Config, method: Method, rounds: int) -> None:
        """Raise `PolicyError` if a run spends a larger epsilon than allowed, or adds no noise."""
        if self.max_epsilon is None:
            return
        if method.privacy is None:
            raise PolicyError(
                f"{config.method} adds no noise to replies; the site's policy requires an epsilon of at most "
                f"{self.max_epsilon:g}: add dp, as in {config.method}+dp"
            )
        if method.privacy.delta > self.max_delta:
            raise PolicyError(
                f"epsilon is computed at delta {method.privacy.delta:g}; the site's policy allows {self.max_delta:g}: "
                "set it in dp(delta=...)"
            )
        if method.epsilon_after(rounds) > self.max_epsilon:
            raise PolicyError(
                f"{rounds} rounds of {config.method} spend an epsilon of {method.epsilon_after(rounds):.3g}; the "
                f"site's policy allows {self.max_epsilon:g}: run fewer rounds, or add more noise, as in dp(noise=...)"
            )

    def ensure_affordable(self, method: Method, replies: int) -> None:
        """Raise `PolicyError` if this number of different replies of a run spends a larger epsilon than allowed."""
        spent = method.privacy.epsilon(replies) if method.privacy else math.inf
        if self.max_epsilon is not None and spent > self.max_epsilon:
            raise PolicyError(
                f"{replies} different replies in this run would spend an epsilon of {spent:.3g}; the site's policy "
                f"allows {self.max_epsilon:g}"
            )

    def ensure_statistics_allowed(self) -> None:
        """Raise `PolicyError` if statistics, such as the moments of a network's layers, may not leave."""
        if self.sends is not None and "statistics" not in self.sends:
            raise PolicyError(
                "train.batchnorm = 'reestimate' sends statistics (means and deviations of layers' inputs); the site's "
                f"policy allows {', '.join(self.sends) or 'nothing'} to leave. Set train.batchnorm = 'average', or use "
                "a network without BatchNorm, as in convnet(norm=group)"
            )

    def ensure_scores_allowed(self) -> None:
        """Raise `PolicyError` if the scores of a model may not leave."""
        if not self.scores:
            raise PolicyError("the site's policy allows no scores to leave; other sites evaluate the model")

    def ensure_enough_images(self, images: int) -> None:
        """Raise `PolicyError` if there are too few images to train on."""
        if self.min_images is not None and images < self.min_images:
            raise PolicyError(
                f"the site has {images} images to train on; its policy requires {self.min_images} or more"
            )


def audit(folder: Path, direction: str, message: Message, request: Message | None = None) -> None:
    """Log that a message came in or goes out: its subject, names and size, never its contents."""
    notes, text, content = (request.notes if request else {}) | message.notes, message.text.encode(), message.content
    line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "direction": direction}
    line |= {"subject": message.subject} | {
        key: notes[key] for key in ("run", "round", "kind", "reason") if key in notes
    }
    line |= {"names": sorted({*message.body, *message.notes}), "bytes": len(text) + len(content)}
    line["sha256"] = sha256(text + content).hexdigest()
    with storage_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
