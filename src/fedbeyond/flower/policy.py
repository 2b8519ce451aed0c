"""What a site allows, in a TOML file of its own that is looked at before its data are; and its log of every letter.

This is hygiene between honest parties. It cannot stop a server that sends other code: that is for the operator, who
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
from .._io import storing
from ..errors import PolicyError, nearest
from ..experiment.config import Config
from ..method import Kind, Method
from .messages import Letter

LOG = "audit.jsonl"


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid"})
class Policy:
    """What may be run here and what may leave; a key left out forbids nothing."""

    methods: tuple[str, ...] | None = None  # methods and wrappers by name
    sends: tuple[Kind, ...] | None = None  # kinds of content that may leave
    most_rounds: int | None = None
    least_images: int | None = None  # to train on: a model of few images tells more of each
    most_epsilon: float | None = None  # of all rounds of a run, so that one without dp is refused
    most_delta: float = 1e-5  # at which epsilon may be reckoned
    sums_only: bool = False  # replies may be seen in sums alone, by way of secure aggregation
    scores: bool = True  # whether it says how good models are on its images, with counts of right and wrong answers

    @classmethod
    def read(cls, path: Path) -> "Policy":
        """A policy from a file; one that cannot be understood allows nothing."""
        try:
            given = tomllib.loads(path.read_text("utf-8"))
            known = [field.name for field in fields(cls)]
            for key in given:
                if key not in known:
                    raise PolicyError(f"{path}: {key} is not known; {nearest(key, known)}")
            return cls(**given)
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise PolicyError(f"{path}: the site's policy cannot be read: {' '.join(str(error).split())}") from None

    def allow(self, config: Config, method: Method, number: int = 0) -> None:
        """Refuse a run that the site does not want, before it touches data."""
        names = [part.name for part in spec.parse(config.method)]
        strange = [name for name in names if self.methods is not None and name not in self.methods]
        if strange:
            raise PolicyError(f"the site's policy does not allow {strange[0]!r}, but {', '.join(self.methods or ())}")
        for kind, sent in method.sends.items():
            for name, what in sent.items():
                if self.sends is not None and what.kind not in self.sends:
                    raise PolicyError(
                        f"{config.method} sends {name!r} in answer to {kind!r}, which is {what.kind}; the site's "
                        f"policy lets {', '.join(self.sends) or 'nothing'} leave"
                    )
        rounds = max(config.train.rounds, number + 1)
        if self.most_rounds is not None and rounds > self.most_rounds:
            raise PolicyError(f"{rounds} rounds are asked for; the site's policy allows {self.most_rounds}")
        self._private(config, method, rounds)
        if self.sums_only:
            raise PolicyError(
                f"the site's policy lets its replies be seen in sums alone, and {config.method} "
                + (
                    "goes by sums, but no secure aggregation is offered here yet"
                    if method.sums
                    else "needs the reply of every single site, which no secure aggregation can carry"
                )
            )

    def _private(self, config: Config, method: Method, rounds: int) -> None:
        if self.most_epsilon is None:
            return
        if method.privacy is None:
            raise PolicyError(
                f"{config.method} adds no noise to what leaves; the site's policy wants an epsilon of at most "
                f"{self.most_epsilon:g}: add dp, as in {config.method}+dp"
            )
        if method.privacy.delta > self.most_delta:
            raise PolicyError(
                f"epsilon is reckoned at delta {method.privacy.delta:g}; the site's policy allows {self.most_delta:g}: "
                "set it in dp(delta=...)"
            )
        if method.spends(rounds) > self.most_epsilon:
            raise PolicyError(
                f"{rounds} rounds of {config.method} spend an epsilon of {method.spends(rounds):.3g}; the site's "
                f"policy allows {self.most_epsilon:g}: play fewer rounds, or with more noise, as in dp(noise=...)"
            )

    def afford(self, method: Method, answers: int) -> None:
        """Refuse an answer that would spend more than is allowed; one that is asked for again otherwise is another."""
        spent = method.privacy.epsilon(answers) if method.privacy else math.inf
        if self.most_epsilon is not None and spent > self.most_epsilon:
            raise PolicyError(
                f"{answers} different answers in this run would spend an epsilon of {spent:.3g}; the site's policy "
                f"allows {self.most_epsilon:g}"
            )

    def measure(self) -> None:
        """Refuse to send moments of a network's layers, if statistics may not leave."""
        if self.sends is not None and "statistics" not in self.sends:
            raise PolicyError(
                "train.batchnorm = 'reestimate' sends statistics, means and deviations of layers' inputs; the site's "
                f"policy lets {', '.join(self.sends) or 'nothing'} leave. Set train.batchnorm = 'average', or use a "
                "network without BatchNorm, as in convnet(norm=group)"
            )

    def judge(self) -> None:
        """Refuse to say how good a model is, if the site does not want to."""
        if not self.scores:
            raise PolicyError("the site's policy lets no scores leave; the model is judged by others")

    def enough(self, images: int) -> None:
        """Refuse to train on too few images."""
        if self.least_images is not None and images < self.least_images:
            raise PolicyError(f"the site has {images} images to train on; its policy wants {self.least_images} or more")


def audit(folder: Path, way: str, letter: Letter, about: Letter | None = None) -> None:
    """Write down that a letter came in or goes out: what it is about and how large, nothing that it says."""
    notes, text, content = (about.notes if about else {}) | letter.notes, letter.text.encode(), letter.content
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "way": way,
        "subject": letter.subject,
    }
    line |= {key: notes[key] for key in ("run", "round", "kind", "reason") if key in notes}
    line |= {"names": sorted({*letter.body, *letter.notes}), "bytes": len(text) + len(content)}
    line |= {"sha256": sha256(text + content).hexdigest()}
    with storing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
