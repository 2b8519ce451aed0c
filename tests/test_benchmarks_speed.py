"""The suite that measures speed: its runners come to the same weights, and its arithmetic is right."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from support.paths import ROOT

SUITE = ROOT / "benchmarks" / "speed"
sys.path.insert(0, str(SUITE))

import measure  # noqa: E402
import peers  # noqa: E402
import table  # noqa: E402
import task  # noqa: E402


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The plain loop and fedbeyond on files of a few pixels, started as the suite does."""
    place = tmp_path_factory.mktemp("speed")
    cell = task.Cell("tiny", clients=3, asked=2, steps=2, batch=4, pixels=8, width=4, rounds=2, files=True)
    cell = cell._replace(root=str(place / "images"))
    task.draw(cell, place / "images")
    seen = {}
    for name in ("plain", "ours"):
        folder = place / name
        folder.mkdir()
        (folder / "cell.json").write_text(json.dumps(cell._asdict()))
        command = [sys.executable, str(SUITE / f"{name}.py"), str(folder / "cell.json")]
        seen[name] = measure.run(command, peers.surroundings(str(folder)), folder, 1, 60)
    return place, seen


def test_the_plain_loop_and_fedbeyond_end_with_the_same_weights_which_are_not_the_first(tiny):
    place, seen = tiny
    assert [entry["outcome"] for entry in seen.values()] == ["", ""]
    assert measure.difference(place / "ours", place / "plain") <= 1e-5
    first = task.network(task.read(place / "plain" / "cell.json")).state_dict()
    with np.load(place / "plain" / "weights.npz") as last:
        assert max(float(np.abs(last[name] - value.numpy()).max()) for name, value in first.items()) > 1e-3


def test_rounds_that_count_start_up_and_memory_are_told_of_a_runner(tiny):
    place, seen = tiny
    for name, entry in seen.items():
        told = measure.times(place / name, entry["began"])
        assert len(told["rounds"]) == 2 and all(seconds > 0 for seconds in told["rounds"])
        assert told["start"] > 0 and entry["memory"] > 50 * 2**20  # torch alone is more


def test_a_runner_is_stopped_with_all_that_it_started_when_its_time_is_over(tmp_path):
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1).wait()"
    seen = measure.run([sys.executable, "-c", child], peers.surroundings(str(tmp_path)), tmp_path, 1, 0.5)
    assert seen["outcome"] == "not done after 0 s"
    left = [pid for pid in measure.Tree(str(tmp_path)).members() if Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert not left


def test_a_runner_that_fails_says_why(tmp_path):
    seen = measure.run([sys.executable, "-c", "raise OSError('no disk')"], peers.surroundings("x"), tmp_path, 1, 20)
    assert seen["outcome"] == "ended with 1 and no weights: OSError: no disk"


def test_an_installation_that_fails_is_told_in_a_line():
    said = "import sys; print('looking', 'ERROR: no such package', 'sorry', sep=chr(10), file=sys.stderr); sys.exit(1)"
    with pytest.raises(peers.Missing, match=r"^ERROR: no such package$"):
        peers._do([sys.executable, "-c", said])


def test_the_line_of_least_squares_is_the_one_by_hand():
    # means 2 and 5; sum of products 10, of squares 2: slope 5; left over 1, 4, 1 of a variance of 50 + 6
    line = table.fit([1, 2, 3], [1, 3, 11])
    assert (line.slope, line.intercept) == pytest.approx((5, -5))
    assert line.r2 == pytest.approx(1 - 6 / 56)


def entry(*rounds, **more):
    return {"rounds": list(rounds), "start": 2.0, "memory": 100, "outcome": "", "difference": 0.0} | more


def test_the_table_has_times_of_the_plain_loop_and_says_what_is_missing():
    found = {
        "versions": {"plain": "2.13.0", "ours": "0.1.0"},
        "skipped": {"nvflare": "no such package"},
        "cores": 2,
        "results": {
            "feddg": {
                "plain": entry(2.0, 2.0, 2.0, 2.0, 2.0),
                "ours": entry(2.0, 3.0, 4.0, 5.0, 6.0, start=3.0, memory=250),
                "pfl": entry(1.0, difference=0.5),
                "flower": entry(outcome="not done after 120 s"),
            }
        },
    }
    lines = table.markdown(found).splitlines()
    about = "3 clients, convnet, 32 px, 20 steps of 32 images"
    assert f"| {about} | 1.00 (1.00 to 1.00) | 2.00 (1.50 to 2.50) | - | - | - |" in lines
    assert f"| {about} | 1.00 | 1.50 | - | - | - |" in lines  # start-up
    assert f"| {about} | 1.00 | 2.50 | - | - | - |" in lines  # memory
    assert "- NVFlare was not measured: no such package" in lines
    assert "- pfl, feddg: its weights differ by 5.0e-01" in lines
    assert "- Flower, feddg: not done after 120 s" in lines


def test_scaling_tells_slopes_as_times_of_the_plain_loop_and_what_a_second_core_brings():
    results = {
        f"clients-{many}": {"plain": entry(0.1 * many), "ours": entry(0.2 * many + 0.6)} for many in (3, 10, 30, 100)
    }
    results |= {"cores-1": {"plain": entry(3.0), "ours": entry(3.0)}, "cores-2": {"ours": entry(2.0)}}
    _, _, plain, ours, *_ = table.scaling(results)
    assert plain == "| plain loop | 1.00 | 0.0 | 1.0000 | - |"
    assert ours == "| fedbeyond | 2.00 | 3.0 | 1.0000 | 1.50 |"


def test_what_a_second_core_brings_is_told_turn_by_turn():
    size = table.CELLS["cores-1"].rounds
    one = entry(*[3.0] * size, *[6.0] * size)  # the machine became slow, and everyone with it
    assert table.gain(one, entry(*[2.0] * size, *[4.0] * size)) == pytest.approx(1.5)
    assert table.gain(one, entry(*[2.0] * (2 * size))) == pytest.approx((1.5 + 3) / 2)


def test_tables_take_the_place_of_those_that_a_page_had():
    page = f"before\n{table.FROM}old\n{table.TO}after\n"
    assert table.put(page, "new") == f"before\n{table.FROM}\nnew\n{table.TO}after\n"
    assert table.FROM in table.DOCS.read_text() and table.TO in table.DOCS.read_text()
