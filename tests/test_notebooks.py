"""The notebooks in examples/: they run, and print what is committed; and the Python API in a real kernel."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EMPTY = {"text/plain": ""}  # what is left of a progress display
PROGRESS = re.compile(r"^.+: [\d,]+ of [\d,]+, .+ left\n", re.MULTILINE)  # printed where an operation is slow
VARIES = "varies"  # tag of a cell whose output is not compared, such as a duration
MAX_BYTES = 300_000
START = "import sys; sys.path.insert(0, 'tests'); import fedbeyond as fb; from api.conftest import tiny; data = tiny()"
OPTIONS = "network='convnet(width=2)', batch_size=8"


def by_name(path):
    return path.stem


def texts(cell):
    """Return the texts that a cell shows, without progress; text of one stream that arrives in parts is joined."""
    streams, others = dict[str, str](), []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            streams[output.name] = streams.get(output.name, "") + output.text
        elif "text/plain" in output.get("data", {}) and output.data != EMPTY:
            others.append(output.data["text/plain"])
    streams = {name: PROGRESS.sub("", text) for name, text in streams.items()}
    return {name: text for name, text in streams.items() if text}, others


@pytest.fixture
def kernel_environment(monkeypatch, tmp_path):
    """Kernels import this checkout, in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")  # or jupyter_core warns
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_there_are_five_notebooks():
    names = ["hospitals", "new_method", "own_data_and_network", "quickstart", "real_federation"]
    assert [path.stem for path in NOTEBOOKS] == names
    page = (ROOT / "docs" / "examples.md").read_text()
    assert all(f"examples/{name}.ipynb" in page for name in names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_a_notebook_is_committed_with_outputs_and_without_traces_of_a_machine(path):
    text, notebook = path.read_text(), nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert len(text.encode()) < MAX_BYTES and notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"} and set(notebook.metadata.language_info) == {
        "name"
    }
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and {output.output_type for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert all(output.get("data") != EMPTY and output.get("name") != "stderr" for output in outputs)
    found = re.findall(r"/(?:tmp|home|root|work|Users|private)/\S*|file:/\S*|\bipykernel_\d+", text)
    assert not found, found


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.loopback] * (path.stem == "real_federation")) for path in NOTEBOOKS],
    ids=by_name,
)
def test_a_notebook_prints_what_is_committed(path, kernel_environment):
    committed, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    nbclient.NotebookClient(
        notebook, timeout=400, kernel_name="python3", resources={"metadata": {"path": str(kernel_environment)}}
    ).execute()
    for number, (before, now) in enumerate(zip(committed.cells, notebook.cells, strict=True)):
        if VARIES not in before.metadata.get("tags", ()):
            assert texts(now) == texts(before), f"cell {number}: {before.source}"


@pytest.fixture
def kernel(kernel_environment) -> Iterator[tuple[object, object]]:
    """A kernel with data of three sites: its manager and its client."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        shown(client, START)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def shown(client, code, when="", act=None):
    """Run code; call `act` once, when a text with `when` is displayed. Return what it displays, and what it prints."""
    displays, printed, acted = [], [], []

    def listen(message):
        content = message["content"]
        if message["msg_type"] in ("display_data", "update_display_data", "execute_result"):
            displays.append(content["data"]["text/plain"])
        elif message["msg_type"] == "stream":
            printed.append(content["text"])
        elif message["msg_type"] == "error":
            raise AssertionError("\n".join(content["traceback"]))
        if act and not acted and any(when in text for text in displays):
            acted.append(act())

    client.execute_interactive(code, timeout=120, output_hook=listen)
    assert not act or acted, displays
    return displays, "".join(printed)


@pytest.mark.slow
def test_an_interrupted_cell_leaves_a_run_that_is_continued(kernel):
    manager, client = kernel
    code = f"run = fb.run('fedavg+sha', data, target='west', rounds=400, {OPTIONS})"
    displays, _ = shown(client, code, "round 3 of 400", manager.interrupt_kernel)
    assert displays[1].startswith("fedavg+sha, west unseen, seed 0: round 1 of 400") and displays[-1] == ""
    assert re.search(r"stopped after round \d+ of 400; \.resume\(\)\s+continues", shown(client, "print(run)")[1])
    more = f"rounds = len(run.lines) + 2; whole = fb.run('fedavg+sha', data, target='west', rounds=rounds, {OPTIONS})"
    assert shown(client, f"{more}; print(run.resume(rounds=rounds).lines == whole.lines)")[1] == "True\n"


@pytest.mark.slow
def test_two_jobs_in_a_notebook_are_shown_interrupted_and_continued(kernel):
    manager, client = kernel
    options = f"targets='west', seeds=2, rounds=60, {OPTIONS}"
    call = f"fb.compare(['fedavg', 'fedprox', 'fedavgm'], data, {options}"
    displays, _ = shown(client, f"table = {call}, jobs=2)", "round", manager.interrupt_kernel)
    state = "import multiprocessing; print(table.finished, multiprocessing.active_children())"
    assert displays[-1] == "" and shown(client, state)[1] == "False []\n"
    displays, printed = shown(client, "print(table.resume().finished)")
    assert printed == "True\n" and displays[-1] == ""
    assert any(re.match(r"[1-5] of 6 runs done; fed", text) for text in displays)
    assert shown(client, f"print([run.lines for run in table] == [run.lines for run in {call})])")[1] == "True\n"
