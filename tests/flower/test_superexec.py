"""No token of Flower is on a command line, where every user of a machine reads it with `ps`."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supercore.superexec.executor.types import ExecutionSpec

from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import superexec
from fedbeyond.flower.deploy import operations
from support.commands import until
from support.federations import GUEST, SITES
from support.modes import mode

TOKEN = "0123456789abcdef" * 4
FORGOTTEN = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # by Flower
CHILD = f"""#!{sys.executable}
import argparse, pathlib
from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
parser = argparse.ArgumentParser()
parser.add_argument("--runtime-api-address")
add_args_flwr_app_common(parser)
token = try_obtain_flwr_app_token(parser.parse_args())
words = pathlib.Path("/proc/self/cmdline").read_bytes() if pathlib.Path("/proc").exists() else b""
pathlib.Path(__file__).with_name("seen").write_text(token + " " + words.replace(bytes(1), b" ").decode())
"""


def launched(folder, monkeypatch):
    """What Flower's own executor gives a process: the token that it reads, and its command line."""
    (folder / "flwr-clientapp").write_text(CHILD)
    (folder / "flwr-clientapp").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:1", TOKEN, True, None, False, None, False, 1)
    subprocess_executor.SubprocessExecutor().launch(spec)
    until(lambda: (folder / "seen").exists() and (folder / "seen").read_text(), seconds=60)
    token, _, words = (folder / "seen").read_text().partition(" ")
    return token, words


@FORGOTTEN
def test_a_task_reads_its_token_from_a_file_without_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(superexec, "flower_superexec", lambda: None)
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)
    superexec.main()
    token, words = launched(tmp_path, monkeypatch)
    assert token == TOKEN and TOKEN not in words
    assert re.search(r"--token-file /dev/fd/\d+ --insecure", words)


@FORGOTTEN
def test_flower_alone_would_show_it(tmp_path, monkeypatch):
    """If this fails, Flower hides tokens itself: delete superexec.py."""
    token, words = launched(tmp_path, monkeypatch)
    assert token == TOKEN and f"--token {TOKEN}" in words


def test_the_program_that_flower_finds_first_is_ours(tmp_path):
    operations.write_launcher(tmp_path)
    path = operations.environment(tmp_path)["PATH"]
    launcher = tmp_path / "bin" / "flower-superexec"
    assert path.split(os.pathsep)[0] == str(launcher.parent) and mode(launcher) == 0o700
    ended = subprocess.run(
        ["flower-superexec", "--help"], env=os.environ | {"PATH": path}, capture_output=True, check=True
    )
    assert b"Run Flower SuperExec" in ended.stdout
    assert "fedbeyond.flower.superexec" in launcher.read_text()


def command_lines(folder):
    """The words of all processes that have to do with a federation."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(folder) in (path / "environ").read_bytes():
                yield (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.loopback
def test_no_process_of_a_real_federation_shows_a_token(federation, tmp_path):
    train = Train(rounds=1, batch_size=8, batchnorm="average")
    config = Config(
        method="fedavg", target=GUEST, data=federation.data, network="convnet(width=4)", train=train, seed=8
    )
    number, seen = operations.submit(federation.folder, config, tmp_path), set()
    end = time.monotonic() + 300
    while not operations_done(federation, number, seen):
        assert time.monotonic() < end
    apps = [words for words in seen if "flwr-clientapp" in words or "flwr-serverapp" in words]
    assert len(apps) > len(SITES) and all("--token-file /dev/fd/" in words for words in apps)
    assert not [words for words in seen if "--token " in words or re.search(r"\b[0-9a-f]{64}\b", words)]


def operations_done(federation, number, seen):
    """Look at all processes for a while, then whether the run has ended well."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        seen.update(command_lines(federation.folder))
        time.sleep(0.1)
    state = operations.status(federation.folder, number)
    assert not state.startswith("finished") or state == "finished:completed", operations.log_tail(
        federation.folder, number
    )
    return state == "finished:completed"
