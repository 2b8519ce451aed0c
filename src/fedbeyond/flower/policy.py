"""The policy of a site, a TOML file that is checked before the site's data are read; and the audit log of its messages.

A policy prevents mistakes between honest parties. It cannot stop a server that sends other code: the site's operator
decides what is installed and started on the site's machine.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from .. import spec
from .._io import create_private, private_opener, storage_errors
from .._method import Kind, Method, Sent
from ..batch import CachedCopies
from ..errors import ConfigError, PolicyError, nearest, printable
from ..experiment.config import Config
from .messages import Message

LOG = "audit.jsonl"
MAX_NAME, MAX_NAMES = 64, 100  # characters of a name that a server chose, and how many of them are in a line


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Policy:
    """What may run at a site and what may leave it; a key that is left out forbids nothing."""

    methods: tuple[str, ...] | None = None  # methods and wrappers by name
    sends: tuple[Kind, ...] | None = None  # kinds of content that may leave
    max_message_bytes: int | None = None  # of a message of the server
    max_rounds: int | None = None  # of one configuration, in all runs: different replies to each kind of request
    max_epochs: int | None = None  # of the site's training images in one answer, however a method counts its own
    max_seconds: float | None = None  # for one answer
    max_parameters: int | None = None  # of all networks that a run builds at the site
    min_images: int | None = None  # to train on: a model of few images reveals more of each
    min_groups: int | None = None  # patients, cases or slides in each split: scores of one patient reveal more
    disjoint: Literal["groups"] | None = None  # runs must keep each group in one split (train.disjoint)
    fixed_splits: bool = False  # all runs divide the site's samples as the first one that it answered
    max_epsilon: float | None = None  # of all replies in all runs; a run without dp is rejected
    max_delta: float = 1e-5  # at which epsilon may be computed
    sums_only: bool = False  # replies may leave only under secure aggregation
    approval: bool = False  # runs start only after the site's operator approved their configuration
    scores: bool | None = None  # whether scores of models on its images may leave; None: unless max_epsilon is set
    max_evaluations: int | None = None  # of models, in all runs; scores in a method's replies count as well
    evaluations_per_round: Annotated[int, Field(ge=1)] = 1  # different sets of models for each round of a run
    min_evaluated: int = 2  # samples in every split whose scores leave: those of one sample are that sample's
    round_scores: Annotated[int, Field(ge=0, le=6)] | None = None  # decimals; recall and confusion then stay

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """Read a policy from a file; `ConfigError` if it cannot be understood, so that nothing runs."""
        try:
            given = tomllib.loads(path.read_text("utf-8"))
            known = [field.name for field in fields(cls)]
            for key in given:
                if key not in known:
                    raise ConfigError(f"{path}: {key} is not known; {nearest(key, known)}")
            return cls(**given)
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise ConfigError(f"{path}: the site's policy cannot be read: {' '.join(str(error).split())}") from None

    def ensure_allowed(self, config: Config, method: Method) -> None:
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
        self._ensure_scores_allowed(config, method)
        rounds = config.train.rounds
        if self.max_rounds is not None and rounds > self.max_rounds:
            raise PolicyError(f"{rounds} rounds are requested; the site's policy allows {self.max_rounds}")
        if self.disjoint is not None and config.train.disjoint != self.disjoint:
            raise PolicyError(
                "the run may have images of one patient, case or slide in two splits; the site's policy requires "
                f"train.disjoint = {self.disjoint!r}"
            )
        if self.max_epochs is not None and config.train.epochs > self.max_epochs:
            raise PolicyError(
                f"{config.train.epochs} epochs a round are requested; the site's policy allows {self.max_epochs}"
            )
        copies = method.augment.number if isinstance(method.augment, CachedCopies) else 0
        if self.max_epochs is not None and copies > self.max_epochs:
            raise PolicyError(
                f"{copies} copies of each training image are requested (train.part); the site's policy allows "
                f"{self.max_epochs} passes over them in one answer (max_epochs)"
            )
        self._ensure_private(config, method, rounds)
        if self.sums_only:
            reason = "it is not available yet"
            if not method.linear_aggregation:
                reason = f"{config.method} cannot use it, because its server needs the reply of each site"
            raise PolicyError(
                f"the site's policy allows its replies to leave only under secure aggregation (sums_only): {reason}"
            )

    def _ensure_scores_allowed(self, config: Config, method: Method) -> None:
        """Raise `PolicyError` if a method sends scores of models in its replies, and scores may not leave like that."""
        if self.scores is False:
            reason = "allows no scores to leave (scores = false)"
        elif self.round_scores is not None and method.privacy is None:
            reason = f"rounds scores (round_scores = {self.round_scores}), and a method needs all digits"
        else:
            return
        for request, name, content in scores_in_replies(method):
            raise PolicyError(
                f"{config.method} sends {name!r} in reply to {request!r}, of kind {content.kind}: scores of models on "
                f"the site's {content.evaluates} samples. The site's policy {reason}: choose another method"
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

    def ensure_message_size(self, size: int) -> None:
        """Raise `PolicyError` if a message of the server is too large."""
        if self.max_message_bytes is not None and size > self.max_message_bytes:
            raise PolicyError(
                f"the message has {size} bytes; the site's policy allows {self.max_message_bytes} (max_message_bytes)"
            )

    def ensure_statistics_allowed(self) -> None:
        """Raise `PolicyError` if statistics, such as the moments of a network's layers, may not leave."""
        if self.sends is not None and "statistics" not in self.sends:
            raise PolicyError(
                "train.batchnorm = 'reestimate' sends statistics (means and deviations of layers' inputs); the site's "
                f"policy allows {', '.join(self.sends) or 'nothing'} to leave. Set train.batchnorm = 'average', or use "
                "a network without BatchNorm, as in convnet(norm=group)"
            )

    def why_withheld(self, samples: Mapping[str, int]) -> str:
        """Return why scores on splits of so many samples do not leave; empty if they do."""
        if self.scores is False:
            return "the site's policy allows no scores to leave"
        if self.scores is None and self.max_epsilon is not None:
            return "the site's policy limits epsilon, and scores have no noise (scores = true lets them leave)"
        least, reason = self.min_evaluated, "min_evaluated"
        if self.round_scores is not None and 10**self.round_scores >= least:  # or a rounded share tells its count
            least, reason = 10**self.round_scores + 1, f"round_scores = {self.round_scores}"
        few = [part for part, count in samples.items() if count < least]
        return f"the {few[0]} split has too few samples; the site's policy requires {least} ({reason})" if few else ""

    def ensure_enough_evaluated(self, method: Method, samples: Mapping[str, int]) -> None:
        """Raise `PolicyError` if a method scores models, in its replies, on a split of too few samples."""
        for request, name, content in scores_in_replies(method):
            if samples[content.evaluates] < self.min_evaluated:
                raise PolicyError(
                    f"the method sends {name!r} in reply to {request!r}, scores of models on {content.evaluates} "
                    f"samples, of which the site has too few; its policy requires {self.min_evaluated} (min_evaluated)"
                )

    def ensure_enough_groups(self, groups: Mapping[str, int]) -> None:
        """Raise `PolicyError` if a split has too few groups, or none are named; how many there are is not said."""
        least = self.min_groups or 0
        if not groups:
            raise PolicyError(
                f"the site's policy requires {least} or more groups (patients, cases or slides) in each split, and the "
                "site's data name none; name them, as in folder(root='/data', groups='^([^_]+)_')"
            )
        for part, count in groups.items():
            if count < least:
                raise PolicyError(
                    f"the {part} split has too few groups (patients, cases or slides); the site's policy requires "
                    f"{least} or more in each split: change train.validation or train.test"
                )

    def ensure_enough_images(self, images: int) -> None:
        """Raise `PolicyError` if there are too few images to train on."""
        if self.min_images is not None and images < self.min_images:
            raise PolicyError(f"the site has too few images to train on; its policy requires {self.min_images} or more")


def scores_in_replies(method: Method) -> Iterator[tuple[str, str, Sent]]:
    """Yield what a method sends that are scores of models: kind of request, name, and declaration."""
    for request, contents in method.sends.items():
        yield from ((request, name, content) for name, content in contents.items() if content.evaluates)


def audit(folder: Path, direction: str, message: Message, request: Message | None = None) -> None:
    """Log that a message came in or goes out: its subject, names and size, never its contents.

    What the server chose (run, round, kind, names) has a plausible type and length; reasons are the site's own.
    """
    text, content = message.text.encode(), message.content
    line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "direction": direction}
    line |= {"subject": printable(message.subject, MAX_NAME)} | _which(request or message)
    if request:
        line |= {key: printable(str(message.notes[key])) for key in ("reason", "withheld") if key in message.notes}
    names = sorted({*message.body, *message.notes})
    line |= {"names": [printable(name, MAX_NAME) for name in names[:MAX_NAMES]]}
    line |= {"more_names": len(names) - MAX_NAMES} if len(names) > MAX_NAMES else {}
    line["bytes"] = len(text) + len(content)
    line["sha256"] = sha256(text + content).hexdigest()
    with storage_errors(folder):
        create_private(folder)
        with open(folder / LOG, "ab", opener=private_opener) as file:
            file.write(json.dumps(line).encode() + b"\n")


def _which(request: Message) -> dict[str, Any]:
    """Return which run, round and kind of request a server names, if they are names and a number."""
    given = {key: request.notes[key] for key in ("run", "round", "kind") if key in request.notes}
    texts = {key: printable(value, MAX_NAME) for key, value in given.items() if key != "round" and type(value) is str}
    number = given.get("round")
    return texts | ({"round": number} if type(number) is int and abs(number) < 2**63 else {})
