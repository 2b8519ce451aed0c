"""A pool of forked worker processes; tensors in shared memory, metadata as JSON over a pipe.

Workers inherit everything that this process has loaded. The shared memory has no name in the file system, so nothing
stays behind when a process dies. Only tensors and JSON are read.
"""

import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _plugins, tree
from .._lifetime import end_with_parent
from ..errors import ConfigError, FederationError
from ..tree import Tree

Notes = dict[str, Any]
# (a task's notes, the tree for all tasks, its own tree) -> (notes, tree)
Act = Callable[[Notes, Tree, Tree], tuple[Notes, Tree]]
ALIGNED = 64


class SharedMemory:
    """Anonymous memory that this process shares with the processes forked from it; it grows as needed."""

    def __init__(self) -> None:
        self.number = os.memfd_create("fedbeyond")
        self.view: mmap.mmap | None = None

    def write(self, node: Tree) -> list[Any]:
        """Write a tree; return the places of its leaves, which `read` needs."""
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
        """Return the tree that was written, without a copy: it is valid until the next `write`."""
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
    """A process, the pipe to it, and the memory that it reads from and writes to."""

    process: Any
    pipe: Connection
    down: SharedMemory
    up: SharedMemory


class ProcessPool:
    """`count` processes that each `act` on one task at a time."""

    def __init__(self, act: Act, count: int, begin: Callable[[int], None] = lambda place: None) -> None:
        if sys.platform != "linux":
            raise ConfigError(
                "worker processes need Linux; leave out --workers, or use --jobs for several runs at a time"
            )
        if torch.cuda.is_initialized():
            raise FederationError("worker processes must be started before this one uses the GPU")
        self.common = SharedMemory()
        self.workers: list[Worker] = []
        fork = get_context("fork")
        for place in range(count):
            ours, theirs = fork.Pipe()
            down, up = SharedMemory(), SharedMemory()
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
        down: SharedMemory,
        up: SharedMemory,
        others: list[Connection],
    ) -> None:
        """In a worker: act on tasks until the pipe is closed or the parent dies. Ctrl-C is handled by the parent."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent may have a handler
        if parent := parent_process():
            end_with_parent(parent.sentinel)
        for other in others:
            other.close()  # else it would not notice that the parent closed its end
        begin(place)
        while True:
            try:
                task = json.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                return
            try:
                notes, result = act(task["notes"], self.common.read(task["common"]), down.read(task["own"]))
                answer = {"notes": notes, "places": up.write(result)}
            except Exception as error:
                _plugins.print_traceback_if_wanted()  # only text reaches the parent
                answer = {"error": _plugins.describe(error)}
            try:
                pipe.send_bytes(json.dumps(answer).encode())
            except OSError:
                return  # the parent is gone

    def run(self, common: Tree, tasks: Iterable[tuple[Notes, Tree]]) -> Iterator[tuple[int, Notes | str, Tree]]:
        """Yield number, notes and tree of each finished task; notes are the error text if it failed.

        A tree is valid until the next one is yielded.
        """
        places, todo = self.common.write(common), enumerate(tasks)
        doing: dict[Connection, int] = {}
        by_pipe = {worker.pipe: worker for worker in self.workers}
        while True:
            for pipe, worker in by_pipe.items():
                if pipe not in doing and (task := next(todo, None)):
                    doing[pipe], (notes, own) = task
                    message = {"notes": notes, "common": places, "own": worker.down.write(own)}
                    pipe.send_bytes(json.dumps(message).encode())
            if not doing:
                return
            for pipe in [pipe for pipe in wait(list(doing)) if isinstance(pipe, Connection)]:
                number = doing.pop(pipe)
                try:
                    answer = json.loads(pipe.recv_bytes())
                except (EOFError, OSError):
                    raise FederationError(
                        "a worker process died (out of memory?); give the same command again to resume"
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
