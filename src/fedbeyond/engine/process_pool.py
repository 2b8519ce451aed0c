"""Processes that work for this one, as long as it lives: forked, so that they have all that it had; told by trees.

Trees go to and fro in memory that all of them see, notes about them in JSON. Nothing has a name that would outlive
its process, nothing is turned into objects on arrival but tensors.
"""

import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import tree
from ..errors import ConfigError, FederationError
from ..tree import Tree

Notes = dict[str, Any]
Act = Callable[[Notes, Tree, Tree], tuple[Notes, Tree]]  # of a task's notes, what all are given, and its own tree
ALIGNED = 64


class Memory:
    """A stretch of memory that this process and those forked from it share; it grows as need be."""

    def __init__(self) -> None:
        self.number = os.memfd_create("fedbeyond")
        self.view: mmap.mmap | None = None

    def write(self, node: Tree) -> list[Any]:
        """Put a tree there; where its leaves are, for who reads it."""
        flat, places, end = tree.flatten(node), [], 0
        for name, leaf in flat.items():
            places.append([name, str(leaf.dtype).removeprefix("torch."), list(leaf.shape), end])
            end += -(-leaf.numel() * leaf.element_size() // ALIGNED) * ALIGNED
        if os.fstat(self.number).st_size < end:
            os.ftruncate(self.number, end)
        for leaf, there in zip(flat.values(), self._leaves(places), strict=True):
            there.copy_(leaf)
        return places

    def read(self, places: list[Any]) -> Tree:
        """The tree that was put there, in place: it holds until another one is written."""
        return tree.unflatten({place[0]: leaf for place, leaf in zip(places, self._leaves(places), strict=True)})

    def _leaves(self, places: list[Any]) -> Iterator[Tensor]:
        size = os.fstat(self.number).st_size
        if size and (self.view is None or len(self.view) < size):
            self.view = mmap.mmap(self.number, size)
        for _, kind, shape, begin in places:
            leaf = torch.empty(shape, dtype=getattr(torch, kind))
            if leaf.numel():
                assert self.view is not None
                leaf = torch.frombuffer(self.view, dtype=leaf.dtype, count=leaf.numel(), offset=begin).view(shape)
            yield leaf


class Worker(NamedTuple):
    """A process, the pipe for notes to it, and what it reads from and writes to."""

    process: Any
    pipe: Connection
    down: Memory
    up: Memory


class Crew:
    """`count` processes that each `act` on one task at a time, on a core of their own."""

    def __init__(self, act: Act, count: int, begin: Callable[[int], None] = lambda place: None) -> None:
        if sys.platform != "linux":
            raise ConfigError("worker processes need Linux; leave out --workers, or play several runs with --jobs")
        if torch.cuda.is_initialized():
            raise FederationError("worker processes must be started before this one uses the GPU")
        self.common = Memory()
        self.workers: list[Worker] = []
        fork = get_context("fork")
        for place in range(count):
            ours, theirs = fork.Pipe()
            down, up = Memory(), Memory()
            others = [ours, *(worker.pipe for worker in self.workers)]
            process = fork.Process(target=self._work, args=(act, begin, place, theirs, down, up, others), daemon=True)
            process.start()
            theirs.close()
            self.workers.append(Worker(process, ours, down, up))

    def _work(
        self,
        act: Act,
        begin: Callable[[int], None],
        place: int,
        pipe: Connection,
        down: Memory,
        up: Memory,
        others: list[Connection],
    ) -> None:
        """What a worker does until the pipe is closed: Ctrl-C is for who gives the tasks."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for other in others:
            other.close()  # or it would never hear that the others' end is gone
        begin(place)
        while True:
            try:
                told = json.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                return
            try:
                notes, result = act(told["notes"], self.common.read(told["common"]), down.read(told["own"]))
                answer = {"notes": notes, "places": up.write(result)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            try:
                pipe.send_bytes(json.dumps(answer).encode())
            except OSError:
                return  # nobody waits for it any more

    def do(self, common: Tree, tasks: Iterable[tuple[Notes, Tree]]) -> Iterator[tuple[int, Notes | str, Tree]]:
        """What becomes of each task, as they are done; a text says what went wrong. Read a tree before the next."""
        places, todo = self.common.write(common), enumerate(tasks)
        doing: dict[Connection, int] = {}
        by_pipe = {worker.pipe: worker for worker in self.workers}
        while True:
            for pipe, worker in by_pipe.items():
                if pipe not in doing and (task := next(todo, None)):
                    doing[pipe], (notes, own) = task
                    told = {"notes": notes, "common": places, "own": worker.down.write(own)}
                    pipe.send_bytes(json.dumps(told).encode())
            if not doing:
                return
            for pipe in [pipe for pipe in wait(list(doing)) if isinstance(pipe, Connection)]:
                number = doing.pop(pipe)
                try:
                    answer = json.loads(pipe.recv_bytes())
                except (EOFError, OSError):
                    raise FederationError(
                        "a worker process died (was it out of memory?); give the same command again to go on"
                    ) from None
                if "error" in answer:
                    yield number, answer["error"], {}
                else:
                    yield number, answer["notes"], by_pipe[pipe].up.read(answer["places"])

    def close(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.workers = []
