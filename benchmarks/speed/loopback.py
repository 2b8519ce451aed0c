"""Where the seconds of a round over Flower go: python benchmarks/speed/loopback.py

FedAvg with ResNet-18 (45 MB each way), three sites and a guest: in the simulator, and as a federation of real processes
on 127.0.0.1 with TLS and keys. Sites' logs tell when a letter was opened and answered; what a process takes to import
is measured with as many at once as there are sites; the rest is Flower's: looking for messages, sending, starting. It
writes benchmarks/results/loopback.json.
"""

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from fedbeyond.engine.allocator import keep_freed_memory
from fedbeyond.experiment import results, run_folder
from fedbeyond.experiment.config import Config, Train
from fedbeyond.experiment.prepare import prepare
from fedbeyond.experiment.runner import run
from fedbeyond.flower.deploy.local import run_local_federation

OUT = Path(__file__).parent.parent / "results" / "loopback.json"
CONFIG = Config(
    method="fedavg",
    target="sketch",
    data="styles(share=0.33)",
    network="resnet18",
    train=Train(rounds=4, batch_size=32, batchnorm="average"),
)
IMPORT = "import flwr.supernode.cli, fedbeyond.flower.app"  # as the process of a message does


def seconds(folder: Path) -> float:
    """A usual round's, the first and, with its counting, the last apart."""
    return median([line["seconds"] for line in results.read(folder / "times.jsonl")][1:-1])


def imports(many: int) -> float:
    """What it takes that many processes at once to be ready."""
    began = time.perf_counter()
    for process in [subprocess.Popen([sys.executable, "-c", IMPORT]) for _ in range(many)]:
        process.wait()
    return time.perf_counter() - began


def letters(folder: Path, kind: str) -> float:
    """From opened to answered, at the slowest site, in a usual round."""
    sites = []
    for path in folder.glob("sites/*/state/audit.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        spent = []
        for come, gone in zip(lines[::2], lines[1::2], strict=True):
            if come.get("kind", come["subject"]) == kind:
                spent.append(datetime.fromisoformat(gone["time"]) - datetime.fromisoformat(come["time"]))
        if spent:  # a guest does not train
            sites.append([each.total_seconds() for each in spent])
    return median([max(each) for each in zip(*sites, strict=True)][1:-1])


def main() -> None:
    keep_freed_memory()
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        home = Path(name)
        list(run(prepare(CONFIG), home / "simulated"))
        run_local_federation(CONFIG, home / "federation", home / "tried")
        whole, alone = seconds(run_folder.path(home / "tried", CONFIG)), seconds(home / "simulated")
        spent = {kind: letters(home / "federation", kind) for kind in ("train", "evaluate")}
    ready = {"train": imports(3), "evaluate": imports(4)}
    told = {
        "simulator": round(alone, 1),
        "loopback": round(whole, 1),
        "sites at work": {kind: round(took, 1) for kind, took in spent.items()},
        "processes importing": {kind: round(took, 1) for kind, took in ready.items()},
    }
    told["Flower, and waiting"] = round(whole - sum(spent[kind] + ready[kind] for kind in ready), 1)
    OUT.write_text(json.dumps(told, indent=1) + "\n")
    print(OUT.read_text())


if __name__ == "__main__":
    main()
