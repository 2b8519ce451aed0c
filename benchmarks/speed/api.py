"""Rounds of fb.run in memory against those of the command line: python benchmarks/speed/api.py [PAIRS]

Pairs (5) of the same run on the built-in data, one from Python and one from the command line, in turn, so that other
load on the machine slows both alike. Each is a process of its own. Seconds are those of rounds after the first, as the
runs record them; the results must be equal. Writes benchmarks/results/api.jsonl.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

OUT = Path(__file__).parent.parent / "results" / "api.jsonl"
METHODS = ("fedavg", "fedsb+ga")
ROUNDS = 8
PYTHON = """
import json, sys
import fedbeyond as fb

run = fb.run(fb.method(sys.argv[1]), fb.datasets.styles(), target="sketch", rounds=int(sys.argv[2]), progress=False)
print(json.dumps([[times["seconds"] for times in run._storage.times], run.lines]))
"""


def from_python(method: str) -> tuple[list[float], list[object]]:
    """Return the seconds and the result lines of a run in memory."""
    command = [sys.executable, "-c", PYTHON, method, str(ROUNDS)]
    seconds, lines = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return seconds, lines


def from_command_line(method: str) -> tuple[list[float], list[object]]:
    """Return the seconds and the result lines of `fedbeyond run`."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "fedbeyond", "run", "-m", method, "-t", "sketch", "--out", out]
        subprocess.run([*command, "--set", f"train.rounds={ROUNDS}"], check=True, capture_output=True)
        times, results = (next(Path(out).rglob(name)).read_text() for name in ("times.jsonl", "results.jsonl"))
    return [json.loads(line)["seconds"] for line in times.splitlines()], [*map(json.loads, results.splitlines())]


def main(pairs: int) -> None:
    lines = []
    for method in METHODS:
        python: list[float] = []
        command: list[float] = []
        for _ in range(pairs):
            seconds, ours = from_python(method)
            others, theirs = from_command_line(method)
            assert ours == theirs, "the results differ"
            python += seconds[1:]
            command += others[1:]
        here, there = round(median(python), 4), round(median(command), 4)
        lines.append({"method": method, "python": here, "command_line": there, "times": round(here / there, 3)})
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(OUT.read_text(), end="")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["5"]))
