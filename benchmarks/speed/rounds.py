"""What a round of every method of methods.toml costs in processor time: python benchmarks/speed/rounds.py

A third of the built-in data, one thread, evaluation of the unseen and the own domains included. Processor time, not
time on the wall, so that it can be measured beside other work; the first round, with its warming up, does not count.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedbeyond.experiment.config import load
from fedbeyond.experiment.runner import prepare, run

HERE = Path(__file__).parent.parent
OUT = HERE / "results" / "methods.times.jsonl"
ROUNDS = 4


def main() -> None:
    torch.set_num_threads(1)
    config = load(HERE / "methods.toml", ["data=styles(share=0.33)", f"train.rounds={ROUNDS}"])
    lines = []
    for method in config.bench.methods:
        setup = prepare(replace(config, method=method, target="photo"))
        spent = []
        with TemporaryDirectory() as folder:
            began = time.process_time()
            for _ in run(setup, Path(folder)):
                spent.append(time.process_time() - began)
                began = time.process_time()
        for number, seconds in enumerate(spent[1:], 1):
            lines.append(
                {"method": method, "target": "photo", "seed": 0, "round": number, "seconds": round(seconds, 3)}
            )
        print(f"{method:30} {sorted(spent[1:])[len(spent) // 2 - 1]:6.2f} s", flush=True)
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
