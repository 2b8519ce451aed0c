"""Progress of runs as a person reads it: each run once when it ends, one estimate, no line wider than the terminal."""

import io
import re
import sys

import pytest
from rich.console import Console
from rich.live import Live

from fedbeyond._io import write
from fedbeyond.experiment import progress
from fedbeyond.experiment.config import Config, Train
from support.commands import on_terminal
from support.watched import begin, held, play

LONG = "fedprox(mu=0.0123456789)+ga+mixstyle"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def grid(root, *methods, rounds=4):
    return [
        (Config(method=method, target="sketch", train=Train(rounds=rounds)), root / method / "sketch" / "seed-0")
        for method in methods
    ]


def finish(folder, rounds=4):
    for number in range(rounds):
        play(folder, number, seconds=100)
    (folder / "done").touch()


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 80 columns; what it receives."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=80, height=24)
    live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
    monkeypatch.setattr(progress, "live_display", lambda: live)
    return written


def lines(written):
    return [
        line.rstrip() for line in CONTROL.sub("", written.getvalue()).replace("\r", "\n").split("\n") if line.strip()
    ]


def test_without_a_terminal_each_run_is_printed_once_with_an_occasional_line_about_all(tmp_path, capsys, monkeypatch):
    finish(begin(tmp_path, "before"))
    display = progress.Display(grid(tmp_path, "before", "a", "b", "c"), jobs=2)
    display.show(display.read())
    assert capsys.readouterr().err == "1 of 4 done, about 10 min left\n"  # 12 rounds of 100 s, two runs at a time
    a, b = begin(tmp_path, "a"), begin(tmp_path, "b")
    finish(a)
    write(b / "failure.json", b'{"error": "no site replied"}')
    for _ in range(2):
        display.show(display.read())
    ended = ["2/4 a, sketch unseen, seed 0: round 4/4, own 75.0%, unseen 50.0%"]
    ended += ["3/4 b, sketch unseen, seed 0: failed: no site replied"]
    assert capsys.readouterr().err.splitlines() == ended
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    with held(b):  # it is tried again
        display.show(display.read())
    assert capsys.readouterr().err == "2 of 4 done, 1 running, about 7 min left\n"
    (b / "failure.json").unlink()
    finish(b)
    display.read()
    assert capsys.readouterr().err == "3/4 b, sketch unseen, seed 0: round 4/4, own 75.0%, unseen 50.0%\n"


def test_the_failure_of_an_earlier_bench_is_not_one_of_this_one(tmp_path, capsys):
    write(begin(tmp_path, "a") / "failure.json", b'{"error": "no site replied"}')
    display = progress.Display(grid(tmp_path, "a", "b"), jobs=1)
    assert display.read() == ["pending", "pending"] and capsys.readouterr().err == ""


def test_a_run_alone_is_not_counted(tmp_path, capsys):
    (run,) = grid(tmp_path, "a")
    folder = begin(tmp_path, "a")
    play(folder, 0, seconds=100)
    with held(folder), progress.progress([run]):
        pass
    assert capsys.readouterr().err == "a, sketch unseen, seed 0: round 1/4, own 75.0%, unseen 50.0%, about 5 min left\n"


def test_on_a_terminal_running_runs_have_a_line_each_and_nothing_wraps(tmp_path, terminal):
    runs = grid(tmp_path, "fedavg", LONG, f"{LONG}+rc", "later", rounds=4)
    display = progress.Display(runs, jobs=2)
    folders = [begin(tmp_path, cell.method) for cell, _ in runs[:3]]
    play(folders[0], 0, seconds=100, rounds=4)
    with display.live, held(folders[0]), held(folders[1]):
        display.show(display.read())
        assert display.read() == ["running", "running", "pending", "pending"]
    shown = lines(terminal)
    assert shown[0] == "0 of 4 done, 2 running, about 12 min left"  # 15 rounds of 100 s, by two
    assert re.fullmatch(r" fedavg +sketch unseen seed 0 round 1/4, own 75.0%, unseen 50.0%", shown[1])
    assert re.fullmatch(r" fedprox\(mu=0.01\S*… sketch unseen seed 0 round 0/4", shown[2])
    assert max(map(len, shown)) <= 80


def test_on_a_terminal_what_ends_is_printed_above_the_display_once(tmp_path, terminal):
    runs = grid(tmp_path, LONG, f"{LONG}+rc", "later")
    folders = [begin(tmp_path, cell.method) for cell, _ in runs[:2]]
    with progress.progress(runs, jobs=2):
        finish(folders[0])
        play(folders[1], 0, aside=({"site": "photo", "reason": "x"},) * 9)
        write(folders[1] / "failure.json", b'{"error": "only 0 of 3 sites gave a valid reply, 2 are needed"}')
    shown = lines(terminal)
    ended = [line for line in shown if "/3 " in line]
    assert len(ended) == 2 and max(map(len, shown)) <= 80
    assert re.fullmatch(r"1/3 fedprox\(mu=0.01\S*… sketch unseen seed 0 own 75.0%, unseen 50.0%", ended[0])
    assert re.match(r"2/3 fedprox\(mu\S*… sketch unseen seed 0 +failed: only 0 of", ended[1])
    assert terminal.getvalue().endswith("\x1b[2K") and "\x1b[?25h" in terminal.getvalue()  # erased, with a cursor


TRACK = (
    "from fedbeyond import _progress as p; p.PATIENCE = -1.0; track = lambda: list(p.track(range(3), 'decoding ' * 12))"
)


def test_a_long_operation_is_one_line_on_a_terminal_and_erased():
    written, code = on_terminal([sys.executable, "-c", f"{TRACK}; track()"])
    assert code == 0 and "decoding" in written and "…" in written
    assert max(map(len, CONTROL.sub("", written).replace("\r", "\n").split("\n"))) <= 80
    assert written.endswith("\x1b[2K") and "\x1b[?25h" in written


def test_a_long_operation_inside_a_live_display_is_a_line_above_it():
    code = f"{TRACK}; live = p.live_display()\nwith live: live.update('9 of 9 done', refresh=True); track()"
    written, code = on_terminal([sys.executable, "-c", code], columns=200)
    assert code == 0 and len(re.findall(r"0 of 3, 0 s left *\r\n9 of 9 done", CONTROL.sub("", written))) == 1
