"""Runs watched from outside: what is seen of their files as they grow, and what the server answers and refuses."""

import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from fedbeyond._io import write
from fedbeyond.errors import ConfigError, FederationError, StorageError
from fedbeyond.experiment import bench, results, run_folder, runner
from fedbeyond.experiment.config import Bench, Config, Train
from fedbeyond.experiment.remaining import about, seconds_left
from fedbeyond.experiment.run_state import is_running
from fedbeyond.experiment.tail import Tail
from fedbeyond.monitor.watch.serve import HOST, THREADS, Server
from fedbeyond.monitor.watch.state import Watcher
from fedbeyond.report.bench import report_bench
from support.watched import begin, held, line, plan, play, serving


def test_a_file_that_grows_is_read_from_where_it_was(tmp_path):
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert tail.read_new() == (False, [], False)
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    assert tail.read_new() == (True, [{"a": 1}], False) and tail.offset == 9  # the second has no end yet
    with open(path, "ab") as file:
        file.write(b"2}\n")
    assert tail.read_new() == (False, [{"a": 22}], False)
    mark = path.stat()
    path.write_bytes(b"#" * mark.st_size)
    os.utime(path, ns=(mark.st_atime_ns, mark.st_mtime_ns))
    assert tail.read_new() == (False, [], False)  # by its size and time unchanged: it is not opened
    write(path, b'{"a": 1}\n')  # trimmed, as when a run goes on
    assert tail.read_new() == (True, [{"a": 1}], False)
    with open(path, "ab") as file:
        file.write(b"torn\n[1]\n{}\n")
    assert tail.read_new() == (False, [{}], True)
    path.unlink()
    assert tail.read_new() == (True, [], False)


def test_a_look_at_200_runs_reads_only_what_was_added(tmp_path, monkeypatch):
    folders = [begin(tmp_path, f"m{i}", rounds=20) for i in range(200)]
    for folder in folders:
        (folder / "results.jsonl").write_text("".join(json.dumps(line(n, rounds=20)) + "\n" for n in range(19)))
    look, read = Watcher(tmp_path), []
    assert look.state()["rounds"] == {"done": 3800, "total": 4000}
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda raw: read.append(raw) or loads(raw))
    play(folders[7], 19, rounds=20)
    assert look.state()["rounds"]["done"] == 3801
    assert len(read) == 2  # the new line, and its time
    assert look.state()["rounds"]["done"] == 3801 and len(read) == 2


def test_a_finished_run_that_a_bench_continues_with_more_rounds_is_pending(tmp_path):
    folder = begin(tmp_path, "ends", rounds=2)
    for number in range(2):
        play(folder, number, rounds=2)
    (folder / "done").touch()
    plan(tmp_path, ("ends", "sketch", 0))  # of four rounds
    (run,) = Watcher(tmp_path).state()["runs"]
    assert (run["state"], run["rounds_done"], run["rounds"]) == ("pending", 2, 4)


def test_states_are_told_apart(tmp_path):
    names = ("waits", "plays", "fails", "ends", "halts")
    plan(tmp_path, *((name, "sketch", 0) for name in names))
    folders = {name: begin(tmp_path, name) for name in (*names[1:], "alone")}
    for number in range(4):
        play(folders["ends"], number)
    (folders["ends"] / "done").touch()
    for name in ("plays", "halts", "alone"):
        play(folders[name], 0)
    write(folders["fails"] / "failure.json", b'{"error": "<b>diverged</b>"}')
    with held(folders["plays"]):
        state = Watcher(tmp_path).state()
    found = {run["method"]: (run["state"], run["rounds_done"], run["reason"]) for run in state["runs"]}
    assert found == {
        "waits": ("pending", 0, ""),
        "plays": ("running", 1, ""),
        "fails": ("failed", 0, "<b>diverged</b>"),
        "ends": ("done", 4, ""),
        "halts": ("pending", 1, ""),  # planned: its turn comes again
        "alone": ("stopped", 1, ""),  # nobody's plan
    }
    assert state["counts"] == {"running": 1, "failed": 1, "stopped": 1, "pending": 2, "done": 1}
    assert state["rounds"] == {"done": 7, "total": 20}  # 5 runs of 4 rounds; what broke down plays no more
    assert not state["finished"] and not state["report"]
    last = next(run for run in state["runs"] if run["method"] == "ends")
    assert last["last"] == "round 4/4, own 75.0%, unseen 50.0%" and last["curves"] == {"sketch": [0.5] * 4}


def test_a_round_that_was_not_judged_is_played_and_has_no_point(tmp_path):
    folder = begin(tmp_path, "fedavg")
    play(folder, 0)
    unjudged = {key: value for key, value in line(1).items() if key != "scores"}
    results.append(folder / "results.jsonl", unjudged)
    play(folder, 2)
    (run,) = Watcher(tmp_path).state()["runs"]
    assert run["state"] == "stopped" and run["rounds_done"] == 3 and run["curves"] == {"sketch": [0.5, None, 0.5]}


def test_a_run_that_was_started_again_is_no_failure_of_the_past(tmp_path):
    folder = begin(tmp_path, "fedavg")
    write(folder / "failure.json", b'{"error": "diverged"}')
    look = Watcher(tmp_path)
    assert look.state()["counts"]["failed"] == 1
    assert look.state()["finished"] and not look.state()["report"]  # nothing was there to report
    with held(folder):
        assert look.state()["counts"]["running"] == 1
    assert look.state()["counts"]["failed"] == 1


def test_rounds_that_are_redone_count_once(tmp_path):
    folder, look = begin(tmp_path, "fedavg"), Watcher(tmp_path)
    for number in range(3):
        play(folder, number, unseen=0.25)
    assert look.state()["runs"][0]["curves"] == {"sketch": [0.25] * 3}
    results.trim(folder / "results.jsonl", 1)
    play(folder, 1, unseen=0.75)
    assert look.state()["runs"][0]["curves"] == {"sketch": [0.25, 0.75]}


def test_a_run_that_was_deleted_and_begun_anew_is_another(tmp_path):
    folder, look = begin(tmp_path, "fedavg"), Watcher(tmp_path)
    play(folder, 0)
    os.utime(folder / "config.json", (0, 1))
    assert look.state()["rounds"] == {"done": 1, "total": 4}
    shutil.rmtree(folder)
    begin(tmp_path, "fedavg", rounds=9)
    assert look.state()["rounds"] == {"done": 0, "total": 9}
    shutil.rmtree(folder)
    assert look.state()["runs"] == []


def test_lines_that_are_no_results_are_told_and_stop_nothing(tmp_path):
    folder, look = begin(tmp_path, "fedavg"), Watcher(tmp_path)
    (folder / "results.jsonl").write_text('{"round": 0}\nno JSON\n' + json.dumps(line(1)) + "\n")
    (run,) = look.state()["runs"]
    assert run["state"] == "failed" and "results.jsonl has a line that is not a result" in run["reason"]
    for name in ("plan.json", "fedavg/sketch/seed-0/failure.json"):
        (tmp_path / name).write_text("[")
    other = tmp_path / "a" / "b" / "seed-x"
    other.mkdir(parents=True)
    (other / "config.json").write_text('{"name": "another program\'s"}')
    assert len(Watcher(tmp_path).state()["runs"]) == 1


def test_replies_set_aside_are_told_with_their_reason(tmp_path):
    folder = begin(tmp_path, "fedavg")
    play(folder, 0, aside=({"site": "photo", "reason": "not finite"},))
    state = Watcher(tmp_path).state()
    assert state["rejected"]["count"] == 1
    assert state["rejected"]["latest"][0] == {
        "method": "fedavg", "target": "sketch", "seed": 0, "round": 1, "site": "photo", "reason": "not finite",
    }  # fmt: skip


def test_a_folder_that_is_not_there_yet_and_a_single_run_can_be_watched(tmp_path):
    root = tmp_path / "runs"
    look = Watcher(root)
    assert look.state()["runs"] == [] and not look.state()["finished"]
    folder = begin(root, "fedavg")
    play(folder, 0)
    assert look.state()["rounds"] == {"done": 1, "total": 4}
    assert [run["method"] for run in Watcher(folder).state()["runs"]] == ["fedavg"]
    plan(tmp_path / "above" / "demo", ("fedavg", "sketch", 0))
    assert Watcher(tmp_path / "above").state()["subfolders"] == [str(tmp_path / "above" / "demo")]


def test_the_time_left_is_that_of_the_rounds_to_come_shared_by_the_workers(tmp_path):
    plan(tmp_path, ("slow", "sketch", 0), ("slow", "sketch", 1), ("new", "sketch", 0), ("quick", "sketch", 0), jobs=2)
    slow, quick = begin(tmp_path, "slow"), begin(tmp_path, "quick")
    play(slow, 0, seconds=300)
    for number in range(4):
        play(quick, number, seconds=100)
    (quick / "done").touch()
    look = Watcher(tmp_path)
    with held(slow):
        # 3 + 4 rounds of 300 s, 4 of the mean of 300 and 100: 2,900 s, by two
        assert look.state()["time_left"] == "about 24 min"
    for name in ("results.jsonl", "times.jsonl"):
        for folder in (slow, quick):
            os.utime(folder / name, (0, 0))
    assert look.state()["time_left"] is None and not look.state()["active"]  # nobody is at work


def test_one_long_run_is_not_shared():
    runs = [{"method": "a", "rounds": 10, "rounds_done": 2, "state": "running"}]
    assert seconds_left(runs, {("a", "t", 0): [5.0, 7.0]}, 4) == 48
    assert seconds_left(runs, {}, 4) is None


def test_an_estimate_is_said_as_one():
    told = [about(seconds) for seconds in (3, 50, 100, 3540, 3700, 5000, 40000)]
    assert told[:4] == ["less than a minute", "about 1 min", "about 2 min", "about 59 min"]
    assert told[4:] == ["about 1 h", "about 1 h 20 min", "about 11 h"]


@pytest.fixture
def grid(small) -> Config:
    methods = ("fedprox(mu=1e30)", "fedavg")
    return Config(train=Train(rounds=2, batch_size=8), bench=Bench(methods=methods, seeds=(0, 1)), **small)


def test_a_bench_says_what_it_will_do_and_why_a_run_broke_down(grid, tmp_path, capsys):
    outcome = bench.run_all(grid, tmp_path, "cpu", 1)
    report_bench(grid, tmp_path, outcome)
    with pytest.raises(FederationError, match="2 of 4 runs failed"):
        outcome.ensure_complete()
    assert f"to watch them: fedbeyond watch {tmp_path}\n" in capsys.readouterr().out
    wanted = [(method, "sketch", seed) for seed in (0, 1) for method in ("fedprox(mu=1e+30)", "fedavg")]
    noted = json.loads((tmp_path / "plan.json").read_text())["runs"]
    assert [(run["method"], run["target"], run["seed"]) for run in noted] == wanted
    state = Watcher(tmp_path).state()
    assert state["counts"] == {"running": 0, "failed": 2, "stopped": 0, "pending": 0, "done": 2}
    assert all("numbers that are not finite" in run["reason"] for run in state["runs"] if run["state"] == "failed")
    assert state["finished"] and state["report"] and state["rounds"] == {"done": 4, "total": 4}
    os.utime(tmp_path / "report.html", (0, 0))
    assert not Watcher(tmp_path).state()["report"]  # it is of earlier runs


def test_a_run_that_goes_on_forgets_why_it_broke_down(small, tmp_path, monkeypatch):
    config = Config(train=Train(rounds=1, batch_size=8), **small)
    folder, describe = run_folder.path(tmp_path, config), runner.describe_round

    def breaks(*args):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runner, "describe_round", breaks)
    with pytest.raises(RuntimeError):
        bench.run_one(config, tmp_path, "cpu", 1)
    assert Watcher(tmp_path).state()["runs"][0]["reason"] == "RuntimeError: out of memory"
    monkeypatch.setattr(runner, "describe_round", describe)
    bench.run_one(config, tmp_path, "cpu", 1)
    assert not (folder / "failure.json").exists() and Watcher(folder).state()["counts"]["done"] == 1


def test_runs_that_would_lie_in_a_file_are_refused(small, grid, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(
        StorageError, match=r"cannot write .*Not a directory; free disk space or choose another out folder"
    ):
        bench.run_one(Config(train=Train(rounds=1), **small), tmp_path / "out", "cpu", 1)
    with pytest.raises(StorageError, match=r"cannot write .*choose another out folder"):
        bench.run_all(grid, tmp_path / "out", "cpu", 1)


def test_a_run_that_begins_while_it_is_looked_at_waits_for_the_look_to_end(small, tmp_path, monkeypatch):
    config = Config(train=Train(rounds=1), **small)
    look = open(tmp_path / "lock", "w")  # noqa: SIM115 (closed while the run waits)
    fcntl.flock(look, fcntl.LOCK_SH)
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: look.close())
        with run_folder.locked(tmp_path, config):
            assert look.closed and is_running(tmp_path)
    assert not is_running(tmp_path)


@pytest.fixture
def server(tmp_path):
    begin(tmp_path, "fedavg")
    with serving(tmp_path) as found:
        yield found


def ask(server: Server, path: str = "/", method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply, reply.read()
    finally:
        connection.close()


def test_the_server_listens_on_the_loopback_interface_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_every_page_is_served_with_a_strict_policy(server):
    for path, kind in {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}.items():
        reply, content = ask(server, path)
        assert reply.status == 200 and reply.headers["Content-Type"] == f"{kind}; charset=utf-8" and content
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert (
            reply.headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in reply.headers
        )
        assert not re.findall(rb"https?://(?!www\.w3\.org/2000/svg)|innerHTML|style=", content)
    reply, content = ask(server, "/state.json?now")
    assert reply.status == 200 and json.loads(content)["runs"][0]["method"] == "fedavg"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1", "localhost:1", ""])
def test_another_name_for_this_machine_is_refused(server, host):
    reply, content = ask(server, "/state.json", Host=host)
    assert reply.status == 403 and b"fedavg" not in content


def test_localhost_is_a_name_too(server):
    assert ask(server, "/state.json", Host=f"localhost:{server.port}")[0].status == 200


def test_two_hosts_are_refused(server):
    with socket.create_connection((HOST, server.port), timeout=10) as wire:
        own = f"{HOST}:{server.port}"
        wire.sendall(f"GET /state.json HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n\r\n".encode())
        assert b" 403 " in wire.recv(1000)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_only_get_is_answered(server, method):
    assert ask(server, "/", method)[0].status == 501


@pytest.mark.parametrize(
    "path",
    ["/plan.json", "/fedavg/sketch/seed-0/config.json", "/../page.js", "/%2e%2e/etc/passwd", "/<b>"],
)
def test_no_address_is_a_path(server, path):
    reply, content = ask(server, path)
    assert reply.status == 404 and content == b"404: there is no such page\n"
    assert reply.headers["Content-Type"] == "text/plain"


def test_the_report_has_an_origin_of_its_own(server, tmp_path):
    assert ask(server, "/report")[0].status == 404
    (tmp_path / "report.html").write_text("<p>all")
    reply, content = ask(server, "/report")
    assert content == b"<p>all" and "sandbox allow-scripts" in reply.headers["Content-Security-Policy"]
    assert "allow-same-origin" not in reply.headers["Content-Security-Policy"]


def test_connections_that_say_nothing_are_bounded_and_harm_nobody(server):
    before = threading.active_count()
    silent = [socket.create_connection((HOST, server.port), timeout=10) for _ in range(THREADS + 1)]
    try:
        silent[-1].settimeout(20)
        assert silent[-1].recv(1) == b""  # no room: closed
        assert threading.active_count() <= before + THREADS
    finally:
        for wire in silent:
            wire.close()
    assert ask(server)[0].status == 200


def test_a_port_in_use_is_told(server, tmp_path):
    with pytest.raises(ConfigError, match=f"port {server.port} is in use; give another --port, or leave it out"):
        Server(tmp_path, server.port)


def test_watch_prints_its_address_and_ends_with_ctrl_c(tmp_path):
    words = [sys.executable, "-m", "fedbeyond", "watch", str(tmp_path / "later")]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # though tests run in the background
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": heard}
    with subprocess.Popen(words, **pipes) as process:
        try:
            told = process.stdout.readline()
            address = re.fullmatch(
                rf"watching {tmp_path}/later \(does not exist yet\): http://127.0.0.1:(\d+)/ .*\n", told
            )
            connection = http.client.HTTPConnection(HOST, int(address[1]), timeout=10)
            connection.request("GET", "/state.json")
            assert json.loads(connection.getresponse().read())["runs"] == []
            connection.close()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0 and err == "" and "stopped watching; the runs continue" in out


def test_watching_a_file_is_refused(tmp_path):
    from fedbeyond.monitor.watch.serve import watch

    (tmp_path / "results.jsonl").touch()
    with pytest.raises(ConfigError, match=r"results.jsonl is a file; give the folder"):
        watch(tmp_path / "results.jsonl", 0)


def test_the_clock_of_the_last_round_is_told(tmp_path):
    folder = begin(tmp_path, "fedavg")
    play(folder, 0)
    os.utime(folder / "results.jsonl", (time.time() - 120,) * 2)
    assert Watcher(tmp_path).state()["age"] == pytest.approx(120, abs=10)
