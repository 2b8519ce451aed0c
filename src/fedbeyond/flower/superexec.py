"""Start Flower's SuperExec so that no token is on a command line, which every user of a machine can read with `ps`.

Flower's server and nodes start a program `flower-superexec`, which starts a process for each task and gives it the
token of the task as `--token`. The PATH of `fedbeyond serve` and `join` begins with a program of that name that runs
this module. It hands the token over in a file without a name, whose descriptor only the process has.
"""

import subprocess
import tempfile
from types import SimpleNamespace
from typing import Any

from flwr.supercore.cli import flower_superexec
from flwr.supercore.superexec.executor import subprocess_executor


def start(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start the process of a task, with its token in a file instead of in its words."""
    place = command.index("--token")
    with tempfile.TemporaryFile() as file:
        file.write(command[place + 1].encode())
        file.seek(0)  # where a process begins to read, if opening it again keeps the position
        descriptor = file.fileno()
        words = [*command[:place], "--token-file", f"/dev/fd/{descriptor}", *command[place + 2 :]]
        return subprocess.Popen(words, pass_fds=(descriptor,), **options)


def main() -> None:
    """Run `flower-superexec`."""
    module: Any = subprocess_executor
    module.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    flower_superexec()


if __name__ == "__main__":
    main()
