"""A world small enough to compute on paper: one weight, and sites whose images are single numbers.

The network answers class 1 with logit w * x and class 0 with 0, so that for one image the loss has the slope
(sigmoid(w * x) - y) * x. Every site holds copies of one image, so that any batch has that same slope.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedbeyond import Method
from fedbeyond.classifier import Task, read
from fedbeyond.engine.gate import Gate
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.server import ModelStore, Round
from fedbeyond.site import Site
from fedbeyond.tree import Tree

SITES = {"a": (2.0, 1, 1), "b": (1.0, 0, 3)}  # site -> its image, its label, how many copies it holds


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((torch.zeros_like(x), self.w * x), 1)


def slope(w: float, site: str, smoothing: float = 0.0) -> float:
    x, y, _ = SITES[site]
    return (1 / (1 + math.exp(-w * x)) - (y * (1 - smoothing) + smoothing / 2)) * x


def play_rounds(method: Method, rounds: int, batch_size: int = 9, epochs: int = 1, total: int = 9) -> list[Tree]:
    """The state after each round; the weight is `weight(state)`."""
    method = replace(method, networks=lambda task: {"model": Weight()})
    nets = method.networks(Task((), (0, 0, 0), None))  # type: ignore[arg-type]
    sites = []
    for name, (x, y, copies) in SITES.items():
        data = {"train": (torch.full((copies, 1), x), torch.full((copies,), y))}
        data["val"] = (torch.full((1, 1), x), torch.full((1,), y))
        settings = {"augment": method.augment, "sampler": method.sampler}
        sites.append(Site(name, data, nets, batch_size=batch_size, epochs=epochs, **settings))  # type: ignore[arg-type]
    federation = Simulator(method.client, sites)
    gate = Gate(method.sends, {"model": read(nets["model"])}, {site.name: site.size for site in sites})
    states, state, store = [], start(method, federation.clients, gate.nets), ModelStore()
    for number in range(rounds):
        now = Round(number, total, federation.clients, federation.clients, store=store)
        state, _ = play(method, state, now, federation, gate)
        states.append(state | {"clients": federation.client_states})
    return states


def weight(state: Tree) -> float:
    return state["server"]["model"]["params"]["w"].item()
