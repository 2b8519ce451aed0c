"""A federation whose sites are on machines of their own: the same conversation, carried as letters."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from .. import NUMERICS, WIRE, __version__, _io
from ..classifier import Task
from ..engine.gate import Gate
from ..engine.reestimation import levels_of
from ..errors import FederationError
from ..evaluation.evaluators import Judgement, Models, of_a_client
from ..experiment import registry
from ..experiment.build import beginnings, networks, outlines
from ..experiment.config import Config
from ..experiment.runner import Experiment, belongs
from ..server import Failure, Post, Reply, Request
from ..tree import Tree
from .messages import ASK, ENROL, EVALUATE, MEASURE, REPLY, Letter
from .node import playable, unweighted

Answers = Mapping[str, Letter | Failure]
ENROLLED = "enrolled.json"  # what sites said of themselves when a run began, in its folder
RETURNING = 120.0  # seconds for which those are waited for who are known already, when a run goes on


class Carrier(Protocol):
    """Brings letters to machines and their answers back, or says why there is none; waits no longer than it may."""

    def meet(self, hello: Letter, expected: Sequence[str], patience: float | None = None) -> Answers:
        """Greet all machines until those expected are among them, or patience ends: what each answers, by its name."""

    def carry(self, letters: Mapping[str, Letter]) -> Answers:
        """The answer to each letter, by name."""


class Network:
    """An engine over a carrier. Sites keep their private states themselves, and judge models on their own images."""

    def __init__(self, carrier: Carrier, run: dict[str, Any], met: Answers, guests: Sequence[str] = ()) -> None:
        self.carrier, self.run, self.guests = carrier, run, tuple(sorted(guests))
        letters = {name: answer for name, answer in sorted(met.items()) if isinstance(answer, Letter)}
        self.facts = {name: letter.notes for name, letter in letters.items()}
        self._kept = {name: int(facts["kept"]) for name, facts in self.facts.items()}
        self._answered: dict[str, int] = {}

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.facts)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: int(facts["images"]["train"]) for name, facts in self.facts.items()}

    @property
    def kept(self) -> dict[str, int]:
        return dict(self._kept)

    @property
    def answered(self) -> dict[str, int]:
        return dict(self._answered)

    def enrol(self) -> None:
        """Sites begin by themselves when a server names nothing that it accepted."""

    def state(self) -> Tree:
        return {}

    def restore(self, saved: Tree) -> None:
        """Sites go on by themselves from what the server says it accepted."""

    def close(self) -> None:
        """Sites stay where they are."""

    def ask(self, request: Request, post: Post) -> dict[str, Reply | Failure]:
        letters = {name: self._letter(request, post.to(name), name) for name in request.to}
        return {name: self._reply(name, answer) for name, answer in self.carrier.carry(letters).items()}

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        about = {"kind": request.kind, "round": number}
        letters = {name: Letter(MEASURE, self._notes(name) | about, request.body) for name in request.to}
        return {name: _replied(name, answer) for name, answer in self.carrier.carry(letters).items()}

    def judge(self, models: Models, number: int) -> Judgement:
        """Everybody measures the models on images of their own: sites validate, guests test."""
        body = {str(place): model for place, model in enumerate(models.values())}
        about = {"models": list(models), "round": number}
        everybody = (*self.clients, *self.guests)
        letters = {name: Letter(EVALUATE, self._notes(name) | about, body) for name in everybody}
        answers = self.carrier.carry(letters)
        judged = {name: _scores(name, answers, "test" if name in self.guests else "val") for name in letters}
        scores: dict[str, Any] = {}
        for name, found in judged.items():
            if not isinstance(found, Failure):
                facts = self.facts.get(name)  # a guest has none
                scores[name] = of_a_client(found, name, facts["domain"], facts["images"]) if facts else found
        aside = [found for found in judged.values() if isinstance(found, Failure)]
        if not scores.keys() & self.facts.keys():
            reasons = "; ".join(f"{failure.client}: {failure.reason}" for failure in aside)
            raise FederationError(f"no site could validate the model ({reasons}); mend the sites, then go on")
        return Judgement(scores, aside)

    def _notes(self, name: str) -> dict[str, Any]:
        return self.run | {"site": name}

    def _letter(self, request: Request, post: Post, name: str) -> Letter:
        asked = {"kind": request.kind, "round": post.round, "ticket": post.ticket, "run": post.run or self.run["run"]}
        if name in post.accepted:
            asked["accepted"] = post.accepted[name]
        return Letter(ASK, self._notes(name) | asked, request.body)

    def _reply(self, name: str, answer: Letter | Failure) -> Reply | Failure:
        letter = _read(name, answer)
        if isinstance(letter, Failure):
            return letter
        try:
            self._kept[name] = int(letter.notes["kept"])
            self._answered[name] = int(letter.notes.get("answers", 0))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return Failure(name, f"sent notes that make no sense: {type(error).__name__}: {error}")
        return _replied(name, letter)


def prepare(
    config: Config,
    carrier: Carrier,
    sites: Sequence[str],
    guests: Sequence[str] = (),
    device: str = "cpu",
    home: Path | None = None,
) -> Experiment:
    """Put a run together whose sites are elsewhere; nobody's data are here.

    In its `home` stands who enrolled when it began: when it goes on, who is away then is away, and may come back.
    """
    method = playable(config, len(sites))
    run = {"config": told(config), "run": config.digest(), "sources": len(sites)}
    run |= {"fedbeyond": __version__, "wire": WIRE, "numerics": NUMERICS}
    answers = enrolled(carrier, Letter(ENROL, run), (*sites, *guests), config, home)
    facts = agreed(answers, sites, guests)
    if home:
        record(home, answers, config)
    network = registry.make_one("networks", config.network)
    task = Task(tuple(facts["classes"]), tuple(facts["shape"]), network, len(sites))
    nets = networks(method, task, config.seed, device)
    engine = Network(carrier, run, {name: answers[name] for name in sites}, guests)
    gate = Gate(method.sends, outlines(method, nets), engine.sizes, config.train.quorum)
    homes = {name: str(facts["domain"]) for name, facts in engine.facts.items()}
    begin = partial(beginnings, method, task, config.seed)
    levels = levels_of(method, nets["model"], task.shape)
    return Experiment(config, method, nets, engine, gate, engine.judge, {}, {}, homes, begin=begin, levels=levels)


def told(config: Config) -> dict[str, Any]:
    """What sites learn of a configuration: nothing of files, which each of them knows for itself."""
    known = {key: value for key, value in config.identity().items() if key not in ("data", "public")}
    return known | {"network": unweighted(config.network)}


def enrolled(carrier: Carrier, hello: Letter, names: Sequence[str], config: Config, home: Path | None) -> Answers:
    """What everybody says of themselves; who does not come, but did when the run began, as they said then."""
    known: dict[str, Letter] = {}
    if home and (home / ENROLLED).exists():
        belongs(home, config)
        before = _io.note(home / ENROLLED)
        known = {name: Letter(REPLY, facts) for name, facts in before["facts"].items()}
        known = known if before["run"] == config.digest() else {}
    answers = dict(carrier.meet(hello, names, RETURNING if known.keys() >= {*names} else None))
    for name in known:
        found = _read(name, answers.get(name, Failure(name, "is not connected")))
        if isinstance(found, Failure):
            print(f"the run goes on without {name}, for the time being: {found.reason}", flush=True)
            answers[name] = known[name]
    return answers


def record(home: Path, answers: Answers, config: Config) -> None:
    """Write down who enrolled with what, for a server that is started again."""
    with _io.storing(home):
        home.mkdir(parents=True, exist_ok=True)
    belongs(home, config)
    facts = {name: letter.notes for name, letter in answers.items() if isinstance(letter, Letter)}
    _io.write(home / ENROLLED, json.dumps({"run": config.digest(), "facts": facts}, indent=1).encode())


def agreed(answers: Answers, sites: Sequence[str], guests: Sequence[str]) -> dict[str, Any]:
    """What those who were met have in common, if all came whom the run needs and all speak of the same task."""
    roles = dict.fromkeys(sites, "train") | dict.fromkeys(guests, "guest")
    letters = {name: _read(name, answers.get(name, Failure(name, "is not connected"))) for name in roles}
    missing = [f"{name}: {found.reason}" for name, found in letters.items() if isinstance(found, Failure)]
    if missing:
        raise FederationError(f"not everybody came ({'; '.join(missing)}); start or mend them, then submit again")
    facts = {name: letter.notes for name, letter in letters.items() if isinstance(letter, Letter)}
    first = facts[sites[0]]
    for name, own in facts.items():
        wanted = {"role": roles[name], "wire": WIRE, "numerics": NUMERICS}
        wanted |= {"classes": first["classes"], "shape": first["shape"]}
        for key, value in wanted.items():
            if own.get(key) != value:
                raise FederationError(
                    f"{name} has {key} {own.get(key)}, the federation needs {value}; mend it there, then submit again"
                )
    return first


def _replied(name: str, answer: Letter | Failure) -> Reply | Failure:
    """A site's reply, if it sent one."""
    letter = _read(name, answer)
    if isinstance(letter, Failure):
        return letter
    try:
        return Reply(letter.notes["client"], letter.body, letter.notes["weight"])
    except KeyError as error:
        return Failure(name, f"sent notes that make no sense: {type(error).__name__}: {error}")


def _read(name: str, answer: Letter | Failure) -> Letter | Failure:
    if isinstance(answer, Failure):
        return answer
    return answer if answer.subject == REPLY else Failure(name, str(answer.notes.get("reason", "sent no reply")))


def _scores(name: str, answers: Answers, part: str) -> dict[str, Any] | Failure:
    """What a site says of a model, if it makes sense."""
    letter = _read(name, answers.get(name, Failure(name, "did not answer")))
    if isinstance(letter, Failure):
        return letter
    found = letter.notes.get("scores")
    found = found if isinstance(found, dict) else {}
    known = {part} <= found.keys() <= {part, "own_test"}
    if letter.notes.get("client") != name or not known or not all(_sensible(numbers) for numbers in found.values()):
        return Failure(name, f"said nothing of the model on its {part} images that makes sense")
    return dict(found)


def _sensible(numbers: Any) -> bool:
    """Measures by name, each a number or a list of numbers or of such lists."""
    share = numbers.get("accuracy") if isinstance(numbers, dict) else None
    return isinstance(share, int | float) and 0 <= share <= 1 and all(_plain(value, 2) for value in numbers.values())


def _plain(value: Any, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and all(_plain(each, depth - 1) for each in value)
    return value is None or isinstance(value, int | float)
