"""Where seconds go: parts inside parts, nothing when nobody asks, and what a run prints."""

import time

import pytest

from fedbeyond import timer
from fedbeyond.cli.main import app
from fedbeyond.errors import ConfigError
from fedbeyond.monitor import profiling

TINY = ["--set", "data=styles(share=0.05)", "--set", "network=convnet(width=4)", "--set", "train.rounds=1"]


def test_a_part_inside_another_stops_the_others_clock(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    with timer.timing() as watch, timer.section("outer"), timer.section("inner"):  # at 0, 1 and 3
        pass  # left at 6 and 10, stopped at 15
    assert dict(watch.seconds) == {timer.REST: 1 + 5, "outer": 2 + 4, "inner": 3}
    assert timer.section("outer") is timer.NOTHING  # nobody asks any more


def test_seconds_are_told_the_longest_first():
    lines = list(timer.format_sections({"gate": 1.0, "forward": 3.0}))
    assert [line.split() for line in lines] == [
        ["forward", "3.00", "s", "75.0%"],
        ["gate", "1.00", "s", "25.0%"],
        ["total", "4.00", "s"],
    ]


def test_a_run_says_where_its_time_went_if_it_is_asked(tmp_path, capsys):
    page = tmp_path / "flame.html"
    app(
        ["run", "-t", "sketch", *TINY, "--out", str(tmp_path), "--profile", "--flame", str(page)], standalone_mode=False
    )
    said = capsys.readouterr().out
    parts = ("data", "augmentation", "forward", "backward", "optimizer", "server", "gate", "evaluation", "checkpoint")
    assert all(f"\n  {name} " in said for name in parts), said
    assert "<html" in page.read_text()[:200].lower() and "descend" in page.read_text()


def test_what_was_timed_of_a_run_that_is_stopped_is_told(capsys):
    with pytest.raises(KeyboardInterrupt), profiling.profiled(True, None), timer.section("gate"):
        raise KeyboardInterrupt
    assert "\n  gate " in capsys.readouterr().out and timer.active is None


def test_a_folder_for_a_flame_graph_that_is_missing_is_told_before_the_run(tmp_path):
    with (
        pytest.raises(ConfigError, match=r"there is no folder \S+none; create it"),
        profiling.profiled(False, tmp_path / "none" / "flame.html"),
    ):
        pass


def test_a_flame_graph_without_its_library_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyinstrument", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'fedbeyond\[profile\]'"),
        profiling.profiled(False, tmp_path / "flame.html"),
    ):
        pass
