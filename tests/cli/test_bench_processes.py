"""A bench with several jobs as a person meets it: on a terminal, stopped in any way, given again."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from fedbeyond.experiment.run_state import is_running
from support.commands import going, left, on_terminal, remaining, spelled, until

LONG = "fedprox(mu=0.0123456789)+ga+mixstyle"
SMALL = ("data=styles(share=0.05)", "network=convnet(width=4)", "train.batch_size=8")


FOUR = ("train.rounds=3", f"bench.methods={['fedavg', LONG]}", "bench.targets=['photo', 'sketch']")


def words(out, *settings, workers=1):
    options = [word for setting in (*SMALL, *settings) for word in ("--set", setting)]
    return ["bench", *options, "--device", "cpu", "--jobs", "2", "--workers", workers, "--out", out]


def rounds_of(out):
    return {path.parent: path.read_text().splitlines() for path in out.rglob("times.jsonl")}


def is_shared(out):
    """Whether two processes have each finished some rounds of a run that they hold."""
    return len([folder for folder, lines in rounds_of(out).items() if len(lines) > 2 and is_running(folder)]) == 2


def test_a_process_ends_when_its_parent_closes_the_pipe():
    code = "import time; from fedbeyond._lifetime import end_with_parent; end_with_parent(0); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(60) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "workers"),
    [(signal.SIGKILL, 1), (signal.SIGKILL, 2), (signal.SIGTERM, 1), (signal.SIGINT, 1)],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else f"workers-{value}",
)
def test_a_bench_that_is_stopped_leaves_no_process_and_keeps_its_rounds(number, workers, tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    command = words(out, "target=sketch", "train.rounds=24", "bench.seeds=[0, 1, 2, 3, 4]", workers=workers)
    with going(*command, log=log) as process:
        until(lambda: is_shared(out), process)
        assert len(left(out)) >= 2 * workers  # the lead and a helper, or their workers as well
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal sends Ctrl-C to all of them
        else:
            process.send_signal(number)
        code = process.wait(30)
        assert remaining(out, 10) == {}
    kept = rounds_of(out)
    assert len(list(out.rglob("done"))) < 5 and not list(out.rglob("failure.json"))
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    said = "stopped; finished rounds are kept: give the same command again to resume"
    assert (said in log.read_text()) == (number != signal.SIGKILL)
    assert subprocess.run(spelled(*command), capture_output=True, check=False).returncode == 0
    assert len(list(out.rglob("done"))) == len(rounds_of(out)) == 5
    for folder, lines in kept.items():  # the round at work and one whose checkpoint was being written run again
        assert rounds_of(out)[folder][: len(lines) - 2] == lines[:-2]


@pytest.mark.slow
def test_on_a_terminal_of_80_columns_each_run_is_printed_once_and_no_line_wraps(tmp_path):
    out = tmp_path / "o"
    written, code = on_terminal(spelled(*words(out, *FOUR)))
    assert code == 0, written
    display = written.split("to watch them")[1].split("Accuracy on the unseen")[0].split("\n", 1)[1]
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", display).replace("\r", "\n").split("\n")
    assert max(map(len, shown)) <= 80
    ended = [line for line in shown if re.match(r"\d/4 ", line)]
    assert [line[:4] for line in ended] == ["1/4 ", "2/4 ", "3/4 ", "4/4 "]
    for method in (r"fedavg", r"fedprox\(mu=0.01\S*…"):
        for target in ("photo", "sketch"):
            row = rf"./4 {method} +{target} unseen seed 0 own +\S+%, unseen +\S+%"
            assert len([line for line in ended if re.fullmatch(row, line.rstrip())]) == 1
    assert "of 4 done" in display and "running" in display and display.count("\x1b[?25l") == display.count("\x1b[?25h")


@pytest.mark.slow
def test_without_a_terminal_each_run_of_two_jobs_is_a_plain_line(tmp_path):
    out = tmp_path / "out"
    command = spelled(*words(out, *FOUR))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    ended = [line for line in done.stderr.splitlines() if "round 3/3, own" in line]
    assert sorted(line.split(":")[0].split(" ", 1)[1] for line in ended) == sorted(
        f"{method}, {target} unseen, seed 0" for method in ("fedavg", LONG) for target in ("photo", "sketch")
    )
    assert [line.split()[0] for line in ended] == ["1/4", "2/4", "3/4", "4/4"]
    assert "\x1b" not in done.stderr and "\r" not in done.stderr
    assert json.loads((out / "plan.json").read_text())["jobs"] == 2
