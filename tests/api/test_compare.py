"""`fb.compare`: a table of methods, targets and seeds; in one process or in several, in memory or in a folder."""

import gc
import multiprocessing
import sys
from dataclasses import replace

import pytest
import torch

import fedbeyond as fb
from api.conftest import tiny
from fedbeyond.errors import ConfigError, FederationError

METHODS = {"fedavg": fb.fedavg(), "ours": fb.ga(fb.fedsb(budget=3), step=0.05)}


@pytest.fixture
def grid(small):
    return {key: value for key, value in small.items() if key != "target"} | {"rounds": 2, "seeds": 2}


def test_a_comparison_has_a_run_for_each_method_target_and_seed(data, grid, tmp_path):
    table = fb.compare(METHODS, data, **grid)
    assert len(table) == 12 and table.finished
    assert {(row["method"], row["target"], row["seed"]) for row in table.scores()} == {
        (method, target, seed) for method in METHODS for target in data.domains for seed in (0, 1)
    }
    one = fb.run(METHODS["ours"], data, **_one(grid))
    assert table.run("ours", "east", 1).lines == one.lines
    assert len(table.to_pandas()) == 12
    (difference,) = table.differences()
    assert repr(table.differences()).startswith("1 row\n")
    assert difference["method"] == "ours" and difference["pairs"] == 6
    assert difference["low"] <= difference["difference"] <= difference["high"]
    for shown in (repr(table), table._repr_html_(), table.report(tmp_path / "page.html").read_text()):
        assert "ours" in shown and "fedavg" in shown and "average" in shown
    for kind in ("rounds", "differences"):
        assert table.plot(kind)._repr_png_()[0].startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="plot: got 'curves'; give 'rounds' or 'differences'"):
        table.plot("curves")
    with pytest.raises(ConfigError, match=r"no run \('ours', 'south', 0\) in this comparison; did you mean"):
        table.run("ours", "south")


def _one(grid):
    return {key: value for key, value in grid.items() if key != "seeds"} | {"target": "east", "seed": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="jobs fork")
def test_two_jobs_equal_one_also_in_a_process_that_has_trained_with_several_threads(data, grid):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 62 * 62, 2))
        for _ in range(3):  # starts the threads of OpenMP, which a fork does not copy
            net(torch.rand(16, 3, 64, 64)).sum().backward()
        one = fb.compare(METHODS, data, targets="west", **grid)
        lines = []
        two = fb.compare(METHODS, data, targets="west", **grid | {"jobs": 2, "progress": lines.append})
        assert list(two.scores()) == list(one.scores()) and not multiprocessing.active_children()
        assert [run.lines for run in two] == [run.lines for run in one]
    finally:
        torch.set_num_threads(threads)
    place = two._grid.temporary
    assert place.exists()
    del two
    gc.collect()
    assert not place.exists()


def test_a_comparison_with_out_skips_finished_runs_and_adds_new_ones(grid, tmp_path):
    data, lines = replace(tiny(), name="squares"), []
    fb.compare({"fedavg": fb.fedavg()}, data, targets=["west"], out=tmp_path, **grid)
    table = fb.compare(METHODS, data, targets=["west"], out=tmp_path, **grid | {"progress": lines.append})
    assert {line["method"] for line in lines} == {"fedsb(budget=3)+ga(step=0.05)"} and len(table) == 4
    assert table.run("ours", "west").folder.is_relative_to(tmp_path)


def test_a_method_registered_here_is_comparable_with_the_others(data, grid):
    @fb.register("methods")
    def mine(optimizer):
        return fb.fedprox(mu=0.5, optimizer=optimizer)

    options = grid | {"targets": "west", "seeds": 1}
    table = fb.compare({"fedavg": fb.fedavg(), "mine": "mine", "changed": fb.ga(fb.fedavg())}, data, **options)
    assert "NOT COMPARABLE" not in repr(table) and len({run.config.setting() for run in table}) == 1
    other = fb.run("fedavg", tiny(shift=1), target="west", **{key: grid[key] for key in ("network", "batch_size")})
    assert other.config.setting() not in {run.config.setting() for run in table}


def test_an_interrupted_comparison_in_a_notebook_is_continued(data, grid, monkeypatch):
    whole = fb.compare(METHODS, data, targets="west", **grid)
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    lines = []

    def show(line):
        lines.append(line)
        if len(lines) == 3:
            raise KeyboardInterrupt

    table = fb.compare(METHODS, data, targets="west", **grid | {"progress": show})
    assert not table.finished and "1 of 4 runs are finished; .resume() continues" in repr(table)
    assert table.resume() is table and table.finished
    assert [run.lines for run in table] == [run.lines for run in whole] and len(lines) == 8


def test_a_method_that_fails_does_not_stop_the_others(data, grid, monkeypatch):
    def failing(optimizer):
        def server(*given):
            raise FederationError("no replies")
            yield

        return replace(fb.fedavg(optimizer=optimizer), server=replace_round(server))

    def replace_round(round):
        return fb.fedavg().server._replace(round=round)

    table = fb.compare({"fedavg": fb.fedavg(), "bad": failing}, data, targets="west", **grid | {"seeds": 1})
    assert table.failures == {"bad, west unseen, seed 0": "bad, west unseen, seed 0: no replies"}
    assert "failed: bad, west unseen, seed 0: no replies" in repr(table) and table.run("fedavg", "west").finished


def broken(optimizer):
    return replace(fb.fedavg(optimizer=optimizer), server=fb.fedavg().server._replace(round=lambda *given: 1 / 0))


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_in_own_code_does_not_lose_the_other_runs(jobs, data, grid):
    methods = {"fedavg": fb.fedavg(), "our method": broken}
    table = fb.compare(methods, data, targets="west", jobs=jobs, **grid)
    assert [table.run("fedavg", "west", seed).finished for seed in (0, 1)] == [True, True]
    assert list(table.failures) == ["our method, west unseen, seed 0", "our method, west unseen, seed 1"]
    assert "our method, west unseen, seed 0: ZeroDivisionError: division by zero" in table.failures.values()
    with pytest.raises(ZeroDivisionError):  # nothing to keep: the traceback says more
        fb.compare({"ours": broken}, data, targets="west", jobs=jobs, **grid)


def test_with_two_jobs_progress_sees_every_round_and_its_errors_are_raised(data, grid):
    lines = []
    table = fb.compare(METHODS, data, targets="west", **grid | {"jobs": 2, "progress": lines.append})
    rounds = [(line["method"], line["seed"], line["round"]) for line in lines]
    assert sorted(rounds) == sorted((run.config.method, run.config.seed, number) for run in table for number in (0, 1))
    with pytest.raises(ZeroDivisionError):
        fb.compare(METHODS, data, targets="west", **grid | {"jobs": 2, "progress": lambda line: 1 / 0})
    assert not multiprocessing.active_children()


def test_equal_targets_and_seeds_are_run_once_and_several_targets_are_found(data, grid):
    table = fb.compare(["fedavg"], data, targets=[["east", "west"], ["west", "east"]], **grid | {"seeds": [0, 0]})
    assert len(table) == 1 and table.run("fedavg", ["west", "east"]) is table.runs[0]


BAD = {
    "jobs": ({"jobs": 0}, "jobs: got 0; give a whole number, at least 1"),
    "threads": ({"threads": "two"}, "threads: got 'two'; give a whole number, at least 0"),
    "methods": ({"methods": 3.5}, "methods: got 3.5"),
    "no methods": ({"methods": {}}, "methods: got none"),
    "unnamed": ({"methods": [lambda optimizer: None]}, "an object without a spec needs a name; give a dict"),
    "twice": ({"methods": {"a": fb.fedavg(), "b": fb.fedavg()}}, "two of them are the same"),
    "targets": ({"targets": ["south"]}, "no domain 'south'"),
    "seeds": ({"seeds": 0}, "seeds: got 0; give a number of seeds, at least 1"),
    "baseline": ({"baseline": "fedprox"}, "baseline: got 'fedprox'; give one of fedavg, ours"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=BAD)
def test_wrong_arguments_are_refused_in_one_sentence(changed, message, data, grid):
    given = {"methods": METHODS} | grid | changed
    with pytest.raises(ConfigError, match=message) as caught:
        fb.compare(given.pop("methods"), data, **given)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)
