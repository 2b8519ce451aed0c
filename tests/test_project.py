"""What surrounds the package: metadata, citation, hooks before a commit, hosted CI and forms agree with each other."""

import re
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
