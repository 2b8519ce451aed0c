"""A run lives in a folder: killed at any instant and started again, it ends as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedbeyond import NUMERICS, _io, tree
from fedbeyond.classifier import write
from fedbeyond.data.datasets.drawing import CLASSES
from fedbeyond.engine.rounds import participants
from fedbeyond.errors import ConfigError, FederationError, StorageError
from fedbeyond.evaluation.metrics import evaluate
from fedbeyond.evaluation.selection import Line, evaluated, select_round
from fedbeyond.experiment import checkpoint, results, run_folder, run_state, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.report import table

FILES = ("results.jsonl", "checkpoint.safetensors", "best.safetensors", "config.json", "done")


@pytest.fixture
def config(small) -> Config:
    return Config(method="scaffold+ga", train=Train(rounds=3, batch_size=8), **small)


def finish(config: Config, folder: Path) -> list[Line]:
    return list(runner.run(runner.prepare(config), folder))


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def want(config, tmp_path) -> dict[str, bytes]:
    finish(config, tmp_path / "whole")
    return contents(tmp_path / "whole")


def test_a_run_leaves_its_lines_its_model_and_its_times(config, tmp_path):
    lines = finish(config, tmp_path)
    assert [line["round"] for line in lines] == [0, 1, 2] and run_folder.is_finished(tmp_path, config)
    assert lines == list(results.read(tmp_path / "results.jsonl"))
    assert set(lines[0]["scores"]) == {"photo", "painting", "cartoon", "sketch"}
    assert set(lines[0]["scores"]["sketch"]) == {"test"} and set(lines[0]["scores"]["photo"]) == {"val", "images"}
    assert sum(lines[2]["weights"].values()) == pytest.approx(1)
    assert len((tmp_path / "times.jsonl").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "classes.json").read_text())["classes"] == list(CLASSES)
    best = select_round(lines)
    model, notes = checkpoint.load(tmp_path / "best.safetensors")
    assert notes == {"round": best["round"]} and set(model) == {"params", "buffers"}


def test_re_estimated_statistics_change_no_round_and_are_scored_beside_the_average(config, tmp_path):
    """Also where not every round is evaluated: training never sees them."""
    averaged = finish(replace(config, train=replace(config.train, batchnorm="average")), tmp_path / "average")
    for every in (1, 3):
        train = replace(config.train, batchnorm="reestimate", evaluate_every=every)
        anew = finish(replace(config, train=train), tmp_path / f"every-{every}")
        states = [tmp_path / name / "checkpoint.safetensors" for name in ("average", f"every-{every}")]
        one, other = (checkpoint.load(path)[0] for path in states)
        assert tree.digest(one) == tree.digest(other)
        assert anew[-1]["scores_average"] == averaged[-1]["scores"] != anew[-1]["scores"]
    last, _ = checkpoint.load(tmp_path / "every-3" / "last.safetensors")
    server = one["state"]["server"]["model"]
    assert all(torch.equal(last["params"][name], server["params"][name]) for name in server["params"])
    assert not torch.equal(last["buffers"]["body.1.running_mean"], server["buffers"]["body.1.running_mean"])
    setup = runner.prepare(config)
    net = write(setup.nets["model"], last)
    assert evaluate(net, setup.unseen["sketch"]) == anew[-1]["scores"]["sketch"]["test"]


def test_a_run_that_is_done_plays_nothing_more(config, tmp_path, want):
    assert finish(config, tmp_path / "whole") == []
    assert contents(tmp_path / "whole") == want


def test_stopped_before_any_write_and_started_again_it_ends_the_same(config, tmp_path, want, monkeypatch):
    """Power fails at the first write, at the second, ... until a run needs no more."""
    write, append, stop = _io.write, results.append, [0]

    def failing(original):
        def guarded(*args):
            stop[0] -= 1
            if stop[0] < 0:
                raise KeyboardInterrupt
            original(*args)

        return guarded

    for module in (_io, checkpoint, results):
        monkeypatch.setattr(module, "write", failing(write))
    monkeypatch.setattr(results, "append", failing(append))
    for attempt in range(99):
        stop[0] = 1 + attempt // 3  # each point is reached from several states
        try:
            finish(config, tmp_path / "torn")
            break
        except KeyboardInterrupt:
            pass
    assert 3 < attempt < 98
    assert contents(tmp_path / "torn") == want


@pytest.mark.parametrize("torn", ['{"round": 2, "sc', '{"round": 2}\n{"ro', ""])
def test_a_torn_last_line_is_recognised_and_redone(config, tmp_path, want, torn):
    folder = tmp_path / "torn"
    lines = runner.run(runner.prepare(config), folder)
    next(lines), next(lines)
    lines.close()
    with open(folder / "results.jsonl", "a") as file:
        file.write(torn)
    finish(config, folder)
    assert contents(folder) == want


@pytest.mark.slow
def test_killed_at_any_instant_a_real_process_ends_with_the_same_bytes(config, tmp_path):
    config = replace(config, method="scaffold+sha", train=Train(rounds=12, batch_size=8))  # states in trees, on a store
    settings = ["train.rounds=12", "train.batch_size=8", f"data={config.data}", f"network={config.network}"]
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["-m", config.method, "-t", str(config.target), "--threads", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "fedbeyond", "run", *words]
    torn, kills, chance = run_folder.path(tmp_path, config), 0, random.Random(0)
    while not (torn / "done").exists():
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        written = len(run_folder.lines(torn)) + 2
        while kills < 2 and process.poll() is None and len(run_folder.lines(torn)) < written:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.05)
        if process.poll() is None and kills < 2:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        assert process.wait() in (0, -signal.SIGKILL)
    assert kills == 2
    finish(config, tmp_path / "whole")
    assert contents(torn) == contents(tmp_path / "whole")


def test_a_folder_that_holds_another_run_is_not_touched(config, tmp_path, want):
    other = replace(config, train=Train(rounds=3, batch_size=9))
    with pytest.raises(
        ConfigError, match=r"another run: train\.batch_size is 8 there, 9 here; choose another out folder"
    ):
        finish(other, tmp_path / "whole")
    with pytest.raises(ConfigError, match="holds another run"):  # nor taken for this one because it is done
        run_folder.ensure_same_run(tmp_path / "whole", other)
    assert contents(tmp_path / "whole") == want


def test_two_processes_do_not_write_into_one_folder(config, tmp_path):
    first = runner.run(runner.prepare(config), tmp_path)
    next(first)
    with pytest.raises(StorageError, match="in use by another process"):
        finish(config, tmp_path)
    first.close()
    finish(config, tmp_path)


def test_a_full_disk_is_told_and_what_was_done_is_kept(config, tmp_path, want, monkeypatch):
    folder, save, full = tmp_path / "full", checkpoint.save, [False]

    def fail(path, state, **notes):
        if full[0] and notes.get("rounds") == 2:
            (folder / ".checkpoint.safetensors.partial").write_bytes(b"half")
            monkeypatch.setattr(os, "fsync", no_space)
        save(path, state, **notes)

    def no_space(number):
        raise OSError(28, "No space left on device")

    full[0] = True
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", fail)
        with pytest.raises(StorageError, match=r"No space left on device; free disk space .* same command again"):
            finish(config, folder)
    monkeypatch.undo()
    assert not list(folder.glob("*.partial")) and not list(folder.glob(".*.partial"))
    finish(config, folder)
    assert contents(folder) == want


def test_a_folder_that_cannot_be_made_is_told(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file"):
        finish(config, tmp_path / "file" / "run")


def test_a_broken_checkpoint_is_named(config, tmp_path):
    finish(config, tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"rubbish")
    with pytest.raises(
        StorageError,
        match=r"checkpoint\.safetensors is damaged .* restore it from a backup, or delete .* and run again",
    ):
        finish(config, tmp_path)


def test_training_that_diverges_stops_with_the_reason(config, tmp_path):
    with pytest.raises(FederationError, match=r"only 0 of 3 sites .* not finite .* smaller lr"):
        finish(replace(config, optimizer="sgd(lr=1e6)"), tmp_path)


def test_some_take_part_in_a_round_and_all_in_the_course_of_many(config, tmp_path):
    some = replace(config, method="scaffold", train=Train(rounds=6, batch_size=8, clients_per_round=2))
    lines = finish(some, tmp_path)
    asked = [set(line["bytes_up"]) for line in lines]
    assert all(len(names) == 2 for names in asked) and set.union(*asked) == {"photo", "painting", "cartoon"}
    assert len({tuple(sorted(names)) for names in asked}) > 1


def test_who_takes_part_depends_on_seed_and_round_alone():
    names = tuple("abcdefgh")
    assert participants(names, 3, 0, 5) == participants(names, 3, 0, 5)
    assert len({participants(names, 3, seed, 0) for seed in range(20)}) > 5
    assert participants(names, None, 0, 0) == participants(names, 9, 0, 0) == names


def test_an_experiment_that_is_run_twice_begins_twice(config, tmp_path):
    setup = runner.prepare(config)
    assert list(runner.run(setup, tmp_path / "a")) == list(runner.run(setup, tmp_path / "b"))


def test_an_experiment_that_has_resumed_a_run_starts_another_one_from_its_initial_models(config, tmp_path):
    first = runner.run(runner.prepare(config), tmp_path / "a")
    next(first)
    first.close()
    setup = runner.prepare(config)
    resumed = list(runner.run(setup, tmp_path / "a"))
    assert list(runner.run(setup, tmp_path / "b"))[1:] == resumed


def test_networks_are_built_once_and_sites_enrolled_once_for_a_run(config, tmp_path, monkeypatch):
    from fedbeyond.engine import simulator
    from fedbeyond.experiment import build

    calls, networks, enrol = [], build.networks, simulator.enrol
    monkeypatch.setattr(build, "networks", lambda *given: (calls.append("networks"), networks(*given))[1])
    monkeypatch.setattr(simulator, "enrol", lambda client, site: (calls.append(site.name), enrol(client, site))[1])
    finish(config, tmp_path)
    assert sorted(calls) == sorted(["networks", *("cartoon", "painting", "photo")])
    calls.clear()
    (tmp_path / "done").unlink()
    finish(config, tmp_path)
    assert calls == ["networks"]  # the states of the sites are in the checkpoint


def test_a_run_that_never_got_through_a_round_can_be_corrected(config, tmp_path):
    with pytest.raises(FederationError):
        finish(replace(config, optimizer="sgd(lr=1e6)"), tmp_path)
    assert len(finish(config, tmp_path)) == 3


def test_a_run_goes_on_only_where_it_is_computed_the_same_way(config, tmp_path):
    begun = runner.run(runner.prepare(config), tmp_path)
    next(begun)
    begun.close()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ConfigError, match=r"began with threads 1 \(now 2\); resume it with the same, or delete"):
            finish(config, tmp_path)
    finally:
        torch.set_num_threads(1)
    assert len(finish(config, tmp_path)) == 2


def test_a_run_of_other_numerics_is_not_resumed(config, tmp_path, monkeypatch):
    next(rounds := runner.run(runner.prepare(config), tmp_path))
    rounds.close()
    monkeypatch.setattr(run_folder, "NUMERICS", 0)
    with pytest.raises(ConfigError, match=rf"began with numerics {NUMERICS} \(now 0\); resume it with the same"):
        finish(config, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(run_folder, "__version__", "9.9")  # a release that leaves numbers alone
    assert len(finish(config, tmp_path)) == 2


def test_a_missing_line_is_noticed(config, tmp_path):
    finish(config, tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[::2]))
    assert not run_folder.is_finished(tmp_path, config)
    with pytest.raises(StorageError, match="lacks rounds that were run"):
        finish(config, tmp_path)


def test_seeds_differ_and_nothing_else_does(config, tmp_path):
    one, same, other = (finish(replace(config, seed=seed), tmp_path / str(i)) for i, seed in enumerate((0, 0, 1)))
    assert one == same and one[-1]["scores"] != other[-1]["scores"]


def test_a_run_leaves_the_random_numbers_of_its_caller_alone(config, tmp_path):
    torch.manual_seed(3)
    want = torch.rand(3)
    torch.manual_seed(3)
    finish(config, tmp_path)
    assert torch.equal(torch.rand(3), want)


def test_every_line_is_plain_json_without_times(config, tmp_path):
    finish(config, tmp_path)
    for text in (tmp_path / "results.jsonl").read_text().splitlines():
        assert "seconds" not in json.loads(text)


def test_several_unseen_domains_and_several_clients_of_one(small, tmp_path):
    train = Train(rounds=2, batch_size=8, clients_per_domain=2, label_skew=5.0, schedule="cosine")
    settings = small | {"target": ["photo", "cartoon", "sketch"], "data": "styles(share=0.1)"}
    config = Config(method="fedavg+ga", train=train, **settings)
    assert config.target == "photo+cartoon+sketch"
    first, second = finish(config, run_folder.path(tmp_path, config))
    tests = {name for name, splits in second["scores"].items() if "test" in splits}
    assert tests == {"photo", "cartoon", "sketch"} and set(second["weights"]) == {"painting-0", "painting-1"}
    assert first["diagnostics"] == {"gaps": {}} and set(second["diagnostics"]["gaps"]) == {"painting-0", "painting-1"}
    assert second["scores"]["painting-0"]["domain"] == "painting" and second["scores"]["painting-1"]["images"] > 0
    found = table.tabulate([first, second])
    assert found.targets == ("photo", "cartoon", "sketch")
    best = select_round((first, second))["scores"]["sketch"]["test"]["accuracy"]
    assert found.scores("fedavg+ga", "sketch") == [100 * best]


def test_what_a_server_tells_stands_in_every_line(small, tmp_path):
    config = Config(method="fedavg+sha", train=Train(rounds=1, batch_size=8), **small)
    (line,) = finish(config, tmp_path / "run")
    assert set(line["diagnostics"]) == {"scores", "weights", "moved"}
    assert (
        sum(line["diagnostics"]["weights"].values()) == pytest.approx(1)
        and line["weights"] == line["diagnostics"]["weights"]
    )


def test_the_learning_rate_follows_its_schedule(small, tmp_path):
    ends = {}
    for schedule in ("constant", "cosine", "step(at=0.5, factor=0.0)"):
        config = Config(method="fedavg", train=Train(rounds=2, batch_size=8, schedule=schedule), **small)
        folder = run_folder.path(tmp_path / schedule, config)
        finish(config, folder)
        ends[schedule] = [line["scores"]["painting"]["val"]["loss"] for line in run_folder.lines(folder)]
    assert len({losses[0] for losses in ends.values()}) == 1  # the first round is the same for all
    assert len({losses[1] for losses in ends.values()}) == 3


def test_rounds_between_are_not_judged_and_the_others_say_the_same(config, tmp_path):
    train = Train(rounds=5, batch_size=8, batchnorm="average")  # without moments, which leave in judged rounds alone
    every = finish(replace(config, train=train), tmp_path / "every")
    some_config = replace(config, train=replace(train, evaluate_every=2))
    some = finish(some_config, tmp_path / "some")
    assert [line["round"] for line in evaluated(some)] == [1, 3, 4]  # every second, and the last
    for one, other in zip(every, some, strict=True):
        kept = {key: value for key, value in one.items() if key != "setting" and key in other}
        assert kept == {key: value for key, value in other.items() if key != "setting"}
    best = select_round(some)
    assert checkpoint.load(tmp_path / "some" / "best.safetensors")[1] == {"round": best["round"]}
    assert run_folder.is_finished(tmp_path / "some", some_config)
    assert results.load([tmp_path / "some"]) == some
    assert [run_state.format_round(line) for line in some][::4] == ["round 1/5", run_state.format_round(every[4])]


def test_stopped_between_judged_rounds_a_run_ends_with_the_same_bytes(config, tmp_path):
    some = replace(config, train=Train(rounds=5, batch_size=8, evaluate_every=2))
    finish(some, tmp_path / "whole")
    for stop in range(1, 5):
        folder = tmp_path / f"torn-{stop}"
        lines = runner.run(runner.prepare(some), folder)
        for _ in range(stop):
            next(lines)
        lines.close()
        finish(some, folder)
        assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize("method", ["fedavg", "local", "fedbn", "perfedavg"])
def test_an_in_domain_test_is_of_images_kept_apart_and_of_a_sites_own_model_where_there_is_one(method, small, tmp_path):
    train = Train(rounds=2, batch_size=8, test=0.3, batchnorm="average")
    config = Config(method=method, train=train, **small)
    setup = runner.prepare(config)
    *_, last = runner.run(setup, tmp_path)
    server = checkpoint.load(tmp_path / "checkpoint.safetensors")[0]["state"]["server"]
    for name, split in setup.local_tests.items():
        model = server["models"][name] if method == "local" else server["model"]
        want = evaluate(write(setup.nets["model"], model), split)
        assert last["scores"][name]["local_test"] == want and set(last["scores"][name]) == {
            "val",
            "images",
            "local_test",
        }
    assert setup.local_tests.keys() == setup.engine.sites.keys() and set(last["scores"]["sketch"]) == {"test"}
    assert all(set(site.data) == {"train", "val"} for site in setup.engine.sites.values())
