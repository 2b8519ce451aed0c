"""What the engine costs: rounds of fedbeyond against a plain PyTorch loop that takes the same steps.

    python benchmarks/speed/overhead.py

Three sites, the demo's network and data. Both sides see the same images in the same order, start from the same
weights and must end with the same ones. They take turns, so that whatever else the machine does hits both; the ratio
is the median over all pairs of turns. An empty round asks every site and averages what comes back, without training.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from fedbeyond.client import Client, nothing
from fedbeyond.config import Config
from fedbeyond.data.site import Site, derive
from fedbeyond.experiment import Experiment, prepare
from fedbeyond.federation import Simulator, play, start
from fedbeyond.gate import Gate
from fedbeyond.method import Method
from fedbeyond.nets import read
from fedbeyond.server import Round, averaging
from fedbeyond.tree import Tree

PAIRS, EMPTY = 15, 20
Weights = dict[str, torch.Tensor]
Result = TypeVar("Result")
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}


def plain_round(net: nn.Module, setup: Experiment, weights: Weights, number: int) -> Weights:
    """FedAvg as one would write it by hand."""
    total, mean = sum(site.size for site in setup.federation.sites.values()), {}
    for name, site in setup.federation.sites.items():
        net.load_state_dict(weights)
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), **SGD)
        rng = torch.Generator().manual_seed(derive(0, number, name, "train"))
        x, y = site.data["train"]
        for index in torch.randperm(len(y), generator=rng).split(32):
            if len(index) > 1:
                optimizer.zero_grad()
                F.cross_entropy(net(x[index].float().div_(127.5).sub_(1)), y[index]).backward()
                optimizer.step()
        for key, value in net.state_dict().items():
            part = value * (site.size / total) if value.is_floating_point() else value
            if key not in mean:
                mean[key] = part.clone()
            elif value.is_floating_point():
                mean[key] += part
            else:
                mean[key] = torch.maximum(mean[key], part)
    return mean


def timed(action: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = action()
    return time.perf_counter() - began, result


def training_ratio() -> tuple[float, float, float]:
    """Seconds of a plain round and of ours, and the median ratio of the pairs."""
    setup = prepare(Config(method="fedavg", target="sketch"))
    clients, net = setup.federation.clients, setup.nets["model"]
    state, pairs = start(setup.method, clients, setup.gate.nets), []
    for number in range(-2, PAIRS):  # two turns to warm up
        now, begin = Round(number, PAIRS, clients, clients), flat(state)

        def ours(state: Tree = state, now: Round = now) -> Tree:
            return play(setup.method, state, now, setup.federation, setup.gate)[0]

        def plain(begin: Weights = begin, number: int = number) -> Weights:
            return plain_round(net, setup, begin, number)

        if number % 2:
            (ours_took, state), (plain_took, weights) = timed(ours), timed(plain)
        else:
            (plain_took, weights), (ours_took, state) = timed(plain), timed(ours)
        for name, value in flat(state).items():
            torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-5)
        pairs.append((plain_took, ours_took))
    plains, ourses = zip(*pairs[2:], strict=True)
    return median(plains), median(ourses), median(b / a for a, b in pairs[2:])


def flat(state: Tree) -> Weights:
    model = state["server"]["model"]
    return {**model["params"], **model["buffers"]}


def empty_round(parameters: int) -> float:
    """Seconds of a round in which three sites send back what they received."""
    net = nn.Linear(parameters // 10, 10, bias=False)

    def echo(site: Site, received: Tree, private: Tree) -> tuple[Tree, Tree]:
        return {"model": read(site.nets["model"])}, private

    method = Method(client=Client(nothing, {"train": echo}), server=averaging)
    data = {"train": (torch.zeros(1, 1), torch.zeros(1))}
    sites = [Site(name, data, {"model": net}) for name in "abc"]
    federation = Simulator(method.client, sites)
    gate = Gate(method.sends, {"model": read(net)}, {site.name: 1 for site in sites})
    state, times = start(method, federation.clients, gate.nets), []
    for number in range(EMPTY):
        now = Round(number, EMPTY, federation.clients, federation.clients)
        seconds, (state, _) = timed(partial(play, method, state, now, federation, gate))
        times.append(seconds)
    return median(times[2:])


def main() -> None:
    torch.set_num_threads(1)
    for parameters in (4_000, 11_700_000):
        print(
            f"empty round, 3 sites, {parameters:>10,} parameters: {1000 * empty_round(parameters):8.2f} ms", flush=True
        )
    plain, ours, ratio = training_ratio()
    print(f"plain PyTorch loop: {plain:.3f} s a round; fedbeyond: {ours:.3f} s a round; the final weights agree")
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
