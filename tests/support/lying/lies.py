"""Sites that lie in a real federation: their machine runs other code than ours, as an attacker's would.

This folder is on such a machine's PYTHONPATH. Python imports its sitecustomize.py first, which replaces how the
site answers a message (`fedbeyond.flower.node.reply`) by one of the functions below.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

LIE = "LIE_OF_A_SITE"  # the variable that names the lie
PLACE = Path(__file__).parent


def environment_of(lie: str) -> dict[str, str]:
    """The variables of a machine whose site tells this lie."""
    places = (str(PLACE), os.environ.get("PYTHONPATH", ""))
    return {LIE: lie, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def corrupt(node: ModuleType) -> None:
    """Let a site tell its lie in every reply but that to the enrolment, without which it is no part of the run."""
    from fedbeyond.flower.messages import ENROL, EVALUATE

    honest, lie = node.reply, LIES[os.environ[LIE]]

    def reply(prepared: Any, message: Any) -> Any:
        answer = honest(prepared, message)
        if message.subject == ENROL:
            return answer
        if message.subject == EVALUATE:
            return replace(answer, notes=answer.notes | {"scores": {"val": {"accuracy": 2.0}}})
        return lie(answer)

    node.reply = reply


def poison(answer: Any) -> Any:
    """Send a model that is not a number."""
    params = {name: leaf * float("nan") for name, leaf in answer.body["model"]["params"].items()}
    return replace(answer, body=answer.body | {"model": answer.body["model"] | {"params": params}})


def flood(answer: Any) -> Any:
    """Send forty megabytes that nobody asked for."""
    import torch

    return replace(answer, body=answer.body | {"Jane Doe, born 1950": torch.ones(10_000_000)})


def claim(answer: Any) -> Any:
    """Claim a million million images, and so all the weight."""
    return replace(answer, notes=answer.notes | {"weight": 10**12})


LIES: dict[str, Callable[[Any], Any]] = {lie.__name__: lie for lie in (poison, flood, claim)}
