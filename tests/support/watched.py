"""Folders of runs made by hand, for whoever watches them: planned, begun, played a round further, locked, served."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbeyond._io import write
from fedbeyond.evaluation.selection import Line
from fedbeyond.experiment import results
from fedbeyond.monitor.watch.serve import Server


def plan(root: Path, *cells: tuple[str, str, int], jobs: int = 1, rounds: int = 4) -> None:
    root.mkdir(parents=True, exist_ok=True)
    runs = [{"method": m, "target": t, "seed": s, "rounds": rounds} for m, t, s in cells]
    write(root / "plan.json", json.dumps({"jobs": jobs, "runs": runs}).encode())


def begin(root: Path, method: str, target: str = "sketch", seed: int = 0, rounds: int = 4) -> Path:
    folder = root / method / target / f"seed-{seed}"
    folder.mkdir(parents=True)
    config = {"method": method, "target": target, "seed": seed, "train": {"rounds": rounds}}
    write(folder / "config.json", json.dumps(config).encode())
    return folder


def line(number: int, unseen: float = 0.5, rounds: int = 4, aside: tuple[dict, ...] = ()) -> Line:
    scores = {"photo": {"val": {"accuracy": 0.75}}, "sketch": {"test": {"accuracy": unseen}}}
    return {"target": "sketch", "round": number, "rounds": rounds, "scores": scores, "rejected": list(aside)}


def play(folder: Path, number: int, seconds: float = 2.0, **options) -> None:
    results.append(folder / "results.jsonl", line(number, **options))
    results.append(folder / "times.jsonl", {"method": "any", "round": number, "seconds": seconds})


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The run's lock, as a process that plays it holds it."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    words = [sys.executable, "-c", code, str(folder / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.communicate(b"\n")


@contextmanager
def serving(runs: Path, port: int = 0) -> Iterator[Server]:
    """The page of a folder, until it is over."""
    with Server(runs, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
