"""A grid on a Ray cluster of this machine: the same bytes as without, whatever is killed, and nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedbeyond.cli import main
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import bench, cluster, run_folder, runner
from fedbeyond.experiment.config import Bench, Config, Train

missing = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


def needs_ray(test: Callable[..., None]) -> Callable[..., None]:
    """Where Ray is kept waiting for long it gives itself up, and ends the process that began it: not beside others."""
    return pytest.mark.loopback(pytest.mark.slow(missing(test)))


FILES = ("results.jsonl", "checkpoint.safetensors", "best.safetensors", "config.json", "machine.json", "done")


@pytest.fixture(scope="module")
def ray() -> Iterator[object]:
    """One cluster for all tests here, started as the command starts its own."""
    found = cluster.ensure_available(cluster.HERE)
    with cluster.connected(found, cluster.HERE, 1):
        yield found
    assert within(60, lambda: not offspring())


@pytest.fixture
def config(small) -> Config:
    return Config(method="scaffold+ga", train=Train(rounds=2, batch_size=8), **small)


def offspring(of: int | None = None) -> dict[int, str]:
    """The processes that stem from one (default: from this one) and are Ray's, with what they call themselves."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if status[0] != "Z":
                parents[int(entry.name)] = int(status[1])
                names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            pass  # over by now
    found = {of or os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {number: names[number] for number in found if "ray" in names.get(number, "").split("--")[0].split("/")[-1]}


def hear() -> None:
    """Ctrl-C is heard though tests may run in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def within(seconds: float, come: Callable[[], object]) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not come():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def on_ray(config: Config, out: Path) -> dict[Path, str]:
    out.mkdir(exist_ok=True)
    return cluster.work([(config, run_folder.path(out, config))], out, cluster.HERE, "cpu", 1)


@needs_ray
def test_a_grid_on_ray_ends_with_the_bytes_of_one_without_and_a_method_that_breaks_down_stops_no_other(
    ray, config, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    methods = ("fedavg+ga", "fedprox(mu=1e30)", "scaffold")
    grid = replace(config, bench=Bench(methods=methods))
    told = []
    for on in ("", cluster.HERE):
        with pytest.raises(FederationError, match=r"1 of 3 runs failed: fedprox\(mu=1e\+30\), sketch unseen") as end:
            bench.run_all(grid, Path(on or "alone"), "cpu", 1, on=on).ensure_complete()
        told.append(str(end.value))
        assert capsys.readouterr().err.count("/3 scaffold, sketch unseen, seed 0: round 2/2") == 1
    assert told[0] == told[1]
    done = [path.parent.relative_to("alone") for path in sorted(Path("alone").rglob("done"))]
    assert len(done) == 2
    for place in done:
        assert contents(cluster.HERE / place) == contents("alone" / place)
    (why,) = Path(cluster.HERE).glob("fedprox*/sketch/seed-0/failure.json")
    assert why.read_bytes() == ("alone" / why.relative_to(cluster.HERE)).read_bytes()
    assert not list(Path(cluster.HERE).glob(".*"))  # by which machines knew the folder


@needs_ray
def test_a_run_that_another_process_plays_is_left_to_it(ray, config, tmp_path):
    with run_folder.locked(run_folder.path(tmp_path, config), config):
        assert on_ray(config, tmp_path) == {}
    assert not run_folder.is_finished(run_folder.path(tmp_path, config), config)


@needs_ray
def test_a_machine_that_does_not_see_the_folder_of_runs_is_named_and_the_command_ends(ray, config, tmp_path):
    order = json.dumps({"mark": str(tmp_path / "elsewhere" / "mark"), "start": "/"})
    task = ray.remote(cluster.run_task).remote(order)
    with pytest.raises(ConfigError, match=r"^\S+ does not share \S+elsewhere with this machine; give --out a folder"):
        cluster.wait_for_runs(ray, {task: (config, tmp_path)})


@needs_ray
def test_ray_listens_on_this_machine_alone_and_tells_nobody(ray):
    assert ray.util.get_node_ip_address() == "127.0.0.1" and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    ours = {os.readlink(link) for number in [*offspring(), os.getpid()] for link in open_files(number)}
    heard = []
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in ours:  # listening, and Ray's
                heard.append(fields[1].partition(":")[0])
    assert len(heard) > 3 and {address[-8:] for address in heard} == {"0100007F"}  # 127.0.0.1, backwards


def open_files(number: int) -> list[Path]:
    try:
        return [path for path in Path(f"/proc/{number}/fd").iterdir() if path.is_symlink()]
    except OSError:
        return []


@needs_ray
def test_a_run_whose_process_is_killed_goes_on_where_it_was(ray, config, tmp_path):
    config = replace(config, train=Train(rounds=16, batch_size=8))
    list(runner.run(runner.prepare(config), tmp_path / "whole"))
    folder, before = run_folder.path(tmp_path / "torn", config), []

    def kill() -> None:
        if within(60, lambda: len(run_folder.lines(folder)) > 4):
            before.append((folder / "times.jsonl").read_text().splitlines()[:2])
            (player,) = (number for number, name in offspring().items() if name.startswith("ray::run_task"))
            os.kill(player, signal.SIGKILL)
            before.append((folder / "done").exists())

    killer = threading.Thread(target=kill)
    killer.start()
    assert on_ray(config, tmp_path / "torn") == {}
    killer.join()
    assert contents(folder) == contents(tmp_path / "whole")
    assert before == [(folder / "times.jsonl").read_text().splitlines()[:2], False]  # rounds that were not played again


@needs_ray
def test_a_run_whose_process_dies_whenever_it_is_played_is_told(ray, config, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text("import os\nos._exit(1)\n")
    monkeypatch.setattr(cluster, "RETRIES", 0)
    (why,) = on_ray(replace(config, plugins=(str(tmp_path / "deadly.py"),)), tmp_path / "out").values()
    death = "its process died 1 times, perhaps because memory was full ("
    assert why.startswith(f"scaffold+ga, sketch unseen, seed 0: {death}")


@needs_ray
def test_stopped_with_ctrl_c_a_grid_keeps_its_rounds_leaves_no_process_and_can_go_on_without_ray(config, tmp_path):
    config = replace(config, train=Train(rounds=200, batch_size=8))
    folder = run_folder.path(tmp_path, config)
    words = ["--set", "train.rounds=200", "--set", "train.batch_size=8", "--set", f"data={config.data}"]
    words += ["--set", f"network={config.network}", "--set", "method=scaffold+ga", "--set", "target=sketch"]
    words += ["--device", "cpu", "--out", str(tmp_path), "--on", "ray"]
    call = [sys.executable, "-m", "fedbeyond", "bench", *words]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, preexec_fn=hear, **pipes) as process:
        try:
            assert within(300, lambda: process.poll() is not None or len(run_folder.lines(folder)) > 4)
            started = offspring(process.pid)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130 and "stopped; finished rounds are kept: give the same command again" in err
    assert len(started) > 3 and within(30, lambda: not any(Path(f"/proc/{number}").exists() for number in started))
    kept = len(run_folder.lines(folder))
    assert 4 < kept < 200 and not list(tmp_path.glob(".shared*"))
    rest = runner.run(runner.prepare(config), folder)
    assert kept - 2 <= next(rest)["round"] <= kept  # a round whose checkpoint was not yet written is played again
    rest.close()


def order(config: Config, tmp_path: Path, **other: object) -> str:
    (tmp_path / "mark").touch()
    given = {"config": asdict(config), "digest": config.digest(), "mark": str(tmp_path / "mark"), "start": os.getcwd()}
    return json.dumps(given | other)


def test_a_machine_with_other_files_is_refused(config, tmp_path):
    with pytest.raises(
        ConfigError, match=r"cannot enter \S+nowhere \(No such file or directory\); start the command in"
    ):
        cluster.run_task(order(config, tmp_path, start=str(tmp_path / "nowhere")))
    plugin = tmp_path / "mine.py"
    plugin.write_text("")
    config = replace(config, plugins=(str(plugin),))
    letter = order(config, tmp_path)
    plugin.write_text("# other")
    with pytest.raises(ConfigError, match="other plugins or split files than this machine; install the same"):
        cluster.run_task(letter)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--on", "rya"), "--on takes ray, HOST:PORT or ray://HOST:PORT; got 'rya'"),
        (("--on", "ray", "--jobs", "2"), "--jobs and --workers divide the cores of one machine; leave them out"),
        (("--on", "head:6379", "--device", "cuda:1"), "Ray chooses the GPU of a run; give --device cuda with --on"),
    ],
)
def test_what_cannot_be_asked_of_a_cluster_is_refused_at_once(words, told, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedbeyond", "bench", "--out", str(tmp_path / "runs"), *words])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2 and told in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_an_address_at_which_nobody_is_ends_the_command_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"nothing answers at ray://{address} \(.*refused\); 'ray start --head'"):
            cluster.join(None, f"ray://{address}")


def test_where_ray_is_not_installed_one_reads_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as Python marks what cannot be imported
    with pytest.raises(ConfigError, match=r"Ray is not installed .* pip install 'fedbeyond\[ray\]'"):
        cluster.ensure_available("head:6379")
