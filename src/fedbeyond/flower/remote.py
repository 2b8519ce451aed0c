"""The remote engine: requests as messages to sites on machines of their own, over any transport."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeGuard

from .. import tree
from ..engine import reestimation
from ..engine.gate import Gate
from ..errors import FederationError, printable
from ..evaluation.evaluators import Evaluation, Models, client_entry
from ..evaluation.metrics import are_plausible
from ..experiment.checkpoint import pack
from ..server import Envelope, Failure, Reply, Request
from ..tree import Tree
from .messages import ASK, EVALUATE, FAILURE, FROZEN, MEASURE, REPLY, Message

Answers = Mapping[str, Message | Failure]
Check = Callable[[str, Message], Message | Failure]  # the name of a site, what it says of itself -> that, or the fault
MAX_NOTES, PER_LEAF = 2**20, 2**10  # bytes of a reply beyond its numbers: notes, and the name of each leaf
MAX_PRIVATE, MAX_REPLIES = 2**50, 10**6  # largest plausible size of a private state, and number of a site's replies

MAX_SENT = 2  # times that a site is sent the frozen part of the network: it may lose it once


class Transport(Protocol):
    """Delivers messages to sites and returns their replies, or the reason why there is none, within a deadline."""

    def enrol(
        self, hello: Message, expected: Sequence[str], patience: float | None = None, check: Check | None = None
    ) -> Answers:
        """Send `hello` to all machines until the `expected` sites have replied, or for `patience` seconds.

        A site whose reply `check` refuses, now or when it comes back later, gets no other messages.
        """

    def exchange(self, messages: Mapping[str, Message], limit: int = MAX_NOTES) -> Answers:
        """Return the reply to each message, by the name of the site; one of more than `limit` bytes is not read."""


class RemoteEngine:
    """An engine over a transport. Sites store their private state and evaluate models on their own images."""

    is_local = False

    def __init__(
        self,
        transport: Transport,
        run: dict[str, Any],
        enrolled: Answers,
        gate: Gate,
        guests: Sequence[str] = (),
        frozen: Tree | None = None,
    ) -> None:
        self.transport, self.run, self.gate, self.guests = transport, run, gate, tuple(sorted(guests))
        messages = {name: answer for name, answer in sorted(enrolled.items()) if isinstance(answer, Message)}
        self.facts = {name: message.notes for name, message in messages.items()}
        self.clients = tuple(self.facts)
        self.private_bytes = {name: int(facts["private_bytes"]) for name, facts in self.facts.items()}
        self.replies_counted: dict[str, int] = {}
        self.frozen = frozen or {}  # what every site needs once, besides the models
        self.unsupplied = {*self.clients, *self.guests} if self.frozen else set[str]()
        self.times_sent, self.refused = Counter[str](), dict[str, Failure]()  # of the frozen part

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.gate.enrolled

    def enrol(self) -> None:
        """Do nothing: a site starts from its initial state when an envelope names no accepted reply."""

    def state(self) -> Tree:
        return {}

    def restore(self, saved: Tree) -> None:
        """Do nothing: a site continues from the reply that the envelope names as accepted."""

    def count_flops(self) -> dict[str, int]:
        """Return no counts: sites do not report their operations."""
        return {}

    def close(self) -> None:
        """Do nothing: sites keep running."""

    def ask(self, request: Request, envelope: Envelope) -> dict[str, Reply | Failure]:
        if not envelope.run:
            envelope = envelope._replace(run=self.run["run"])
        notes = {name: {"kind": request.kind} | envelope.to_dict(name) for name in request.to}
        answers = self._exchange(ASK, notes, request.body, self.gate.example(request))
        return {name: self._reply(name, answer, is_counted=True) for name, answer in answers.items()}

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        notes = {name: {"kind": request.kind, "round": number} for name in request.to}
        example = replace(self.gate, sends=reestimation.SENDS).example(request)
        answers = self._exchange(MEASURE, notes, request.body, example)
        return {name: self._reply(name, answer, is_counted=False) for name, answer in answers.items()}

    def evaluate(self, models: Models, number: int) -> Evaluation:
        """Evaluate models at every site, which validates, and at every guest, which tests."""
        body = {str(place): model for place, model in enumerate(models.values())}
        everybody = (*self.clients, *self.guests)
        notes = {name: {"models": list(models), "round": number} for name in everybody}
        answers = self._exchange(EVALUATE, notes, body, {})
        classes = len(self.facts[self.clients[0]]["classes"])
        scores: dict[str, Any] = {}
        rejected: list[Failure] = []
        withheld: dict[str, str] = {}
        for name in everybody:
            images = self.facts[name]["images"] if name in self.facts else {"test": None}
            result = _scores_in(name, answers, classes, images)
            if isinstance(result, Failure):
                rejected.append(result)
            elif isinstance(result, str):
                withheld[name] = result
            else:
                facts = self.facts.get(name)  # a guest has none
                scores[name] = client_entry(result, name, facts["domain"], facts["images"]) if facts else result
        if not (scores.keys() | withheld.keys()) & self.facts.keys():
            reasons = "; ".join(f"{failure.client}: {failure.reason}" for failure in rejected)
            raise FederationError(f"no site could validate the model ({reasons}); fix the sites, then resume")
        return Evaluation(scores, rejected, withheld)

    def _exchange(self, subject: str, notes: Mapping[str, Mapping[str, Any]], body: Tree, example: Tree) -> Answers:
        """Send the same body to several sites, packed once; replies may not be larger than `example` allows."""
        self._supply(sorted(self.unsupplied & notes.keys()))
        content, limit = pack(body), MAX_NOTES + tree.size(example) + PER_LEAF * len(tree.leaves(example))
        messages = {
            name: Message(subject, {**self.run, "site": name, **own}, body, content)
            for name, own in notes.items()
            if name not in self.refused
        }
        answers: Answers = self.transport.exchange(messages, limit) if messages else {}
        if self.frozen:  # a site that fails may have lost it
            self.unsupplied |= {name for name, answer in answers.items() if _is_failure(answer)}
        answers = {**answers, **self.refused}
        return {name: answers[name] for name in notes if name in answers}

    def _supply(self, names: Sequence[str]) -> None:
        """Send the frozen part of the network to sites that do not have it; a site that is absent is tried again.

        One that refuses it is not sent it again, and gets no other messages until it has it, from its operator.
        """
        questions = {name: Message(FROZEN, {**self.run, "site": name}) for name in names}
        answers = self.transport.exchange(questions) if questions else {}
        replies = {name: answer for name, answer in answers.items() if _is_reply(answer)}
        lacking = [name for name, answer in replies.items() if answer.notes.get("has_frozen") is not True]
        for name in lacking:
            if self.times_sent[name] == MAX_SENT:
                lost = f"was sent the frozen part of the network {MAX_SENT} times, and does not have it"
                self.refused.setdefault(name, Failure(name, lost))
        needed = [name for name in lacking if name not in self.refused]
        content = pack(self.frozen) if needed else b""
        parts = {name: Message(FROZEN, {**self.run, "site": name}, self.frozen, content) for name in needed}
        sent = self.transport.exchange(parts) if parts else {}
        self.times_sent.update(needed)
        for name, answer in sent.items():
            if _is_failure(answer) and isinstance(failure := reply_or_failure(name, answer), Failure):
                self.refused[name] = Failure(name, f"refused the frozen part of the network: {failure.reason}")
        supplied = {name for name in replies if name not in lacking or _is_reply(sent.get(name))}
        self.unsupplied -= supplied
        self.refused = {name: failure for name, failure in self.refused.items() if name not in supplied}

    def _reply(self, name: str, answer: Message | Failure, is_counted: bool) -> Reply | Failure:
        """Return the reply that a message holds; `is_counted`: with the size of the site's private state."""
        message = reply_or_failure(name, answer)
        if isinstance(message, Failure):
            return message
        notes = message.notes
        plausible = {"client": type(notes.get("client")) is str, "weight": type(notes.get("weight")) in (int, float)}
        if is_counted:
            plausible["private_bytes"] = _is_count(notes.get("private_bytes"), MAX_PRIVATE)
            plausible["replies_counted"] = _is_count(notes.get("replies_counted", 0), MAX_REPLIES)
        for key, is_plausible in plausible.items():
            if not is_plausible:
                return Failure(name, f"sent malformed notes: {key} is missing or not plausible")
        if is_counted:
            self.private_bytes[name] = notes["private_bytes"]
            self.replies_counted[name] = notes.get("replies_counted", 0)
        return Reply(notes["client"], message.body, notes["weight"])


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most  # True is no count


def _is_reply(answer: Message | Failure | None) -> TypeGuard[Message]:
    return isinstance(answer, Message) and answer.subject == REPLY


def _is_failure(answer: Message | Failure) -> TypeGuard[Message]:
    return isinstance(answer, Message) and answer.subject == FAILURE


def reply_or_failure(name: str, answer: Message | Failure) -> Message | Failure:
    """Return a reply as it is, and anything else as a failure."""
    if isinstance(answer, Failure):
        return answer._replace(reason=printable(answer.reason))
    reason = answer.notes.get("reason")
    text = reason if isinstance(reason, str) else "sent no reply"
    return answer if answer.subject == REPLY else Failure(name, printable(text))


def _scores_in(
    name: str, answers: Answers, classes: int, images: Mapping[str, int | None]
) -> dict[str, Any] | str | Failure:
    """Return the scores that a site reported, if they are well formed, or why its policy withholds them.

    `images` of each part are None if not known.
    """
    message = reply_or_failure(name, answers.get(name, Failure(name, "sent no reply")))
    if isinstance(message, Failure):
        return message
    part = "test" if "test" in images else "val"
    scores, withheld = message.notes.get("scores"), message.notes.get("withheld")
    if message.notes.get("client") == name and scores is None and isinstance(withheld, str):
        return printable(withheld)
    scores = scores if isinstance(scores, dict) else {}
    known = {part} <= scores.keys() <= images.keys() - {"train"}
    plausible = known and all(are_plausible(metrics, classes, images[key]) for key, metrics in scores.items())
    if message.notes.get("client") != name or not plausible:
        return Failure(name, f"sent malformed scores of the model on its {part} images")
    return dict(scores)
