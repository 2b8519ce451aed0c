"""fedbeyond as a user of the library plays rounds: a method from its spelling, sites, the gate, `play`.

Its own parts are all at work: the gate looks at every reply, the ledger is kept, private states are settled. Only the
order of the batches comes from the suite. Images in files are read with the `folder` dataset, which decodes them once.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import task
import torch
from torch import Tensor

from fedbeyond import Method, tree
from fedbeyond.classifier import read
from fedbeyond.data.datasets._folder import folder as read_folder
from fedbeyond.data.partition.assignment import all_rows, select_rows
from fedbeyond.engine.allocator import keep_freed_memory
from fedbeyond.engine.gate import Gate
from fedbeyond.engine.protocol import Engine
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.engine.workers import Workers
from fedbeyond.experiment.registry import build
from fedbeyond.images import Split
from fedbeyond.optimizers import sgd
from fedbeyond.server import Round
from fedbeyond.site import Site, derive


@cache
def visits(cell: task.Cell) -> dict[int, tuple[int, int]]:
    """Which client trains in which round, by the seed that its site then has."""
    pairs = product(range(cell.clients), range(cell.total))
    return {derive(0, number, task.domain(client), "train"): (client, number) for client, number in pairs}


def ordered(cell: task.Cell, labels: Tensor, epochs: int, batch_size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """A sampler that gives the suite's batches."""
    yield from task.order(cell, *visits(cell)[rng.initial_seed()])


def data_of(cell: task.Cell, folder: Path) -> list[Split]:
    """Images and labels of every client."""
    if not cell.files:
        return [task.images(cell, client) for client in range(cell.clients)]
    os.environ["FEDBEYOND_CACHE"] = str(folder / "decoded")
    domains = read_folder(cell.root, size=cell.pixels)
    names = [task.domain(client) for client in range(cell.clients)]
    return [select_rows(domains, {name: all_rows(domains, name)}) for name in names]


def engine(cell: task.Cell, method: Method, sites: list[Site]) -> Engine:
    """One process, or as many as there are cores."""
    return Workers(method.client, sites, cell.cores) if cell.cores > 1 else Simulator(method.client, sites)


def main() -> None:
    cell, folder = task.given()
    keep_freed_memory()  # as every command does, and lays networks out as below
    clock, nets = task.Clock(folder), {"model": task.network(cell).to(memory_format=torch.channels_last)}
    method = replace(build("fedavg", optimizer=sgd(lr=cell.lr)), sampler=partial(ordered, cell))
    sites = [
        Site(task.domain(client), {"train": split}, nets, sampler=method.sampler, batch_size=cell.batch)
        for client, split in enumerate(data_of(cell, folder))
    ]
    federation = engine(cell, method, sites)
    begin = {"model": read(nets["model"])}
    gate = Gate(method.sends, tree.to("meta", begin), federation.sizes)
    state = start(method, federation.clients, begin)
    clock.note()
    for number in range(cell.total):
        asked = tuple(task.domain(client) for client in task.participants(cell, number))
        state, _ = play(method, state, Round(number, cell.total, asked, federation.clients), federation, gate)
        clock.note()
    model = state["server"]["model"]
    task.save(folder, {**model["params"], **model["buffers"]})
    federation.close()


if __name__ == "__main__":
    main()
