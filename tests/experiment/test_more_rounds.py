"""A run continues with more rounds exactly if it then equals a run that had them from the start."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedbeyond import _factory
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import bench, registry, results, run_folder, runner
from fedbeyond.experiment.config import Config, Train

FILES = ("results.jsonl", "checkpoint.safetensors", "best.safetensors", "last.safetensors", "config.json", "done")


@pytest.fixture
def config(small) -> Config:
    return Config(method="fedavg", train=Train(rounds=3, batch_size=8), **small)


def of(config: Config, rounds: int, **changes: object) -> Config:
    return replace(config, train=replace(config.train, rounds=rounds, **changes))


def finish(config: Config, folder: Path, stop: int | None = None) -> None:
    lines = runner.run(runner.prepare(config), folder)
    for number, _ in enumerate(lines, 1):
        if number == stop:
            lines.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def counts(folder: Path) -> list[dict[str, object]]:
    """What the times of a run say that is the same in every run."""
    return [
        {key: value for key, value in line.items() if key != "seconds"} for line in results.read(folder / "times.jsonl")
    ]


def refusal(config: Config, folder: Path) -> str:
    """The message with which a run is not continued; nothing in its folder changes."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as refused:
        finish(config, folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return str(refused.value)


@pytest.mark.parametrize(
    "method",
    [
        "scaffold",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("fedavg", "fedavg+ga(decay=false)", "fedadam", "moon", "fedbn", "ndag(width=4)", "rsc")
        ),
    ],
)
def test_a_finished_run_with_more_rounds_is_the_run_that_had_them_from_the_start(config, method, tmp_path):
    config = replace(config, method=method)
    finish(of(config, 5), tmp_path / "whole")
    finish(config, tmp_path / "longer")
    assert run_folder.is_finished(tmp_path / "longer", config)
    assert not run_folder.is_finished(tmp_path / "longer", of(config, 5))
    finish(of(config, 5), tmp_path / "longer")
    assert contents(tmp_path / "longer") == contents(tmp_path / "whole")
    assert counts(tmp_path / "longer") == counts(tmp_path / "whole")
    assert ["flops" in line for line in counts(tmp_path / "longer")] == [False] * 4 + [True]
    assert run_folder.is_finished(tmp_path / "longer", of(config, 5))


@pytest.mark.slow
def test_a_stopped_run_may_get_more_rounds_or_fewer(config, tmp_path):
    """Also under a method that stores models: they are there until the run is finished."""
    config = replace(config, method="fedavg+sha")
    for rounds in (3, 6):
        finish(of(config, rounds), tmp_path / str(rounds))
        finish(of(config, 4), tmp_path / f"stopped-{rounds}", stop=2)
        finish(of(config, rounds), tmp_path / f"stopped-{rounds}")
        assert contents(tmp_path / f"stopped-{rounds}") == contents(tmp_path / str(rounds))


def test_a_continued_run_may_be_killed_at_any_write(config, tmp_path, monkeypatch):
    from fedbeyond import _io
    from fedbeyond.experiment import checkpoint

    finish(of(config, 4), tmp_path / "whole")
    finish(config, tmp_path / "torn")
    writes, left = _io.write, [0]

    def failing(path: Path, content: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        writes(path, content)

    for module in (_io, checkpoint, results):
        monkeypatch.setattr(module, "write", failing)
    for attempt in range(30):
        left[0] = attempt
        try:
            finish(of(config, 4), tmp_path / "torn")
            break
        except KeyboardInterrupt:
            assert not run_folder.is_finished(tmp_path / "torn", config)
            assert not run_folder.is_finished(tmp_path / "torn", of(config, 4))
    assert 4 < attempt < 29
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")
    assert counts(tmp_path / "torn") == counts(tmp_path / "whole")


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("fedprox+ga", "fedprox+ga depends on the total number of rounds: ga(decay=true)"),
        ("rsc:official", "rsc:official depends on the total number of rounds: rsc(grow=0.4)"),
        ("irm", "irm depends on the total number of rounds: irm(anneal=0.5)"),
        ("dann:paper", "dann:paper depends on the total number of rounds: dann(ramp=true)"),
    ],
)
def test_a_method_that_depends_on_the_number_of_rounds_is_not_continued(config, method, part, tmp_path):
    config = replace(config, method=method)
    finish(config, tmp_path, stop=1)
    assert refusal(of(config, 5), tmp_path) == (
        f"{tmp_path} cannot be continued: train.rounds is 3 there, 5 here, and {part}; choose another out folder or "
        "delete it"
    )


@pytest.mark.slow
def test_a_schedule_is_continued_as_long_as_the_finished_rounds_had_the_same_rate(config, tmp_path):
    step = of(config, 4, schedule="step(at=0.5)")
    finish(step, tmp_path / "stopped", stop=2)  # the rate drops in the third round; with 6 rounds in the fourth
    finish(replace(step, train=replace(step.train, rounds=6)), tmp_path / "stopped")
    finish(replace(step, train=replace(step.train, rounds=6)), tmp_path / "whole")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    assert "(train.schedule = step(at=0.5))" in refusal(
        replace(step, train=replace(step.train, rounds=9)), tmp_path / "whole"
    )
    cosine = of(config, 3, schedule="cosine")
    finish(cosine, tmp_path / "cosine", stop=2)
    said = refusal(of(cosine, 5), tmp_path / "cosine")
    assert "the learning rate depends on the total number of rounds (train.schedule = cosine)" in said


def test_fewer_rounds_than_done_are_refused(config, tmp_path):
    finish(config, tmp_path / "done")
    said = refusal(of(config, 2), tmp_path / "done")
    assert "train.rounds is 3 there, 2 here, and 3 rounds are done; set train.rounds to at least 3;" in said
    finish(of(config, 4), tmp_path / "stopped", stop=2)  # the second round was not run as a last one
    assert "2 rounds are done; set train.rounds to at least 3;" in refusal(of(config, 2), tmp_path / "stopped")


def test_models_that_were_deleted_at_the_end_are_named(config, tmp_path):
    config = of(replace(config, method="fedavg+sha"), 2)
    finish(config, tmp_path)
    assert not (tmp_path / "models").exists()
    said = refusal(of(config, 3), tmp_path)
    assert "the earlier models that fedavg+sha needs (models/) were deleted when the run was finished" in said


@pytest.mark.slow
def test_a_last_round_that_a_longer_run_would_not_evaluate_is_named(config, tmp_path):
    some = of(config, 3, evaluate_every=2)
    finish(some, tmp_path / "odd")
    said = refusal(of(some, 5), tmp_path / "odd")
    assert "round 3 was evaluated only because it was the last (train.evaluate_every = 2)" in said
    finish(of(some, 4), tmp_path / "even")
    finish(of(some, 5), tmp_path / "even")
    finish(of(some, 5), tmp_path / "whole")
    assert contents(tmp_path / "even") == contents(tmp_path / "whole")


def test_only_what_differs_is_named_with_both_values(config, tmp_path):
    finish(config, tmp_path, stop=1)
    other = replace(of(config, 5, epochs=2), optimizer="sgd(lr=0.1)")
    assert refusal(other, tmp_path) == (
        f"{tmp_path} holds another run: optimizer is {config.optimizer} there, sgd(lr=0.1) here; train.rounds is 3 "
        "there, 5 here; train.epochs is 1 there, 2 here; choose another out folder or delete it"
    )


def test_sites_on_other_machines_are_not_continued(config, tmp_path):
    finish(config, tmp_path)
    (tmp_path / run_folder.ENROLLED).write_text("{}")
    assert "sites on other machines store their private state under the run's" in refusal(of(config, 5), tmp_path)


def test_results_are_read_once_if_there_is_nothing_to_do(config, tmp_path, monkeypatch, capsys):
    bench.run_one(config, tmp_path, "cpu", 1)
    read, paths = Path.read_text, []
    monkeypatch.setattr(Path, "read_text", lambda path, *given: (paths.append(path.name), read(path, *given))[1])
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is read"))
    bench.run_one(config, tmp_path, "cpu", 1)
    assert paths.count("results.jsonl") == 1 and "nothing to do" in capsys.readouterr().out


def test_a_grid_gets_more_rounds(config, tmp_path, capsys):
    grid = replace(config, target=None, bench=replace(config.bench, methods=("fedavg", "fedprox"), targets=("photo",)))
    bench.run_all(of(grid, 1), tmp_path, "cpu", 1)
    bench.run_all(of(grid, 2), tmp_path, "cpu", 1)
    assert "2 runs: 0 done, 2 to go" in capsys.readouterr().out
    assert {(line["round"], line["rounds"]) for line in results.load([tmp_path])} == {(0, 2), (1, 2)}
    assert len({line["setting"] for line in results.load([tmp_path])}) == 1
    bench.run_all(of(grid, 2), tmp_path, "cpu", 1)
    assert "2 runs: 2 done, nothing to do" in capsys.readouterr().out


def test_what_is_given_twice_is_run_once(config, tmp_path, capsys):
    spelled = ["fedprox", "fedprox(mu=0.01)", "fedprox", "fedavg+ga(step=0.1, decay=false)"]
    spelled += ["fedavg+ga(decay=false, step=0.10)", "fedavg+ga:official", "fedprox(mu=0.1)", "fedprox:official"]
    assert {"mu": 0.1}.items() <= _factory.presets(registry.find("methods", "fedprox"))["official"].items()
    given = {"methods": spelled, "targets": ["photo", ["photo", "sketch"], "photo", "sketch+photo"], "seeds": [1, 0, 1]}
    cells = Config(**{"data": config.data, "bench": given})
    from fedbeyond.experiment.grid import grid

    runs = [(cell.method, cell.target, cell.seed) for cell in grid(cells)]
    methods = ["fedprox", "fedavg+ga(step=0.1, decay=false)", "fedavg+ga:official", "fedprox(mu=0.1)"]
    assert runs == [(m, t, s) for s in (1, 0) for t in ("photo", "photo+sketch") for m in methods]
    one = of(replace(config, bench=replace(config.bench, methods=("fedavg", "fedavg(weighting=size)"))), 1)
    bench.run_all(one, tmp_path, "cpu", 1)
    out = capsys.readouterr().out
    assert "1 run: 0 done, 1 to go" in out
    assert "fedavg(weighting=size) is fedavg written in another way: it is run once\n" in out
    assert len(json.loads((tmp_path / "plan.json").read_text())["runs"]) == 1
