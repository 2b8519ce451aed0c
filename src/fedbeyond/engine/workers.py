"""An engine that runs the simulator's sites in several processes of this machine.

A reply depends only on the site, its private state and the request, so it does not matter which process computes it.
Results are equal to those of the simulator with one thread, bit for bit.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import tree
from ..classifier import Networks
from ..client import Client, answer
from ..errors import FederationError
from ..evaluation.evaluators import Evaluation, Evaluator, Models, Splits, collect, evaluate_at_site
from ..server import Envelope, Failure, Reply, Request
from ..site import Site
from ..tree import Tree
from .process_pool import Notes, ProcessPool
from .simulator import Simulator

Answered = tuple[str, Reply | Failure]


def in_order(answers: Iterator[Answered], names: Sequence[str]) -> Iterator[Answered]:
    """Yield replies in the order of `names`, in whatever order they arrive."""
    early: dict[str, Answered] = {}
    for name in names:
        while name not in early:
            answer = next(answers)
            early[answer[0]] = answer
        yield early.pop(name)


class Workers:
    """An engine with `count` worker processes of one thread, each on a core or GPU of its own."""

    is_local = True

    def __init__(
        self, client: Client, sites: list[Site], count: int, splits: Splits | None = None, device: str = "cpu"
    ) -> None:
        self.here, self.count, self.splits, self.device = Simulator(client, sites), count, splits or {}, device
        self.nets: Networks = sites[0].nets
        self._pool: ProcessPool | None = None

    clients = property(lambda self: self.here.clients)
    sizes = property(lambda self: self.here.sizes)
    private_bytes = property(lambda self: self.here.private_bytes)
    replies_counted = property(lambda self: self.here.replies_counted)

    @property
    def pool(self) -> ProcessPool:
        """The worker processes, started when they are first used."""
        if self._pool is None:
            self._pool = ProcessPool(self._act, self.count, self._begin)
        return self._pool

    def enrol(self) -> None:
        self.here.enrol()

    def state(self) -> Tree:
        return self.here.state()

    def restore(self, saved: Tree) -> None:
        self.here.restore(saved)

    def ask(self, request: Request, envelope: Envelope) -> dict[str, Reply | Failure]:
        """Give the largest remaining site to the next free worker, so that the last one to finish is small."""
        sizes = self.here.sizes
        order = sorted(request.to, key=lambda name: (-sizes.get(name, 0), name))
        answers = dict(self._spread(request, envelope, order))
        return {name: answers[name] for name in request.to}

    def stream(self, request: Request, envelope: Envelope) -> Iterator[tuple[str, Reply | Failure]]:
        """Yield replies one by one, in the order of the request."""
        return in_order(self._spread(request, envelope, request.to), request.to)

    def _spread(self, request: Request, envelope: Envelope, order: Sequence[str]) -> Iterator[Answered]:
        """Yield replies as they arrive; each site is given to the next free worker."""
        client_states, flops = self.here.client_states, self.here.flops
        common = {"do": "answer", "kind": request.kind, "count": flops.active}
        tasks = (
            (common | {"site": name, "envelope": envelope.to_dict(name)}, client_states.get(name, {})) for name in order
        )
        for number, notes, result in self.pool.run(request.body, tasks):
            name = order[number]
            if isinstance(notes, str):
                yield name, Failure(name, notes)
                continue
            result = tree.map(torch.clone, result)
            client_states[name] = result["state"]
            flops.by_site[name] += notes["flops"]
            yield name, Reply(notes["client"], result["body"], notes["weight"])

    def measure(self, request: Request, number: int) -> dict[str, Reply | Failure]:
        """Measure in this process: a forward pass that is suspended between layers cannot wait in a shared worker."""
        return self.here.measure(request, number)

    def evaluator(self, client_domains: Mapping[str, str]) -> Evaluator:
        """Return an evaluator that distributes the splits over the workers."""

        def evaluate(models: Models, number: int) -> Evaluation:
            order = sorted(self.splits, key=lambda name: -sum(len(split[1]) for split in self.splits[name].values()))
            tasks: list[tuple[Notes, Tree]] = [({"do": "evaluate", "site": name}, {}) for name in order]
            scores: dict[str, Any] = {}
            for number, notes, _ in self.pool.run(dict(models), tasks):
                if isinstance(notes, str):
                    raise FederationError(f"the model cannot be evaluated on {order[number]}: {notes}")
                scores[order[number]] = notes["scores"]
            return collect(scores, self.splits, client_domains)

        return evaluate

    def count_flops(self) -> Mapping[str, int]:
        return self.here.count_flops()

    def close(self) -> None:
        """End the processes; further work starts new ones."""
        if self._pool:
            self._pool.close()
        self._pool = None
        self.here.close()

    def _begin(self, place: int) -> None:
        """In a worker, before its first task: use one core, if there are enough, or one GPU."""
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
        """In a worker: answer a request, or evaluate models."""
        name = notes["site"]
        if notes["do"] == "evaluate":
            return {"scores": evaluate_at_site(self.nets["model"], common, name, self.splits[name])}, {}
        site = self.here.sites[name]
        request = Request(notes["kind"], common, (name,))
        envelope = Envelope.from_dict(notes["envelope"])
        flops = self.here.flops  # of this process
        flops.active, before = notes["count"], flops.by_site[name]
        with flops.count(site, request.kind):
            reply, client_state = answer(self.here.client, site, own, request, envelope)
        answered = {"client": reply.client, "weight": reply.weight, "flops": flops.by_site[name] - before}
        return answered, {"body": reply.body, "state": client_state}
