"""The remote engine: requests as messages to sites on machines of their own, over any transport."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..errors import FederationError
from ..evaluation.evaluators import Evaluation, Models, client_entry
from ..experiment.checkpoint import pack
from ..server import Envelope, Failure, Reply, Request
from ..tree import Tree
from .messages import ASK, EVALUATE, MEASURE, REPLY, Message

Answers = Mapping[str, Message | Failure]


class Transport(Protocol):
    """Delivers messages to sites and returns their replies, or the reason why there is none, within a deadline."""

    def enrol(self, hello: Message, expected: Sequence[str], patience: float | None = None) -> Answers:
        """Send `hello` to all machines until the `expected` sites have replied, or for `patience` seconds."""

    def exchange(self, messages: Mapping[str, Message]) -> Answers:
        """Return the reply to each message, by the name of the site."""


class RemoteEngine:
    """An engine over a transport. Sites store their private state and evaluate models on their own images."""

    is_local = False

    def __init__(
        self, transport: Transport, run: dict[str, Any], enrolled: Answers, guests: Sequence[str] = ()
    ) -> None:
        self.transport, self.run, self.guests = transport, run, tuple(sorted(guests))
        messages = {name: answer for name, answer in sorted(enrolled.items()) if isinstance(answer, Message)}
        self.facts = {name: message.notes for name, message in messages.items()}
        self.clients = tuple(self.facts)
        self.private_bytes = {name: int(facts["private_bytes"]) for name, facts in self.facts.items()}
        self.replies_counted: dict[str, int] = {}

    @property
    def sizes(self) -> dict[str, int]:
        return {name: int(facts["images"]["train"]) for name, facts in self.facts.items()}

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
        answers = self._exchange(ASK, notes, request.body)
        return {name: self._reply(name, answer, is_counted=True) for name, answer in answers.items()}

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        notes = {name: {"kind": request.kind, "round": number} for name in request.to}
        answers = self._exchange(MEASURE, notes, request.body)
        return {name: self._reply(name, answer, is_counted=False) for name, answer in answers.items()}

    def evaluate(self, models: Models, number: int) -> Evaluation:
        """Evaluate models at every site, which validates, and at every guest, which tests."""
        body = {str(place): model for place, model in enumerate(models.values())}
        everybody = (*self.clients, *self.guests)
        notes = {name: {"models": list(models), "round": number} for name in everybody}
        answers = self._exchange(EVALUATE, notes, body)
        scores: dict[str, Any] = {}
        rejected: list[Failure] = []
        for name in everybody:
            result = _scores_in(name, answers, "test" if name in self.guests else "val")
            if isinstance(result, Failure):
                rejected.append(result)
            else:
                facts = self.facts.get(name)  # a guest has none
                scores[name] = client_entry(result, name, facts["domain"], facts["images"]) if facts else result
        if not scores.keys() & self.facts.keys():
            reasons = "; ".join(f"{failure.client}: {failure.reason}" for failure in rejected)
            raise FederationError(f"no site could validate the model ({reasons}); fix the sites, then resume")
        return Evaluation(scores, rejected)

    def _exchange(self, subject: str, notes: Mapping[str, Mapping[str, Any]], body: Tree) -> Answers:
        """Send the same body to several sites; it is packed once."""
        content = pack(body)
        return self.transport.exchange(
            {name: Message(subject, {**self.run, "site": name, **own}, body, content) for name, own in notes.items()}
        )

    def _reply(self, name: str, answer: Message | Failure, is_counted: bool) -> Reply | Failure:
        """Return the reply that a message holds; `is_counted`: with the size of the site's private state."""
        message = reply_or_failure(name, answer)
        if isinstance(message, Failure):
            return message
        notes = message.notes
        try:
            if is_counted:
                self.private_bytes[name] = int(notes["private_bytes"])
                self.replies_counted[name] = int(notes.get("replies_counted", 0))
            return Reply(notes["client"], message.body, notes["weight"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return Failure(name, f"sent malformed notes: {type(error).__name__}: {error}")


def reply_or_failure(name: str, answer: Message | Failure) -> Message | Failure:
    """Return a reply as it is, and anything else as a failure."""
    if isinstance(answer, Failure):
        return answer
    return answer if answer.subject == REPLY else Failure(name, str(answer.notes.get("reason", "sent no reply")))


def _scores_in(name: str, answers: Answers, part: str) -> dict[str, Any] | Failure:
    """Return the scores that a site reported, if they are well formed."""
    message = reply_or_failure(name, answers.get(name, Failure(name, "sent no reply")))
    if isinstance(message, Failure):
        return message
    scores = message.notes.get("scores")
    scores = scores if isinstance(scores, dict) else {}
    known = {part} <= scores.keys() <= {part, "local_test"}
    if message.notes.get("client") != name or not known or not all(_is_metrics(metrics) for metrics in scores.values()):
        return Failure(name, f"sent malformed scores of the model on its {part} images")
    return dict(scores)


def _is_metrics(metrics: Any) -> bool:
    """Return whether these are metrics by name: numbers, lists of numbers, or lists of such lists."""
    share = metrics.get("accuracy") if isinstance(metrics, dict) else None
    return isinstance(share, int | float) and 0 <= share <= 1 and all(_is_plain(each, 2) for each in metrics.values())


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(each, depth - 1) for each in value)
    return value is None or isinstance(value, int | float)
