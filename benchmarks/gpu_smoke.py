"""Does everything run on your GPU? Try every method for two rounds on tiny data, then what depends on CUDA.

    python benchmarks/gpu_smoke.py                            # on CUDA; --device cpu runs it without
    python benchmarks/gpu_smoke.py --methods fedavg,fedsb+ga  # some methods only

After the methods: bfloat16 (on CUDA only), two workers, and a run that is stopped after its first round and resumed.
The last two are compared with a plain run: on a CPU a difference is a failure, on CUDA it is printed. The second round
also counts operations, so it is not the quicker one. A method that fails does not stop the others. The last line can be
pasted into an issue. The exit code is 1 if anything failed, and 2 without CUDA, unless `--device cpu` is given.
"""

import argparse
import logging
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch

from fedbeyond import NUMERICS, __version__, tree
from fedbeyond.experiment import checkpoint, run_folder, runner
from fedbeyond.experiment.bench import configure_torch
from fedbeyond.experiment.config import Config, Train
from fedbeyond.experiment.registry import REGISTRY

SMALL = {  # less to train, and no warm-up that outlasts two rounds
    "fedsb": "fedsb(budget=3)",
    "fedadg": "fedadg(classify=1, align=1)",
    "ndag": "ndag(width=4, warmup=0)",
    "feddag": "feddag(width=4, warmup=0)",
    "csac": "csac(pretrain=1, width=4)",
    "fccl": "fccl(images=16, batch=8, pretrain=1)",
    "ddaig": "ddaig(width=4, warmup=0)",
    "ats": "ats(width=4, warmup=0)",
}
WRAPPED = ["fedsb(budget=3)+rc+ga", "scaffold+sha", "harmofl+mixstyle", "fedavg+am", "fedprox+augmix", "fedavg+dp"]
METHODS = [SMALL.get(name, name) for name in REGISTRY["methods"]] + WRAPPED
COMPARED = "scaffold+ga"  # has state at the sites and in the weighting


class Outcome(NamedTuple):
    """What came of a line of the table."""

    name: str
    state: str  # ok, failed or skipped
    seconds: tuple[float, ...] = ()  # of each round
    memory: int = 0  # most bytes allocated on the GPU
    remark: str = ""  # why it failed or was skipped; what a comparison found


def configured(method: str, precision: Literal["float32", "bfloat16"] = "float32") -> Config:
    """Return a run of two rounds with a small network on few images."""
    noisy = "dp" in re.split(r"\W", method)  # adds no noise to moments, so they are not re-estimated
    return Config(
        method=method,
        target="sketch",
        data="styles(share=0.05)",
        public="styles(share=0.05, seed=1)",
        network="convnet(width=4)",
        train=Train(rounds=2, batch_size=8, precision=precision, batchnorm="average" if noisy else "reestimate"),
    )


def train(config: Config, folder: Path, device: str, stop_after: int | None = None) -> tuple[float, ...]:
    """Run the missing rounds in a folder, or some of them; return the seconds of each."""
    rounds = cast("Generator[Any]", runner.run(runner.prepare(config, device), folder))
    seconds, began = [], time.perf_counter()
    for _ in islice(rounds, stop_after):
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    rounds.close()
    return tuple(seconds)


def attempt(name: str, act: Callable[[], tuple[tuple[float, ...], str]], device: str) -> Outcome:
    """Run one line of the table; a failure becomes its reason in one line."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds, remark = act()
    except Exception as error:  # whatever it is, the other lines are of interest too
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(name, "failed", remark=reason if len(reason) <= 300 else reason[:297] + "...")
    return Outcome(name, "ok", seconds, torch.cuda.max_memory_allocated() if device == "cuda" else 0, remark)


def comparison(one: Path, other: Path, device: str) -> str:
    """Compare the last states of two runs; on a CPU they must be equal."""
    first, second = (tree.flatten(checkpoint.load(folder / run_folder.CHECKPOINT)[0]) for folder in (one, other))
    if first.keys() != second.keys():
        raise AssertionError("the states of the two runs have different entries")
    if all(torch.equal(first[key], second[key]) for key in first):
        return "equal to the bit"
    largest = max(
        float((first[key].double() - second[key].double()).abs().max()) for key in first if first[key].numel()
    )
    found = f"not equal: the largest difference is {largest:.2g}"
    if device == "cpu":
        raise AssertionError(found)
    return found


def with_workers(folder: Path, plain: Path, device: str) -> tuple[tuple[float, ...], str]:
    """Run with two workers, by the command: processes cannot be forked from one that has used CUDA."""
    config, began = configured(COMPARED), time.perf_counter()
    settings = [f"data={config.data}", f"public={config.public}", f"network={config.network}"]
    settings += [f"train.rounds={config.train.rounds}", f"train.batch_size={config.train.batch_size}"]
    words = ["run", "--method", config.method, "--target", str(config.target), "--device", device, "--workers", "2"]
    words += ["--out", str(folder), *(word for setting in settings for word in ("--set", setting))]
    ended = subprocess.run([sys.executable, "-m", "fedbeyond", *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError((ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1])
    found, seconds = comparison(run_folder.path(folder, config), plain, device), time.perf_counter() - began
    return (), f"{found}; the command took {seconds:.1f} s"


def resumed(folder: Path, plain: Path, device: str) -> tuple[tuple[float, ...], str]:
    """Stop a run after its first round and resume it."""
    config = configured(COMPARED)
    seconds = train(config, folder, device, stop_after=1) + train(config, folder, device)
    return seconds, comparison(folder, plain, device)


def smoke(methods: Sequence[str], device: str, folder: Path) -> list[Outcome]:
    """Run all lines of the table, with progress on the terminal."""
    plain = folder / "plain"

    def method(name: str) -> Callable[[], tuple[tuple[float, ...], str]]:
        return lambda: (train(configured(name), folder / f"{len(outcomes)}", device), "")

    todo = {name: method(name) for name in methods}
    todo["float32, to compare with"] = lambda: (train(configured(COMPARED), plain, device), COMPARED)
    todo["bfloat16"] = lambda: (train(configured("fedavg", "bfloat16"), folder / "bfloat16", device), "fedavg")
    todo["two workers"] = lambda: with_workers(folder / "workers", plain, device)
    todo["stopped and resumed"] = lambda: resumed(folder / "resumed", plain, device)
    skipped = {} if device == "cuda" else {"bfloat16": "it is for CUDA"}
    if find_spec("dp_accounting") is None:
        reason = "dp needs: pip install 'fedbeyond[privacy]'"
        skipped |= {name: reason for name in methods if "dp" in re.split(r"\W", name)}
    outcomes: list[Outcome] = []
    for number, (name, act) in enumerate(todo.items(), 1):
        print(f"[{number:{len(str(len(todo)))}}/{len(todo)}] {name}", end=" ", flush=True)
        outcome = Outcome(name, "skipped", remark=skipped[name]) if name in skipped else attempt(name, act, device)
        outcomes.append(outcome)
        took = f"({sum(outcome.seconds):.1f} s)" if outcome.seconds else ""
        print(*filter(None, (outcome.state, took, outcome.remark)), flush=True)
        if outcome.state == "failed" and not usable(device):
            skipped |= dict.fromkeys(
                todo, f"CUDA cannot be used in this process after {name} failed: run it with --methods"
            )
    return outcomes


def usable(device: str) -> bool:
    """Return whether the device still computes: some errors of CUDA end everything in their process."""
    try:
        return bool(torch.ones(2, device=device).sum() == 2)
    except RuntimeError:
        return False


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the seconds of each round and, on CUDA, the memory of each line."""
    width, cuda = max(len(outcome.name) for outcome in outcomes), any(outcome.memory for outcome in outcomes)
    lines = [f"{'':{width}}  {'round 1':>9}  {'round 2':>9}" + (f"  {'peak MB':>9}" if cuda else "")]
    for name, state, seconds, memory, remark in outcomes:
        numbers = [f"{second:.3f}" for second in seconds] + ["-"] * (2 - len(seconds))
        numbers += [f"{memory / 2**20:.0f}" if memory else "-"] if cuda else []
        end = "" if state == "ok" and not remark else f"  {remark}" if state == "ok" else f"  {state}: {remark}"
        lines.append(f"{name:{width}}  {'  '.join(f'{number:>9}' for number in numbers)}{end}")
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome], device: str, seconds: float) -> str:
    """Return one line for an issue: versions, device, counts, what the comparisons found, seconds."""
    counts = ", ".join(
        f"{sum(outcome.state == state for outcome in outcomes)} {state}" for state in ("ok", "failed", "skipped")
    )
    found = "".join(
        f"; {outcome.name}: {outcome.remark if outcome.state == 'ok' else outcome.state}" for outcome in outcomes[-2:]
    )
    failed = ", ".join(outcome.name for outcome in outcomes if outcome.state == "failed")
    versions = f"fedbeyond {__version__} (numerics {NUMERICS}), torch {torch.__version__}"
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    peak = f", peak {max(outcome.memory for outcome in outcomes) / 2**20:.0f} MB" if device == "cuda" else ""
    return (
        f"gpu_smoke: {versions}, {system}; {describe(device)}; {counts}{f' ({failed})' if failed else ''}{found}; "
        f"{seconds:.0f} s{peak}"
    )


def describe(device: str) -> str:
    """Return the name of the device and, of a GPU, the versions of its driver, CUDA and cuDNN."""
    if device == "cpu":
        return f"cpu ({torch.backends.cpu.get_cpu_capability()})"
    driver = "unknown"
    if program := shutil.which("nvidia-smi"):
        query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = (subprocess.run(query, capture_output=True, text=True, check=False).stdout.split() or [driver])[0]
    count = torch.cuda.device_count()
    name = f"{count} x {torch.cuda.get_device_name()}" if count > 1 else torch.cuda.get_device_name()
    return f"{name} (driver {driver}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()})"


def main(words: Sequence[str] | None = None) -> int:
    """Run the lines, print the table and the summary; return the exit code."""
    parser = argparse.ArgumentParser(description="Run every method for two rounds on a device, on tiny data.")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda")
    parser.add_argument("--methods", metavar="A,B", help="only these methods; default: every one, and some wrappers")
    given = parser.parse_args(words)
    device = given.device or "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print(
            f"CUDA cannot be used here: torch {torch.__version__} "
            + ("finds no GPU" if torch.version.cuda else "is built without it")
            + "; install a build of torch for your GPU, or give --device cpu to try the script itself",
            file=sys.stderr,
        )
        return 2
    names = re.split(r"\s*,\s*(?![^(]*\))", given.methods.strip()) if given.methods else METHODS
    configure_torch(device, 1)
    print(f"{describe(device)}, torch {torch.__version__}", flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = smoke([SMALL.get(name, name) for name in names], device, Path(folder))
    print(f"\n{table(outcomes)}\n\n{summary(outcomes, device, time.perf_counter() - began)}")
    return int(any(outcome.state == "failed" for outcome in outcomes))


if __name__ == "__main__":
    logging.getLogger("fedbeyond").setLevel(logging.ERROR)  # warnings that two rounds are few
    sys.exit(main())
