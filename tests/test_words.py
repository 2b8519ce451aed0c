"""The field's words: no name, key or sentence of the old dialect, and a tree that the documentation shows as it is."""

import ast
import io
import re
import tokenize
from dataclasses import fields
from pathlib import Path

import pytest

from fedbeyond import Method
from fedbeyond.client import Client
from support import architecture
from support.paths import ROOT, SOURCE

MODULES = sorted(SOURCE.rglob("*.py"))
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")), *sorted(ROOT.glob("docs/**/*.md"))]

# names, keys and options of DESIGN.md's table that no longer occur in any meaning
GONE = {
    *(
        "told",
        "aside",
        "own_test",
        "own_images",
        "chances",
        "most_rounds",
        "least_images",
        "most_epsilon",
        "most_delta",
    ),
    *("Post", "minutes", "slots", "stepper", "Carrier", "Lines", "Charter", "Letter", "letter", "letters"),
    *("Shelf", "shelf", "SHELVES", "Crew", "crew", "hearing", "judging", "judged", "seal", "heard"),
}
EXCEPTIONS = {
    "minutes": {"flower/deploy/certificates.py", "experiment/remaining.py"},  # of time
    "Shelf": {"data/datasets/_benchmarks.py"},  # a class of OfficeHome
}
KEYS = {"left", "down", "kept"}  # ordinary words, but no longer keys of results
MODULE_NAMES = {
    "hearing",
    "judging",
    "setting",
    "machine",
    "trial",
    "shelf",
    "crew",
    "letters",
    "stopwatch",
    "spelling",
}
DIALECT = re.compile(r"\b(told|mend|mends|mended|mending|chances|letters?|heard)\b", re.I)
HONEST = re.compile(  # letters of the alphabet
    r"letters(, digits| and digits| in)|(capital|upper-?case|lower-?case) letters|first letter|to the letter",
    re.I,
)


def identifiers(tree: ast.AST):
    """Yield every name, attribute, argument, keyword, definition and string that could be a key."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def keys(tree: ast.AST):
    """Yield strings that are used as keys: of a dict, a subscript or `get`."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Dict):
            found = node.keys
        elif isinstance(node, ast.Subscript):
            found = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            found = node.args[:1]
        yield from (key.value for key in found if isinstance(key, ast.Constant) and isinstance(key.value, str))


def prose(path: Path):
    """Yield the comments and strings of a module, or the lines of a page, with their line numbers."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield token.start[0], token.string


def old_words(path: Path) -> list[str]:
    return [f"{n}: {text.strip()[:100]}" for n, text in prose(path) if DIALECT.search(HONEST.sub("", text))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_identifier_or_key_of_the_old_table_is_left(path):
    tree, name = ast.parse(path.read_text("utf-8")), path.relative_to(SOURCE).as_posix()
    allowed = {word for word, files in EXCEPTIONS.items() if name in files}
    assert [(word, line) for word, line in identifiers(tree) if word in GONE - allowed] == []
    assert [key for key in keys(tree) if key in KEYS] == []
    assert path.stem not in MODULE_NAMES


def test_the_check_of_identifiers_sees_names_keys_arguments_and_attributes():
    tree = ast.parse("def told(aside, *, minutes=1):\n    return shelf.slots[{'own_test': line['left']}]")
    assert {"told", "aside", "minutes", "shelf", "slots", "own_test"} <= {word for word, _ in identifiers(tree)}
    assert {"own_test", "left"} <= set(keys(tree))


def test_methods_and_clients_have_the_fields_of_the_new_table():
    names = {field.name for field in fields(Method)}
    assert {"linear_aggregation", "min_clients", "eval_models"} <= names and not names & {"sums", "least", "judged"}
    assert "postprocess" in Client._fields


@pytest.mark.parametrize("path", [*MODULES, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_prose_is_in_the_old_dialect(path):
    assert old_words(path) == []


def test_the_check_of_prose_sees_comments_strings_and_pages(tmp_path):
    module, page = tmp_path / "module.py", tmp_path / "page.md"
    module.write_text('x = f"{1} is told"  # mend it\ny = "names have letters, digits and -"\n')
    page.write_text("fine\nchances of a letter\n")
    assert len(old_words(module)) == 2 and len(old_words(page)) == 1


def test_the_tree_in_the_documentation_is_the_real_one():
    found = architecture.BLOCK.search(architecture.PAGE.read_text())
    assert found and found[0] == architecture.block(), "python tests/support/architecture.py"


def test_every_file_that_the_architecture_page_names_is_there():
    page = architecture.PAGE.read_text().split("## The tree")[0]
    named = re.findall(r"`([\w/]+\.py)`", page)
    assert len(named) > 25
    for name in named:
        assert (
            any(module.as_posix().endswith(f"fedbeyond/{name}") for module in MODULES)
            or (ROOT / name).exists()
            or list(SOURCE.rglob(name))
        ), name


def test_no_exported_function_shares_its_dotted_path_with_a_module():
    from fedbeyond.experiment.registry import REGISTRY

    modules = {path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".") for path in MODULES}
    for group in ("networks", "datasets"):
        room = {"networks": "fedbeyond.networks", "datasets": "fedbeyond.data.datasets"}[group]
        assert not {f"{room}.{name}" for name in REGISTRY[group]} & modules
