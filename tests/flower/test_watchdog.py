"""The watchdog of a site: late work is killed, and a node that cannot take messages any more is started again."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from fedbeyond.errors import FederationError
from fedbeyond.flower import work
from fedbeyond.flower.deploy import operations, processes, watchdog
from fedbeyond.flower.deploy.folder import SITE_FILE

LOG = "site.log"
RECEIVED, SENDING = "INFO : Received successfully", "INFO : Sending: train.ask message (ID: 1)"
SILENT = """Exception in thread Thread-3 (_run):
  File "flwr/supercore/heartbeat.py", line 105, in _run
  File "flwr/supernode/fleet_http_connection.py", line 120, in send_node_heartbeat
httpx.HTTPStatusError: Server error '500 Internal Server Error'"""


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """The folder of a site that has joined."""
    settings = 'site = "a"\ndata = "styles"\nfolder = "state"\nsuperlink = "127.0.0.1:1"\n'
    (tmp_path / SITE_FILE).write_text(settings)
    (tmp_path / "state").mkdir()
    (tmp_path / LOG).write_text(f"{RECEIVED}\n")  # of a node that is gone
    monkeypatch.setattr(watchdog, "PAUSE", 0.05)
    monkeypatch.setattr(watchdog, "LOST", 1.0)
    return tmp_path


@contextmanager
def sleeping(seconds, name="sleep", **options):
    """A process that does nothing."""
    words = [name, "-c", f"import time; time.sleep({seconds})"]
    process = subprocess.Popen(words, executable=sys.executable, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def supervised(bundle, *lines, seconds=3.0):
    """What the watchdog returns and reports of a node that logs these lines, and ends by itself after some seconds."""
    reports = []
    code = f"import time; print({chr(10).join(lines)!r}, flush=True); time.sleep({seconds}); raise SystemExit(3)"
    log = watchdog.Log(bundle / LOG)
    with processes.started([sys.executable, "-c", code], bundle / "flower", bundle / LOG) as node:
        return watchdog.supervise(node, log, bundle / "flower", bundle / "state", reports.append), reports


@pytest.mark.slow
def test_a_node_that_works_and_replies_is_left_alone(bundle):
    assert supervised(bundle, "INFO : Starting") == (3, [])
    assert supervised(bundle, RECEIVED, SENDING) == (3, [])
    with sleeping(10, "flwr-clientapp", env={"FLWR_HOME": str(bundle / "flower")}):
        assert supervised(bundle, RECEIVED) == (3, [])


def test_a_node_that_waits_for_a_process_that_has_ended_is_started_again(bundle):
    with sleeping(10, "flwr-clientapp", env={"FLWR_HOME": "/of/another/site"}):
        code, (report,) = supervised(bundle, RECEIVED, SENDING, RECEIVED, seconds=60)
    assert code is None
    assert report == "Flower's node waits for a process that has ended without a reply; starting it again"


def test_a_node_without_a_heartbeat_is_started_again(bundle):
    code, (report,) = supervised(bundle, SILENT, seconds=60)
    assert code is None and report == "Flower's node sends no heartbeat any more; starting it again"


def test_joining_goes_on_after_a_node_was_started_again(bundle, monkeypatch):
    """The first node waits in vain, the second one ends."""
    script = (
        f"import pathlib, time; mark = pathlib.Path({str(bundle / 'second')!r}); second = mark.exists(); mark.touch(); "
        f"print('' if second else {RECEIVED!r}, flush=True); time.sleep(0 if second else 60)"
    )
    monkeypatch.setattr(operations, "node_command", lambda bundle, port: [sys.executable, "-c", script])
    reports = []
    with pytest.raises(FederationError, match="the site ended: exit code 0"):
        processes.run_site(bundle, 1, reports.append)
    assert [report.split("; ")[-1] for report in reports[1:]] == ["starting it again"]
    assert (bundle / LOG).read_text().splitlines()[1:] == [RECEIVED, ""]


def noted(folder, process, until, started=None):
    started = work.started(process) if started is None else started
    (folder / f"{process}.working").write_text(json.dumps({"process": process, "started": started, "until": until}))


def test_work_that_is_late_and_does_not_end_is_killed(bundle):
    reports = []
    with sleeping(60) as late, sleeping(60) as early, sleeping(60) as other:
        noted(bundle / "state", late.pid, time.time() - 2 * work.GRACE - 1)
        noted(bundle / "state", early.pid, time.time() - 1)  # it still has time to end by itself
        noted(bundle / "state", other.pid, 0.0, started="1")  # a process that uses the number of another one
        (bundle / "state" / "9.working").write_text("{")  # being written
        watchdog.kill_late(bundle / "state", reports.append)
        assert late.wait(10) == -signal.SIGKILL
        assert early.poll() is None and other.poll() is None
    assert reports == [f"process {late.pid} works past its deadline and does not react; killing it"]


def test_a_process_at_work_is_noted_with_its_deadline(tmp_path):
    with work.noted(tmp_path / "state", 50):
        (found,) = work.running(tmp_path / "state")
        assert found.process == os.getpid() and 40 < found.until - time.time() <= 50
    assert work.running(tmp_path / "state") == [] and list((tmp_path / "state").iterdir()) == []
