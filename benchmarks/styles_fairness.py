"""Is the built-in data a fair test? Three figures that say so, for three seeds.

    python benchmarks/styles_fairness.py

1. Centralised training on all four domains pooled: accuracy on held-out images (the classes can be learnt).
2. FedAvg with one domain left out: accuracy on held-out images of its own domains (federated training works).
3. The same models on the domain left out (and this is what is lost there).

Writes benchmarks/results/styles_fairness.json.
"""

import json
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from fedbeyond.classifier import Task, measure, read, write
from fedbeyond.data.partition.assignment import select_rows
from fedbeyond.data.partition.splits import cut
from fedbeyond.engine.gate import Gate
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.evaluation.rules import unseen
from fedbeyond.evaluation.selection import select_round, selection_score
from fedbeyond.experiment.build import dataset, networks
from fedbeyond.experiment.config import Config, Train
from fedbeyond.experiment.prepare import prepare
from fedbeyond.experiment.registry import build, make_one
from fedbeyond.experiment.result_line import describe_round as line_of
from fedbeyond.networks._convnet import convnet
from fedbeyond.server import Round
from fedbeyond.site import Site

ROUNDS, SEEDS = 20, (0, 1, 2)


def pooled(seed: int) -> float:
    """The best epoch's accuracy on all domains' held-out images, by the validation half of them."""
    domains, config = dataset("styles"), Config()
    method = build("fedavg", optimizer=make_one("optimizers", config.optimizer))
    nets = networks(method, Task(domains.classes, (3, 32, 32), convnet()), seed, "cpu")
    cuts = {
        name: cut(np.arange(len(y)), float(config.train.validation), name, seed)
        for name, (_, y) in domains.images.items()
    }
    train, (held, y) = (select_rows(domains, {name: both[side] for name, both in cuts.items()}) for side in (0, 1))
    x = held[:]
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    choose, test = ((x[half], y[half]) for half in order.chunk(2))
    site = Site("all", {"train": train, "val": choose}, nets, batch_size=config.train.batch_size, seed=seed)
    federation = Simulator(method.client, [site])
    gate = Gate(method.sends, {"model": read(nets["model"])}, {"all": site.size})
    state, found = start(method, ("all",), gate.nets), []
    for number in range(ROUNDS):
        state, _ = play(method, state, Round(number, ROUNDS, ("all",), ("all",)), federation, gate)
        net = write(nets["model"], state["server"]["model"])
        found.append((measure(net, choose)["accuracy"].item(), measure(net, test)["accuracy"].item()))
    return max(found)[1]


def left_out(target: str, seed: int) -> tuple[float, float]:
    """FedAvg's accuracy at home and away, in the round that source validation picks."""
    setup = prepare(Config(target=target, seed=seed, train=Train(rounds=ROUNDS, batchnorm="average")))
    clients, lines = setup.engine.clients, []
    state = start(setup.method, clients, setup.assembly.initial_models())
    for number in range(ROUNDS):
        now = Round(number, ROUNDS, clients, clients)
        state, round_log = play(setup.method, state, now, setup.engine, setup.gate)
        lines.append(line_of(setup, now, state, round_log)[0])
    best = select_round(lines)
    return selection_score(best), unseen(best)


def main() -> None:
    torch.set_num_threads(1)
    central = [pooled(seed) for seed in SEEDS]
    print(f"centralised, all domains, held-out images: {mean(central):.1%}", flush=True)
    away = {}
    for target in dataset("styles").images:
        found = [left_out(target, seed) for seed in SEEDS]
        away[target] = {"own": mean(own for own, _ in found), "unseen": mean(new for _, new in found)}
        print(
            f"fedavg, {target:9} unseen: own {away[target]['own']:.1%}, unseen {away[target]['unseen']:.1%}", flush=True
        )
    own, new = (mean(one[key] for one in away.values()) for key in ("own", "unseen"))
    print(f"fedavg on average: own {own:.1%}, unseen {new:.1%}, lost {100 * (own - new):.1f} points")
    result = {"rounds": ROUNDS, "seeds": SEEDS, "centralised": central, "fedavg": away}
    path = Path(__file__).parent / "results" / "styles_fairness.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
