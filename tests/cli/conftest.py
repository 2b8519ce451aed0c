import sys

import pytest

from fedbeyond.cli import main


def fedbeyond(*words, capsys, monkeypatch):
    """Run a command in this process; return its exit code, output and errors."""
    monkeypatch.setattr(sys, "argv", ["fedbeyond", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main.main()
    printed = capsys.readouterr()
    return end.value.code or 0, printed.out, printed.err


@pytest.fixture
def call(capsys, monkeypatch):
    return lambda *words: fedbeyond(*words, capsys=capsys, monkeypatch=monkeypatch)
