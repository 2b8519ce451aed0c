"""An error in a plugin is one line with its file and its line, and a traceback only if it is asked for."""

import json
import sys
from pathlib import Path

import pytest

from fedbeyond import _plugins
from fedbeyond.experiment import registry

SMALL = [
    "--set", "data=styles(share=0.05)", "--set", "network=convnet(width=4)", "--set", "train.rounds=1",
    "--set", "train.batch_size=8",
]  # fmt: skip
HINT = " (FEDBEYOND_TRACEBACK=1 in the environment shows the whole traceback)"
HEAD = """from dataclasses import replace
from fedbeyond.experiment.registry import register
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.server import Request, Server, mean
"""  # four lines: what follows begins in line 5
AT_IMPORT = "1 / 0\n"
BUILDING = """def mine(optimizer):
    return fedavg("uniform", optimiser)
register("methods", "mine", mine)
"""
BAD_VALUE = """def mine(mu: float = 1.0):
    raise ValueError("mu must be odd")
register("methods", "mine", mine)
"""
AT_A_SITE = """def mine(optimizer):
    def train(site, received, private):
        return {"model": received["modell"]}, private
    return replace(fedavg(), client=fedavg().client._replace(handlers={"train": train}))
register("methods", "mine", mine)
"""
AT_THE_SERVER = """def mine(optimizer):
    def round(state, now):
        replies = yield Request("train", state, now.clients)
        return {"model": mean(replies, "modell")}
    return replace(fedavg(optimizer=optimizer), server=Server(lambda nets: nets, round))
register("methods", "mine", mine)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Write a plugin; return the settings that load it."""
    monkeypatch.setattr(registry, "LOADED", set())
    monkeypatch.setattr(_plugins, "PLUGINS", set())
    groups = {group: {k: v for k, v in names.items() if k != "mine"} for group, names in registry.REGISTRY.items()}
    monkeypatch.setattr(registry, "REGISTRY", groups)
    monkeypatch.delenv("FEDBEYOND_TRACEBACK", raising=False)

    def write(code: str) -> list[str]:
        (tmp_path / "mine.py").write_text(HEAD + code)
        return ["--set", f"plugins=['{tmp_path / 'mine.py'}']", *SMALL]

    return write


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (AT_IMPORT, "/mine.py cannot be loaded: mine.py, line 5: ZeroDivisionError: division by zero"),
        ("x = (\n", "/mine.py cannot be loaded: mine.py, line 5: SyntaxError: '(' was never closed"),
        (BUILDING, "error: mine.py, line 6: NameError: name 'optimiser' is not defined"),
        (BAD_VALUE, "error: mine: mine.py, line 6: ValueError: mu must be odd"),
        (AT_A_SITE, "(cartoon, painting, sketch: mine.py, line 7: KeyError: 'modell'); fix the sites, or lower"),
        (AT_THE_SERVER, "error: mine.py, line 8: KeyError: 'modell'"),
    ],
)
def test_an_error_in_a_plugin_is_a_line(code, message, plugin, call, tmp_path, monkeypatch):
    words = ["run", "-m", "mine", "-t", "photo", *plugin(code), "--out", tmp_path / "runs"]
    status, out, err = call(*words)
    last = err.splitlines()[-1]
    assert status == 2 and message in last and last.endswith(HINT)
    assert "Traceback" not in err and last.startswith("error: ") and out == ""
    monkeypatch.setenv("FEDBEYOND_TRACEBACK", "1")
    with pytest.raises(Exception) as raised:
        call(*words)
    chain = [raised.value, raised.value.__cause__]
    assert any(error and type(error).__name__ in last and error.__traceback__ for error in chain)


def test_with_workers_the_line_is_the_same(plugin, call, tmp_path):
    words = plugin(AT_A_SITE)
    status, _, err = call("run", "-m", "mine", "-t", "photo", *words, "--workers", 2, "--out", tmp_path / "runs")
    last = err.splitlines()[-1]
    assert status == 2 and "mine.py, line 7: KeyError: 'modell')" in last and last.endswith(HINT)


@pytest.mark.parametrize("code", [AT_A_SITE, AT_THE_SERVER])
def test_in_a_bench_the_other_methods_are_run(code, plugin, call, tmp_path):
    grid = ["--set", "bench.methods=['mine', 'fedavg']", "--set", "target=photo", "--jobs", 1, "--workers", 1]
    status, out, err = call("bench", *plugin(code), *grid, "--out", tmp_path / "runs")
    last = err.splitlines()[-1]
    assert status == 2 and "error: 1 of 2 runs failed: mine, photo unseen, seed 0: " in last and last.endswith(HINT)
    assert "KeyError: 'modell'" in last and "Traceback" not in err and "fedavg" in out.split("average")[1]
    reason = json.loads((tmp_path / "runs" / "mine" / "photo" / "seed-0" / "failure.json").read_text())["error"]
    assert "mine.py, line " in reason and "TRACEBACK" not in reason


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def mine(optimizer):\n    fedavg()\nregister('methods', 'mine', mine)\n", "returned None, not a Method"),
        ("def mine():\n    return fedavg\nregister('methods', 'mine', mine)\n", "returned a function, not a Method"),
        ("register('methods', 'mine', fedavg())\n", "which cannot be called; give a function"),
    ],
)
def test_a_factory_that_returns_no_method_is_a_line(code, message, plugin, call, tmp_path):
    status, _, err = call("run", "-m", "mine", "-t", "photo", *plugin(code), "--out", tmp_path / "runs")
    assert status == 2 and err.count("\n") == 1 and "method 'mine'" in err and message in err and HINT not in err


def test_a_wrapper_that_returns_no_method_is_a_line(plugin, call, tmp_path):
    words = plugin("def also(method):\n    replace(method)\nregister('wrappers', 'also', also)\n")
    status, _, err = call("run", "-m", "fedavg+also", "-t", "photo", *words, "--out", tmp_path / "runs")
    assert status == 2 and err.count("\n") == 1 and HINT not in err
    assert "wrapper 'also' in mine.py returned None, not a Method; end its function with return replace(" in err


def test_an_error_in_a_package_is_a_line_of_its_file(plugin, call, tmp_path, monkeypatch):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "__init__.py").write_text("from . import parts\n")
    (tmp_path / "ours" / "parts.py").write_text(HEAD + BUILDING)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--set", "plugins=['ours']", *SMALL]
    status, _, err = call("run", "-m", "mine", "-t", "photo", *words, "--out", tmp_path / "runs")
    assert status == 2 and err == f"error: parts.py, line 6: NameError: name 'optimiser' is not defined{HINT}\n"
    for name in ("ours", "ours.parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_an_installed_package_that_cannot_be_loaded_is_a_line(call, plugin, tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text(HEAD + AT_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    entries = {"methods": {"mine": "broken_package:mine"}}
    monkeypatch.setattr(registry, "installed", lambda group: entries.get(group, {}))
    status, _, err = call("run", "-m", "mine", "-t", "photo", *SMALL, "--out", tmp_path / "runs")
    assert status == 2 and "method 'mine' of the installed package broken_package cannot be loaded: " in err
    assert "broken_package.py, line 5: ZeroDivisionError: division by zero" in err and err.count("\n") == 1


def test_an_error_of_ours_keeps_its_traceback(call, tmp_path, monkeypatch):
    from fedbeyond.experiment import bench

    monkeypatch.setattr(bench, "prepare", lambda *given: {}["ours"])
    with pytest.raises(KeyError):
        call("run", "-t", "photo", *SMALL, "--out", tmp_path)


LONG = "x" * 256


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["run", "-t", "photo", "--out", LONG], "choose a shorter out folder"),
        (["run", "-t", "photo", "--out", f"runs/{'é' * 128}/a"], "choose a shorter out folder"),
        (["bench", "--out", LONG, "--set", "target=photo"], "choose a shorter out folder"),
        (["run", "-t", "photo", "-m", f"fedavg+rc(sizes=[{'1, ' * 150}1])"], "give the method fewer options"),
        (["report", LONG], "too long"),
        (["export", LONG], "too long"),
    ],
)
def test_a_name_that_no_file_can_have_is_a_line(words, remedy, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = call(*words, *(SMALL if words[0] in ("run", "bench") else []))
    assert status == 2 and err.startswith("error: ") and err.count("\n") == 1 and remedy in err
    assert not list(Path().iterdir())
