"""One runner on one cell: started on its cores, watched for its memory, stopped when its time is over.

Memory is the proportional set size (PSS) of all processes that a runner started, summed: a page that several of them
share counts once. Processes are known by a mark in their environment, which they inherit, so that those count that a
framework detached; whatever is left of them at the end is killed.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

INTERVAL, SHARE = 0.1, 0.04  # seconds between looks at the memory, and the most of a core that looking may take


class Tree:
    """The processes that carry a mark."""

    def __init__(self, mark: str) -> None:
        self.mark, self.known = f"FEDBEYOND_SPEED={mark}".encode(), dict[int, bool]()

    def members(self) -> Iterator[int]:
        """Their numbers, as of now."""
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self.known = {pid: is_ours for pid, is_ours in self.known.items() if pid in there}
        for pid in there - self.known.keys():
            if variables := _content(pid, "environ"):  # of a process that is just about to begin there are none yet
                self.known[pid] = self.mark in variables.split(b"\0")
        yield from [pid for pid, is_ours in self.known.items() if is_ours]

    def memory(self) -> int:
        """Their PSS in bytes."""
        return sum(_pss(pid) for pid in self.members())

    def kill(self, patience: float = 10.0) -> None:
        """End them all."""
        end = time.monotonic() + patience
        while (left := [pid for pid in self.members() if _running(pid)]) and time.monotonic() < end:
            for pid in left:
                _signal(pid)
            time.sleep(0.05)


def _content(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it is gone, or not ours
        return b""


def _pss(pid: int) -> int:
    for line in _content(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _running(pid: int) -> bool:
    return b"\nState:\tZ" not in _content(pid, "status") and Path(f"/proc/{pid}").exists()


def _signal(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def run(command: list[str], variables: dict[str, str], folder: Path, cores: int, limit: float) -> dict[str, Any]:
    """What came of a runner: when it was started, its most memory, and why it did not finish if it did not."""
    tree, peak, outcome = Tree(variables["FEDBEYOND_SPEED"]), 0, ""
    usable = sorted(os.sched_getaffinity(0))[-cores:]
    began = time.monotonic()
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, usable)), *command],
            env=variables,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                looked = time.monotonic()
                peak = max(peak, tree.memory())
                if looked - began > limit:
                    outcome = f"not done after {limit:.0f} s"
                    break
                try:
                    child.wait(max(INTERVAL, (time.monotonic() - looked) / SHARE))
                except subprocess.TimeoutExpired:
                    continue
        finally:
            tree.kill()
            child.wait()
    if not outcome and not (folder / "weights.npz").exists():
        outcome = f"ended with {child.returncode} and no weights: {_last_words(folder / 'log')}"
    return {"began": began, "memory": peak, "outcome": outcome}


def _last_words(log: Path) -> str:
    said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return said[-1][:200] if said else "nothing was said"


def times(folder: Path, began: float) -> dict[str, Any]:
    """Seconds of each round that counts, and of all before: until the first round is over, less a usual round."""
    path = folder / "instants"
    instants = [float(line) for line in path.read_text().split()] if path.exists() else []
    rounds = np.diff(instants[1:]).tolist()
    return {"rounds": rounds, "start": instants[1] - began - float(np.median(rounds)) if rounds else None}


def difference(folder: Path, other: Path) -> float:
    """The largest difference between the final weights of two runners."""
    with np.load(folder / "weights.npz") as one, np.load(other / "weights.npz") as two:
        if {*one.files} != {*two.files}:
            return float("inf")
        return max(float(np.abs(one[name] - two[name]).max()) for name in one.files)
