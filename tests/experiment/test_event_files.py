"""A run's lines elsewhere: as TensorBoard's events, and in a tracker of one's own by a loop of ten lines."""

import re
import subprocess
import sys
import types
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedbeyond.errors import ConfigError
from fedbeyond.experiment import bench, event_files, run_folder, runner
from fedbeyond.experiment.config import Bench, Config, Train
from support.paths import ROOT

DOCS = ROOT / "docs" / "watch.md"


@pytest.fixture
def config(small) -> Config:
    return Config(method="fedavg+ga", train=Train(rounds=3, batch_size=8), **small)


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def assert_same(folder: Path, rounds: int = 3) -> None:
    found, lines = read(folder), run_folder.lines(folder)
    assert len(lines) == rounds

    def told(values):
        return [(number, pytest.approx(value, rel=1e-6)) for number, value in enumerate(values)]  # events are float32

    assert found["accuracy/sketch/test"] == told(line["scores"]["sketch"]["test"]["accuracy"] for line in lines)
    assert found["loss/photo/val"] == told(line["scores"]["photo"]["val"]["loss"] for line in lines)
    assert found["weights/photo"] == told(line["weights"]["photo"] for line in lines)
    assert found["bytes_up/photo"] == told(
        sum(size for names in line["bytes_up"]["photo"].values() for size in names.values()) for line in lines
    )
    assert found["rejected"] == told([0] * rounds)
    assert set(found) == {name for line in lines for name in event_files.numbers(line)}


def test_numbers_of_a_line_have_names_and_what_is_no_number_is_left_out():
    line = {
        "scores": {
            "a-1": {"val": {"loss": 2, "auc": None, "recall": [1.0]}, "domain": "a", "images": 7},
            "b": {"test": {"accuracy": 0.5}},
        },
        "weights": {"a-1": 1.0},
        "diagnostics": {"gaps": {"a-1": 0.25}},
        "bytes_up": {"a-1": {"parameters": {"model": 40, "control": 2}, "scalars": {"gap": 4}}},
        "rejected": [{"site": "a-1", "reason": "late"}],
    }
    assert event_files.numbers(line) == {
        "loss/a-1/val": 2, "accuracy/b/test": 0.5, "weights/a-1": 1, "diagnostics/gaps/a-1": 0.25, "bytes_up/a-1": 46,
        "rejected": 1,
    }  # fmt: skip


def test_events_hold_what_the_results_hold(config, tmp_path):
    bench.run_one(config, tmp_path, "cpu", 1, tensorboard=True)
    folder = run_folder.path(tmp_path, config)
    assert_same(folder)
    assert any(tag.startswith("diagnostics/") for tag in read(folder))


def test_a_run_that_was_stopped_has_each_round_once(config, tmp_path):
    folder = run_folder.path(tmp_path, config)
    lines = event_files.mirrored(runner.run(runner.prepare(config), folder), folder)
    next(lines), next(lines)
    lines.close()
    assert [step for step, _ in read(folder)["rejected"]] == [0, 1]
    whole = (folder / "results.jsonl").read_text()
    one = runner.run(runner.prepare(config), tmp_path / "other")
    next(one), one.close()  # as if it had been killed before the second round's checkpoint was there
    (tmp_path / "other" / "checkpoint.safetensors").replace(folder / "checkpoint.safetensors")
    bench.run_one(config, tmp_path, "cpu", 1, tensorboard=True)
    assert (folder / "results.jsonl").read_text().startswith(whole)
    assert_same(folder)
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_a_run_that_is_over_gets_its_events_without_being_played_again(config, tmp_path):
    bench.run_one(config, tmp_path, "cpu", 1)
    folder = run_folder.path(tmp_path, config)
    assert not (folder / "tensorboard").exists()
    model = (folder / "checkpoint.safetensors").stat().st_mtime_ns
    for _ in range(2):
        bench.run_one(config, tmp_path, "cpu", 1, tensorboard=True)
        assert_same(folder)
    assert (folder / "checkpoint.safetensors").stat().st_mtime_ns == model


def test_a_bench_writes_events_of_every_run(small, tmp_path, capsys):
    train = Train(rounds=1, batch_size=8)
    config = Config(train=train, bench=Bench(methods=("fedavg", "fedprox")), **small)
    bench.run_all(config, tmp_path, "cpu", 1)
    more = Config(train=train, bench=Bench(methods=("fedavg", "fedprox", "fedsb")), **small)
    bench.run_all(more, tmp_path, "cpu", 1, tensorboard=True)
    for method in ("fedavg", "fedprox", "fedsb"):
        assert_same(tmp_path / method / "sketch" / "seed-0", rounds=1)


def test_without_tensorboard_nothing_is_trained_and_the_remedy_is_told(config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install 'fedbeyond\[tensorboard\]'"):
        bench.run_one(config, tmp_path, "cpu", 1, tensorboard=True)
    with pytest.raises(ConfigError, match="--tensorboard needs TensorBoard"):
        bench.run_all(config, tmp_path, "cpu", 1, tensorboard=True)
    assert not list(tmp_path.iterdir())


def test_tensorboard_is_not_imported_unless_it_is_asked_for():
    code = (
        "import sys, fedbeyond.experiment.bench, fedbeyond.monitor.watch.serve; sys.exit('tensorboard' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_the_loop_in_the_docs_tells_a_tracker_every_round_in_ten_lines(tracker, tmp_path, monkeypatch):
    (block,) = (block for block in BLOCKS if f"import {tracker}" in block)
    body = block.split("# the loop\n")[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10
    told = []
    record = {
        "mlflow": {
            "start_run": lambda run_name: nullcontext(),
            "log_params": lambda params: told.append(params),
            "log_metrics": lambda numbers, step: told.append((step, numbers)),
        },
        "wandb": {
            "init": lambda project, name, config: told.append(config) or nullcontext(),
            "log": lambda numbers, step: told.append((step, numbers)),
        },
    }[tracker]
    stand_in = types.ModuleType(tracker)
    vars(stand_in).update(record)
    monkeypatch.setitem(sys.modules, tracker, stand_in)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, DOCS.name, "exec"), {})
    lines = run_folder.lines(next(tmp_path.rglob("results.jsonl")).parent)
    assert told[0]["method"] == "fedavg+ga" and len(lines) == 3
    assert told[1:] == [(line["round"], event_files.numbers(line)) for line in lines]
