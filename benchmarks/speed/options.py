"""What train.precision does to a round of the demo's FedAvg: python benchmarks/speed/options.py [N]

N rounds (5) after a first one. The same run with either precision, round by round in turn, so that other load on the
machine slows both alike. Seconds are processor time. Writes benchmarks/results/options.json, whose lines "compiled" and
"both" measured an option that was deleted.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedbeyond import _memory
from fedbeyond.engine.rounds import play, start
from fedbeyond.experiment.config import load
from fedbeyond.experiment.runner import prepare
from fedbeyond.server import Round

OUT = Path(__file__).parent.parent / "results" / "options.json"
CHOICES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
}


class Player:
    """A run that is played a round at a time."""

    def __init__(self, options: dict[str, Any]) -> None:
        settings = [f"train.{key}={str(value).lower()}" for key, value in options.items()]
        self.ready = prepare(load(None, ["target=sketch", "train.rounds=100", *settings]))
        self.clients = self.ready.engine.clients
        self.state, self.seconds = (
            start(self.ready.method, self.clients, self.ready.assembly.initial_models()),
            list[float](),
        )

    def round(self) -> None:
        """One more round, with the judging of its model."""
        now = Round(len(self.seconds), 100, self.clients, self.clients)
        began = time.process_time()
        self.state, _ = play(self.ready.method, self.state, now, self.ready.engine, self.ready.gate)
        self.ready.evaluator(self.ready.method.eval_models(self.state["server"]), now.number)
        self.seconds.append(time.process_time() - began)


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    _memory.keep_freed_memory()
    players = {name: Player(options) for name, options in CHOICES.items()}
    for _ in range(1 + rounds):
        for player in players.values():
            player.round()
    usual, found = median(players["float32"].seconds[1:]), []
    for name, player in players.items():
        first, *rest = player.seconds
        told = {"first": round(first, 2), "round": round(median(rest), 2), "times": round(median(rest) / usual, 2)}
        found.append(json.dumps({"options": name} | told | {"rounds": [round(seconds, 2) for seconds in rest]}))
        print(found[-1], flush=True)
    OUT.write_text("[" + ",\n ".join(found) + "]\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
