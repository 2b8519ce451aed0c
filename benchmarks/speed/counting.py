"""What counting operations adds to a round: python benchmarks/speed/counting.py [ROUNDS]

Rounds (9) of two methods on the built-in data, not evaluated: with and without counting in turn, so that other load
on the machine slows both alike. Seconds are processor time. Writes benchmarks/results/counting.jsonl.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch

from fedbeyond.engine.allocator import keep_freed_memory
from fedbeyond.engine.flops import Flops
from fedbeyond.engine.rounds import play, start
from fedbeyond.engine.simulator import Simulator
from fedbeyond.experiment.config import load
from fedbeyond.experiment.prepare import prepare
from fedbeyond.server import ModelStore, Round

OUT = Path(__file__).parent.parent / "results" / "counting.jsonl"
METHODS = ("fedavg", "feddag(width=8, warmup=1)")


def measure(method: str, rounds: int) -> dict[str, object]:
    """Return the median seconds of a round with and without counting, after a first round of each."""
    setup = prepare(load(None, ["target=sketch", f"method={method}", f"train.rounds={2 * rounds + 2}"]))
    engine = setup.engine
    assert isinstance(engine, Simulator)
    state = start(setup.method, engine.clients, setup.assembly.initial_models())
    store = ModelStore()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds + 2):
        engine.flops = Flops()  # as in the last round of a run: nothing is known of its batches
        engine.flops.active = counting = number % 2 == 1
        began = time.process_time()
        now = Round(number, 2 * rounds + 2, engine.clients, engine.clients, store=store)
        state, _ = play(setup.method, state, now, engine, setup.gate)
        seconds[counting].append(time.process_time() - began)
    plain, counted = (median(seconds[counting][1:]) for counting in (False, True))
    return {
        "method": method,
        "plain": round(plain, 3),
        "counted": round(counted, 3),
        "times": round(counted / plain, 3),
    }


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    lines = [json.dumps(measure(method, rounds)) for method in METHODS]
    print("\n".join(lines))
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["9"]))
