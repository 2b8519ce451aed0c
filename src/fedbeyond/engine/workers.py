"""A federation in several processes of this machine: the simulator's sites, answered for by a crew.

An answer depends on the site, what it kept and what it is asked, and on nothing else; so it does not matter which
process gives it, and results are those of the simulator, bit for bit, where that too has one thread.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from .. import tree
from ..classifier import Networks
from ..client import Client, answer
from ..errors import FederationError
from ..evaluation.evaluators import Judgement, Judges, Models, Splits, measured, together
from ..server import Failure, Post, Reply, Request
from ..site import Site
from ..tree import Tree
from .flops import Tally
from .process_pool import Crew, Notes
from .simulator import Simulator

Answered = tuple[str, Reply | Failure, int]  # who, what, and how many operations it took


def in_order(answers: Iterator[Answered], names: Sequence[str]) -> Iterator[Answered]:
    """Answers as they were asked for, however they come."""
    early: dict[str, Answered] = {}
    for name in names:
        while name not in early:
            answer = next(answers)
            early[answer[0]] = answer
        yield early.pop(name)


class Workers:
    """An engine whose sites answer in `count` processes of one thread, each with a core or a GPU of its own."""

    def __init__(
        self, client: Client, sites: list[Site], count: int, splits: Splits | None = None, device: str = "cpu"
    ) -> None:
        self.here, self.count, self.splits, self.device = Simulator(client, sites), count, splits or {}, device
        self.nets: Networks = sites[0].nets
        self._crew: Crew | None = None

    clients = property(lambda self: self.here.clients)
    sizes = property(lambda self: self.here.sizes)
    kept = property(lambda self: self.here.kept)
    answered = property(lambda self: self.here.answered)

    @property
    def crew(self) -> Crew:
        """The processes, started when there is first something for them to do."""
        if self._crew is None:
            self._crew = Crew(self._act, self.count, self._begin)
        return self._crew

    def enrol(self) -> None:
        self.here.enrol()

    def state(self) -> Tree:
        return self.here.state()

    def restore(self, saved: Tree) -> None:
        self.here.restore(saved)

    def ask(self, request: Request, post: Post) -> dict[str, Reply | Failure]:
        """Whoever is free answers for the largest site that is left: the last to end is then a small one."""
        sizes = self.here.sizes
        order = sorted(request.to, key=lambda name: (-sizes.get(name, 0), name))
        answers = {name: found for name, found, _ in self._spread(request, post, order)}
        return {name: answers[name] for name in request.to}

    def stream(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure]]:
        """Answers one by one, few of them waiting for one before them."""
        return ((name, found) for name, found, _ in in_order(self._spread(request, post, request.to), request.to))

    def tallied(self, request: Request, post: Post) -> Iterator[tuple[str, Reply | Failure, int]]:
        """Answers one by one, with what each took."""
        return in_order(self._spread(request, post, request.to, count=True), request.to)

    def _spread(self, request: Request, post: Post, order: Sequence[str], count: bool = False) -> Iterator[Answered]:
        """Answers as they come; each is asked for when somebody is free."""
        slots = self.here.slots
        told = {"do": "answer", "kind": request.kind, "round": post.round, "ticket": post.ticket, "run": post.run}
        tasks = (
            (told | {"site": name, "accepted": post.to(name).accepted, "count": count}, slots.get(name, {}))
            for name in order
        )
        for number, notes, found in self.crew.do(request.body, tasks):
            name = order[number]
            if isinstance(notes, str):
                yield name, Failure(name, notes), 0
                continue
            found = tree.map(torch.clone, found)
            slots[name] = found["slots"]
            yield name, Reply(notes["client"], found["body"], notes["weight"]), notes["flops"]

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        """Measured in this process, on one core: one pass a site, which could not wait in a process shared by many."""
        return self.here.measure(request, number)

    def judges(self, homes: Mapping[str, str]) -> Judges:
        """Judges who share out what there is to look at."""

        def judge(models: Models, number: int) -> Judgement:
            order = sorted(self.splits, key=lambda name: -sum(len(split[1]) for split in self.splits[name].values()))
            tasks: list[tuple[Notes, Tree]] = [({"do": "judge", "site": name}, {}) for name in order]
            found: dict[str, Any] = {}
            for number, notes, _ in self.crew.do(dict(models), tasks):
                if isinstance(notes, str):
                    raise FederationError(f"the model cannot be judged on {order[number]}: {notes}")
                found[order[number]] = notes["scores"]
            return together(found, self.splits, homes)

        return judge

    def close(self) -> None:
        """End the processes; more work would start others."""
        if self._crew:
            self._crew.close()
        self._crew = None
        self.here.close()

    def _begin(self, place: int) -> None:
        """In a worker, before its first task: each has a core of its own, if there are enough, or a GPU."""
        torch.set_num_threads(1)
        cores = sorted(os.sched_getaffinity(0))
        if self.count <= len(cores):
            os.sched_setaffinity(0, {cores[place]})
        if self.device == "cuda":
            device = f"cuda:{place % torch.cuda.device_count()}"
            for net in self.nets.values():
                net.to(device)
            for site in self.here.sites.values():
                site.device = device

    def _act(self, notes: Notes, common: Tree, own: Tree) -> tuple[Notes, Tree]:
        """In a worker: answer a request, or judge a model."""
        name = notes["site"]
        if notes["do"] == "judge":
            return {"scores": measured(self.nets["model"], common, name, self.splits[name])}, {}
        site = self.here.sites[name]
        request = Request(notes["kind"], common, (name,))
        post = Post(notes["round"], notes["ticket"], notes["accepted"], notes["run"])
        with Tally() if notes["count"] else nullcontext() as tally:
            reply, slots = answer(self.here.client, site, own, request, post)
        told = {"client": reply.client, "weight": reply.weight, "flops": tally.total if tally else 0}
        return told, {"body": reply.body, "slots": slots}
