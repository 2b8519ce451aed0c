"""Sites answered for by other processes: the numbers are those of the simulator, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from fedbeyond import tree
from fedbeyond.cli.main import app
from fedbeyond.engine.process_pool import ProcessPool, SharedMemory
from fedbeyond.engine.workers import Workers
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import bench, registry, results, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.server import Envelope, Request
from fedbeyond.testing import toy
from fedbeyond.testing.laws import reference, simulate
from support.method_settings import SMALL

FEDERATED = [SMALL.get(name, name) for name in registry.REGISTRY["methods"] if not registry.build(name).pooled]
WRAPPED = [f"fedavg+{wrapper}" for wrapper in registry.REGISTRY["wrappers"]] + ["scaffold+rc+sha"]


@pytest.mark.parametrize("name", [*FEDERATED, *WRAPPED])
def test_every_method_over_two_workers_equals_the_simulator_bit_for_bit(name):
    method = registry.build(name)
    workers = Workers(method.client, toy.sites(method), 2)
    try:
        state, _ = simulate(method, federation=workers)
    finally:
        workers.close()
    want = reference(lambda: registry.build(name))
    for got, expected in ((state, want.state), (workers.here.client_states, want.client_states)):
        flat, other = tree.flatten(got), tree.flatten(expected)
        assert flat.keys() == other.keys()
        assert all(torch.equal(flat[key], other[key]) for key in flat)


@pytest.mark.parametrize("batchnorm", ["average", "reestimate"])
def test_a_run_with_workers_writes_the_same_files_and_can_go_on_without_them(tmp_path, batchnorm):
    config = Config(
        method="fedavg+ga",
        target="sketch",
        data="styles(share=0.05)",
        network="convnet(width=4)",
        train=Train(rounds=3, batch_size=8, test=0.2, batchnorm=batchnorm),
    )
    list(runner.run(runner.prepare(config), tmp_path / "one"))
    begun = runner.run(runner.prepare(config, workers=2), tmp_path / "two")
    next(begun)
    begun.close()
    list(runner.run(runner.prepare(config), tmp_path / "two"))
    for name in ("results.jsonl", "best.safetensors", "checkpoint.safetensors", "machine.json"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    list(runner.run(runner.prepare(config, workers=3), tmp_path / "three"))
    costs = [results.read(tmp_path / name / "times.jsonl") for name in ("one", "three")]
    assert len({str(list(lines)[-1]["flops"]) for lines in costs}) == 1


def test_a_site_that_fails_in_a_worker_is_a_site_that_fails():
    method = fedavg()
    sites = toy.sites(method)
    sites[0].sampler = None
    workers = Workers(method.client, sites, 2)
    names = workers.clients
    answers = workers.ask(Request("train", toy.shared(method), names), Envelope(0, 0, {}))
    workers.close()
    assert answers[sites[0].name].reason == "TypeError: 'NoneType' object is not callable"
    assert [answers[name].client for name in names] == list(names)


def test_memory_grows_and_keeps_trees_as_they_are():
    memory = SharedMemory()
    small = {"a": torch.tensor(3), "empty": {}, "flag": torch.tensor([True, False]), "none": torch.empty(0, 2)}
    large = {"x": torch.arange(100_000.0).view(100, 1000).t(), "half": torch.ones(3, dtype=torch.bfloat16)}
    for given in (small, large, small):
        found = memory.read(memory.write(given))
        flat, other = tree.flatten(found), tree.flatten(given)
        assert flat.keys() == other.keys()
        assert all(torch.equal(flat[key], other[key]) and flat[key].dtype == other[key].dtype for key in flat)


def act(notes, common, own):
    if notes["do"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"pid": os.getpid()}, {"sum": common["x"] + own["y"]}


def test_a_worker_that_dies_is_said_and_the_others_end():
    pool = ProcessPool(act, 2)
    pids = [worker.process.pid for worker in pool.workers]
    common, own = {"x": torch.tensor(1)}, {"y": torch.tensor(2)}
    told = [(notes["pid"], int(found["sum"])) for _, notes, found in pool.run(common, [({"do": ""}, own)] * 6)]
    assert {number for number, _ in told} <= set(pids) and [total for _, total in told] == [3] * 6
    with pytest.raises(FederationError, match="a worker process died"):
        list(pool.run(common, [({"do": "die"}, own)]))
    pool.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def slow(notes, common, own):
    time.sleep(0.5)
    return {}, {}


def test_workers_that_nobody_waits_for_any_more_end_without_a_word(capfd):
    pool = ProcessPool(slow, 2)
    doing = pool.run({}, [({}, {})] * 4)
    next(doing)  # each is now at its next task, or at its first
    pool.close()
    assert capfd.readouterr() == ("", "") and pool.workers == []


SCRIPT = """
import os, time, torch
from fedbeyond.engine.process_pool import ProcessPool
pool = ProcessPool(lambda notes, common, own: ({}, {}), 2)
print(*(worker.process.pid for worker in pool.workers), flush=True)
time.sleep(60)
"""


def test_workers_end_when_who_started_them_is_killed():
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    pids = process.stdout.readline().split()
    process.kill()
    process.communicate()
    end = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid):
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["--threads", "2"], "2 workers have one thread each"), (["--profile"], "a profile measures one process")],
)
def test_what_workers_cannot_be_asked_for_is_refused(words, complaint, tmp_path):
    given = ["run", "-t", "sketch", "--set", "data=styles(share=0.05)", "--out", str(tmp_path), "--workers", "2"]
    with pytest.raises(ConfigError, match=complaint):
        app([*given, *words], standalone_mode=False)


@pytest.mark.parametrize(
    ("todo", "cores", "threads", "jobs", "workers", "want"),
    [
        (24, 2, 1, None, None, (2, 1)),  # whole runs never wait for each other
        (1, 2, 1, None, None, (1, 2)),  # one run: its sites side by side
        (3, 8, 1, None, None, (3, 2)),
        (24, 8, 4, None, None, (2, 1)),
        (24, 8, 0, None, None, (1, 1)),  # all threads to one run
        (24, 8, 1, 3, None, (3, 2)),
        (24, 8, 1, None, 4, (2, 4)),
        (0, 2, 1, None, None, (1, 2)),
    ],
)
def test_cores_are_shared_out_to_runs_first_and_then_to_their_sites(
    todo, cores, threads, jobs, workers, want, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert bench.plan_processes(todo, "cpu", threads, jobs, workers) == want
