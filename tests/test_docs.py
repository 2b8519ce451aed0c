"""The documentation as readers use it: its Python runs, its commands exist, its site loads nothing from other hosts."""

import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from textwrap import dedent
from types import SimpleNamespace
from typing import Annotated, Literal
from unittest.mock import patch

import click
import pytest
import typer.main
from pydantic import Field

import fedbeyond
from fedbeyond import methods, wrappers
from fedbeyond.cli.main import app
from fedbeyond.experiment import registry
from support.paths import ROOT
from support.snippet import smaller, snippet

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "decisions"]  # these are history
BLOCK = re.compile(r"(?P<mark><!-- not run: [^>]+ -->\n+)?^ *```(?P<language>\w+)\n(?P<code>.*?)^ *```", re.S | re.M)
SHELL = ("console", "bash", "sh")


def blocks(text, *languages):
    """The code blocks of a page, except those that are marked with a reason not to run them."""
    found = [match for match in BLOCK.finditer(text) if match["language"] in languages]
    return [dedent(match["code"]) for match in found if not match["mark"]]


def commands(code):
    """The words of each fedbeyond command after a prompt, without comments; `a; b` and `(cd x && a)` are several."""
    for line in re.findall(r"^\$ (.*)$", code.replace("\\\n", " "), re.M):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
        lexer.whitespace_split = True
        for is_command, words in groupby(lexer, lambda word: not set(word) <= set(";&|()")):
            bare = re.sub(r"^(time )?(\w+=\S* )*(python -m )?", "", shlex.join(words) if is_command else "")
            if bare.startswith("fedbeyond "):
                yield shlex.split(bare)[1:]


def parse(words):
    """Parse a command as the command line does, and run nothing."""
    command, words = typer.main.get_command(app), list(words)
    while isinstance(command, click.Group):
        name = words.pop(0)
        command = command.commands.get(name) or pytest.fail(f"there is no command {name!r}")
    return command.make_context(command.name, words)


PYTHON = [page for page in PAGES if blocks(page.read_text(), "python")]
COMMANDS = [
    (page.relative_to(ROOT).as_posix(), words)
    for page in PAGES
    for block in blocks(page.read_text(), *SHELL)
    for words in commands(block)
]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name == "README.md" else ()) for page in PYTHON],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": page.stem.replace("-", "_")}
    with patch.dict(registry.REGISTRY["methods"]):
        for block in blocks(page.read_text(), "python"):
            exec(compile(smaller(block), page.name, "exec"), scope)


def test_the_snippet_of_the_readme_is_the_one_that_runs():
    assert "share=0.1" in snippet() and "to_pandas" not in snippet(pandas=False)


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_the_commands_of_a_page_exist_with_their_options(page, words):
    parse(words)


def test_blocks_and_commands_are_found_and_faults_in_them_seen():
    assert {"add-a-method.md", "data.md", "running.md"} <= {page.name for page in PYTHON} and len(COMMANDS) > 40
    page = (
        "```python\na\n```\n\n<!-- not run: needs a GPU -->\n```python\nb\n```\n- c\n\n    ```python\n    c\n    ```\n"
    )
    assert blocks(page, "python") == ["a\n", "c\n"]
    shell = (
        "$ fedbeyond run a.toml \\\n    -t b  # c\nrun 1\n$ time (cd x && A=1 python -m fedbeyond list 'd e'); make f\n"
    )
    assert list(commands(shell)) == [["run", "a.toml", "-t", "b"], ["list", "d e"]]
    with pytest.raises(click.NoSuchOption):
        parse(["run", "--methods", "fedavg"])
    with pytest.raises(pytest.fail.Exception, match="no command 'runs'"):
        parse(["runs"])


@pytest.fixture(scope="module")
def hooks():
    spec = spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    spec.loader.exec_module(module := module_from_spec(spec))
    return module


def test_links_that_leave_the_docs_lead_to_the_repository(hooks):
    def rewritten(text, page="decisions/0001-method-strings.md"):
        return hooks.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=page)), None, None)

    source = "https://github.com/fedbeyond/fedbeyond"
    assert rewritten("[a](../../README.md#b)") == f"[a]({source}/blob/main/README.md#b)"
    assert rewritten("[a](../benchmarks/speed/)", "speed.md") == f"[a]({source}/tree/main/benchmarks/speed)"
    assert rewritten("[a](decisions/)", "index.md") == "[a](decisions/index.md)"
    for link in ("[a](../running.md#b)", "[a](https://example.org/x)", "[a](#b)"):
        assert rewritten(link) == link


def test_the_reference_says_the_type_bounds_and_meaning_of_an_option(hooks):
    assert hooks.kind(Annotated[float, Field(ge=0, lt=1)]) == "float ≥ 0, < 1"
    assert hooks.kind(Annotated[int, Field(gt=0)] | None) == "int > 0 or `none`"
    assert hooks.kind(Literal["size", "uniform"]) == "`size` or `uniform`"
    assert hooks.kind(tuple[str | float, ...]) == "list of str or float"

    def factory(step: Annotated[float, Field(gt=0), "length of a step"] = 0.5): ...

    assert list(hooks.options(factory))[-1] == "| `step` | float > 0 | `0.5` | length of a step |"


class Loaded(HTMLParser):
    """What a browser loads from other hosts for a page; links that a reader follows are not loaded."""

    def __init__(self, page):
        super().__init__()
        self.addresses = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "srcset", "data", "poster") or (name, tag) in (("href", "link"), ("href", "use")):
                self.addresses += re.findall(r"(?:https?:)?//[^\s,]+", value or "")


def test_a_page_that_loads_something_from_another_host_would_be_seen():
    page = (
        '<a href="https://a.b">x</a><script src="//c.d/e.js"></script><link href="https://f.g/h.css"><img src="i.png">'
    )
    assert Loaded(page).addresses == ["//c.d/e.js", "https://f.g/h.css"]


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_other_hosts(tmp_path):
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        call, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) > 90
    assert {name: found for name, page in pages.items() if (found := Loaded(page).addresses)} == {}
    for path in tmp_path.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text()), path
    assert not list(tmp_path.rglob("*.py"))
    for name in (*methods.PLACES, *wrappers.PLACES):
        assert f'id="fedbeyond.{name}"' in pages["api/methods/index.html"] + pages["api/wrappers/index.html"]
    for group in ("datasets", "networks"):
        for name in getattr(fedbeyond, group).PLACES:
            assert f'id="fedbeyond.{group}.{name}"' in pages[f"api/{group}/index.html"]
    for name in ("Method", "Dataset", "Task", "Classifier", "method"):
        assert f'id="fedbeyond.{name}"' in pages["api/fedbeyond/index.html"]
