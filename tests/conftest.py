import sys
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from fedbeyond.cli import main
from fedbeyond.engine.allocator import keep_freed_memory

torch.set_num_threads(1)
keep_freed_memory()
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.load_profile("steady")


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Images are decoded into a folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBEYOND_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def small() -> dict[str, object]:
    """A run on a sliver of the built-in data: seconds, not minutes."""
    return {"target": "sketch", "data": "styles(share=0.05)", "network": "convnet(width=4)"}


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A federation of real processes on 127.0.0.1, started for the first test that needs it."""
    from support.federations import federated

    with federated(tmp_path_factory.mktemp("loopback") / "federation") as running:
        yield running


@pytest.fixture
def call(capsys, monkeypatch):
    """A function that runs a command in this process and returns its exit code, output and errors."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedbeyond", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main.main()
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return run
