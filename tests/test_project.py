"""What surrounds the package: metadata, citation, hooks before a commit, hosted CI and forms agree with each other."""

import ast
import re
import sys
import tomllib

import pytest
import yaml  # comes with Ray

import fedbeyond
from support.paths import ROOT, SOURCE

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def read(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_the_citation_names_the_version_licence_authors_and_address_of_the_package():
    citation = read("CITATION.cff")
    assert citation["version"] == fedbeyond.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    released = re.search(
        rf"^## \[{re.escape(fedbeyond.__version__)}\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert str(citation["date-released"]) == released[1]


def test_ci_runs_the_python_versions_that_the_package_claims():
    classifiers = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == classifiers
    assert PROJECT["requires-python"] == f">={classifiers[0]}"


def test_the_package_says_that_it_has_types():
    assert (SOURCE / "py.typed").exists() and "Typing :: Typed" in PROJECT["classifiers"]


def test_hooks_before_a_commit_are_the_tools_of_make_test_and_download_nothing():
    (local,) = read(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text()
    for hook in local["hooks"]:
        venv, _, tool = hook["entry"].partition("/bin/")
        assert (venv, hook["language"]) == (".venv", "system") and f"$(BIN)/{tool}" in makefile


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_has_what_the_host_requires(path):
    form = read(path)
    assert form["name"] and form["description"] and form["body"]
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)
    assert all(field["attributes"]["label"] for field in form["body"])


NAMES = {"PIL": "pillow", "sklearn": "scikit-learn"}  # of distributions whose modules have another name
FOUND_THERE = {"IPython", "pandas"}  # used only where a notebook runs, or where the user asks for a data frame


def third_party(text):
    """The modules of others that a text imports, and whether it can do without: in a function, a try or for types."""

    def visit(node, optional):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], optional) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0], optional
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try)
        lazy |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, optional or lazy)

    return {(name, opt) for name, opt in visit(ast.parse(text), False) if name not in sys.stdlib_module_names}


def distribution(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def needed(module):
    return NAMES.get(module, module.lower().replace("_", "-"))


REQUIRED = {distribution(line) for line in PROJECT["dependencies"]}
EXTRAS = {name: {distribution(line) for line in lines} for name, lines in PROJECT["optional-dependencies"].items()}
OPTIONAL = set.union(*(names for extra, names in EXTRAS.items() if extra not in ("dev", "docs")))


def undeclared(path, text):
    """The modules that a file imports and the package does not ask for, or does not always ask for."""
    started_by_flower = path.parent == SOURCE / "flower" and path.name in ("superexec.py", "run_status.py")
    for module, lazy in sorted(third_party(text) - {("fedbeyond", True), ("fedbeyond", False)}):
        is_optional = needed(module) in OPTIONAL or module in FOUND_THERE
        if needed(module) not in REQUIRED and not (is_optional and (lazy or started_by_flower)):
            yield module


def test_every_module_of_others_that_is_imported_is_declared():
    for path in sorted(SOURCE.rglob("*.py")):
        assert not list(undeclared(path, path.read_text())), path


def test_an_import_that_is_not_declared_would_be_noticed():
    text = "import torch, yaml\nfrom h5py import File\ndef f():\n    import flwr, httpx\n"
    assert list(undeclared(SOURCE / "tree.py", text)) == ["h5py", "httpx", "yaml"]


def test_an_extra_has_what_its_room_imports():
    """A message says `pip install 'fedbeyond[flower]'` where a module is missing."""
    rooms = {"flwr": "flower", "cryptography": "flower", "h5py": "data", "onnx": "onnx", "onnxruntime": "onnx"}
    rooms |= {"ray": "ray", "pyinstrument": "profile", "dp_accounting": "privacy"}
    imported = {name for path in SOURCE.rglob("*.py") for name, _ in third_party(path.read_text())}
    optional = {name for name in imported - FOUND_THERE - {"fedbeyond"} if needed(name) not in REQUIRED}
    assert optional == rooms.keys() and all(needed(name) in EXTRAS[extra] for name, extra in rooms.items())


def test_constraints_name_a_version_of_everything_that_is_declared():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {line.partition("==")[0] for line in lines if "==" in line}
    assert tested | {"timm", "torchvision"} >= REQUIRED | OPTIONAL  # no wheel of these two fits the CPU's torch
