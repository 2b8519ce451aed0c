"""The runners: in which environment each one runs, made when it is first needed, and how it is started."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PATIENCE = 1200  # seconds for an installation


class Peer(NamedTuple):
    """Where a runner comes from."""

    script: str
    package: str  # whose version is told
    wants: tuple[str, ...] = ()  # to be installed in an environment of its own; nothing: this one will do
    spread: tuple[str, ...] = ()  # how it is started where it may use several cores, if not as ever


PEERS = {
    "plain": Peer("plain.py", "torch"),
    "ours": Peer("ours.py", "fedbeyond"),
    "pfl": Peer(
        "pfl_.py", "pfl", ("pfl[pytorch]==0.6.0",), ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    ),
    "flower": Peer("flower_.py", "flwr", ("flwr[simulation]==1.41.0",)),
    "nvflare": Peer("nvflare_.py", "nvflare", ("nvflare==2.9.0",)),
}


class Missing(Exception):
    """A runner's environment cannot be had, and why."""


def environment(name: str, home: Path) -> Path:
    """The Python of a runner, in an environment that is made if it is not there: all with the same torch."""
    peer = PEERS[name]
    if not peer.wants:
        return Path(sys.executable)
    place = home / name
    python, ready = place / "bin" / "python", place / "ready"
    if not ready.exists():
        print(f"installing {' '.join(peer.wants)} into {place}", flush=True)
        same = [
            line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(("torch==", "numpy==", "pillow=="))
        ]
        place.mkdir(parents=True, exist_ok=True)
        (place / "constraints.txt").write_text("\n".join(same) + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(place / "constraints.txt")]
        _do([sys.executable, "-m", "venv", str(place)])
        _do([*pip, "torch", "numpy", "pillow"])
        _do([*pip, *peer.wants])
        ready.touch()
    return python


def _do(command: list[str]) -> None:
    """Run something that takes a while, and say in one line what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise Missing(f"not installed after {PATIENCE} s") from None
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.strip()]
        raise Missing(
            next((line for line in told if line.startswith("ERROR")), told[-1] if told else "no reason given")
        )


def version(name: str, python: Path) -> str:
    """The version of a runner's package, as its environment has it."""
    code = f"from importlib.metadata import version; print(version('{PEERS[name].package}'))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def command(name: str, python: Path, cell: Path, cores: int) -> list[str]:
    """How a runner is started."""
    peer = PEERS[name]
    spread = [*peer.spread, str(cores)] if peer.spread and cores > 1 else []
    return [str(python), *spread, str(HERE / peer.script), str(cell)]


def surroundings(mark: str) -> dict[str, str]:
    """The variables that all runners have: one thread, nothing reported to anyone, and a mark to know them by."""
    quiet = {
        "FLWR_HOME": f"{mark}/flwr",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    one = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    path = os.pathsep.join(part for part in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, **quiet, **one, "PYTHONPATH": path, "FEDBEYOND_SPEED": mark}
