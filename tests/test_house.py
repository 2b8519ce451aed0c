"""The house rules that a machine can check: modules stay small, imports form no cycle, docs say what the code does."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from fedbeyond import _factory
from fedbeyond.experiment import registry
from fedbeyond.spec import format_value
from support.paths import ROOT, SOURCE

MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """The modules of ours that a module needs when it is imported."""
    names = {name_of(module) for module in MODULES}
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in names else base)
    return found & names - {name_of(path)}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_one_idea_of_at_most_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def test_imports_form_no_cycle():
    graph = {name_of(path): imports(path) - {"fedbeyond"} for path in MODULES}
    assert list(TopologicalSorter(graph).static_order())


def test_a_cycle_would_be_found():
    graph = {name_of(path): imports(path) - {"fedbeyond"} for path in MODULES}
    assert "fedbeyond.server" in graph["fedbeyond.client"]
    with pytest.raises(CycleError):
        list(TopologicalSorter({**graph, "fedbeyond.tree": {"fedbeyond.client"}}).static_order())


def test_scaffold_reads_in_one_file_of_at_most_60_lines():
    assert len((SOURCE / "methods" / "scaffold.py").read_text().splitlines()) <= 60


def test_play_fits_one_screen():
    tree = ast.parse((SOURCE / "engine" / "rounds.py").read_text())
    (play,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "play")
    assert play.end_lineno - play.lineno < 30


def test_nothing_is_unpickled_and_no_device_is_assumed():
    unsafe = r"pickle|torch\.load(?!\([^()]*weights_only=True\))|\.cuda\(\)|eval\(input|verify=False"
    for path in MODULES:
        assert not re.search(unsafe, path.read_text()), path
    assert re.search(unsafe, "torch.load(path)") and re.search(unsafe, "torch.load(path, weights_only=False)")


PARTS = [("methods", name) for name in registry.REGISTRY["methods"]] + [
    ("wrappers", n) for n in registry.REGISTRY["wrappers"]
]


@pytest.mark.parametrize(("group", "name"), PARTS)
def test_a_methods_page_says_what_leaves_the_site_and_how_it_deviates(group, name):
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    rows = re.findall(
        r"^\| (\w+) \| (\w+) \| ([\w-]+) \|$", page.split("## What leaves the site")[1].split("\n## ")[0], re.M
    )
    method = registry.build(name if group == "methods" else f"fedavg+{name}")
    bare = {} if group == "methods" else registry.build("fedavg").sends["train"]
    declared = {
        (kind, key, sent.kind) for kind, names in method.sends.items() for key, sent in names.items() if key not in bare
    }
    assert {row for row in rows if row[0] != "request"} == declared
    assert "## Deviations\n\n- " in page and "## Rule" in page and "## How to cite" in page


@pytest.mark.parametrize(("group", "name"), PARTS)
def test_a_methods_page_gives_the_defaults_and_presets_of_every_option(group, name):
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    factory = registry.find(group, name)
    presets = _factory.presets(factory)
    for option, parameter in _factory.options(factory).items():
        if option == "method":
            continue
        row = re.search(rf"^\| {option}\b[^|]*\| (.*) \|$", page, re.M)
        assert row, f"{option} is not on the page"
        head = re.search(r"^\| option \| (.*) \|$", page, re.M)
        told = dict(zip(head[1].split(" | "), row[1].split(" | "), strict=True))
        for preset, options in presets.items():
            value = options.get(option, parameter.default)
            assert told[preset] == (f"{value:g}" if isinstance(value, float) else format_value(value))


def test_add_a_method_is_a_complete_method_in_under_30_lines(tmp_path):
    text = (ROOT / "docs" / "add-a-method.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    body = re.sub(r'^""".*?"""\n', "", code, flags=re.S)
    assert len([line for line in body.splitlines() if line.strip()]) < 30
    (tmp_path / "heavyball.py").write_text(code)
    command = re.search(r"^\$ fedbeyond (run .*)$", text, re.M)[1]
    words = re.findall(r"'[^']*'|\S+", command)
    small = ["--set", "data=styles(share=0.03)", "--set", "train.rounds=1", "--set", "network=convnet(width=2)"]
    call = [sys.executable, "-m", "fedbeyond", *(word.strip("'") for word in words), *small]
    ended = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "heavyball(momentum=0.5)+ga, sketch unseen" in ended.stdout, ended.stderr


def test_every_link_and_picture_in_the_docs_exists():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("name", ["audit.md", "threat-model.md"])
def test_every_test_that_a_page_names_is_there(name):
    page, file = (ROOT / "docs" / name).read_text(), ""
    named = re.findall(r"`([\w/]*test_\w+\.py)?(?:::(\w+))?`", page)
    assert len(named) > 20
    for other, test in named:
        file = other or file
        assert (ROOT / "tests" / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"


def test_every_line_of_the_threat_model_has_a_test():
    page = (ROOT / "docs" / "threat-model.md").read_text()
    rows = [
        row
        for table in re.findall(r"^\|[^\n]*\| test \|\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.M)
        for row in table.splitlines()
    ]
    assert len(rows) > 20 and all(re.search(r"test_\w+\.py", row.rpartition(" | ")[2]) for row in rows)


def test_the_configuration_in_the_docs_can_be_read(tmp_path):
    from fedbeyond.experiment.config import load

    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "running.md").read_text(), re.S)
    (tmp_path / "run.toml").write_text(block)
    assert load(tmp_path / "run.toml").method == "fedprox(mu=0.1)+ga"


RECIPES = sorted(ROOT.glob("benchmarks/papers/*/*.toml"))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_recipe_can_be_planned_without_its_data(path, monkeypatch, tmp_path):
    from fedbeyond.experiment.config import load
    from fedbeyond.experiment.plan import plan

    monkeypatch.chdir(tmp_path)
    config = load(path)
    told = plan(config)
    assert "data: not found" in told
    assert all(f"\n{method}: " in told for method in config.bench.methods)


def test_benchmarks_can_be_planned():
    from fedbeyond.experiment.config import load

    for path in sorted(ROOT.glob("benchmarks/*.toml")):
        for method in load(path).bench.methods:
            registry.build(method)
