"""What MkDocs asks while it builds the site: pages of the API, a list of decisions, and links that leave docs/.

Pages of the API are made from the package, so that they list what it has. Nothing of them is a file of the repository.
"""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import fedbeyond
from fedbeyond import _factory, methods, wrappers
from fedbeyond.spec import format_value

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
AUTHORS = (
    "tree",
    "losses",
    "client",
    "server",
    "optimizers",
    "batch",
    "site",
)  # the vocabulary, for authors of methods
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each `folder/*` of the navigation by the pages of the folder, and link to the repository."""
    config.nav = expanded(config.nav)
    config.extra["social"] = [{"icon": "fontawesome/brands/github", "link": SOURCE, "name": "Source"}]
    return config


def expanded(entry: Any) -> Any:
    """Return an entry of the navigation with each `folder/*` replaced by the pages of the folder, sorted by name."""
    if isinstance(entry, dict):
        return {title: expanded(inner) for title, inner in entry.items()}
    if not isinstance(entry, list):
        return entry
    stars = {each: each.removesuffix("*") for each in entry if isinstance(each, str) and each.endswith("/*")}
    pages = [*(path.relative_to(DOCS).as_posix() for path in sorted(DOCS.glob("**/*.md"))), *generated()]
    nested = [[p for p in pages if p.startswith(stars[e])] if isinstance(e, str) and e in stars else [e] for e in entry]
    return [expanded(each) for group in nested for each in group]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside docs/ at the repository, and links to a folder of docs/ at its list of pages."""
    folder = (DOCS / page.file.src_uri).parent

    def resolved(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(DOCS):
            return f"{link[1]}{link[2].rstrip('/')}/index.md{link[3]}" if target.is_dir() else link[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{link[1]}{SOURCE}/{kind}/main/{target.relative_to(ROOT).as_posix()}{link[3]}"

    return LINK.sub(resolved, markdown)


def generated() -> dict[str, str]:
    """Return the text of every page that is made from the package, by its path in docs/."""
    top = _factories()
    optimizers = {name for name, place in top.items() if place.startswith("fedbeyond.optimizers:")}
    return {
        "api/fedbeyond.md": directives("Python API", "import fedbeyond as fb", "fedbeyond", public()),
        "api/datasets.md": factories("Datasets", fedbeyond.datasets, fedbeyond.datasets.PLACES)
        + "\n\n".join(["", *(f"::: fedbeyond.datasets.{name}" for name in fedbeyond.datasets.OWN), ""]),
        "api/networks.md": factories("Networks", fedbeyond.networks, fedbeyond.networks.PLACES)
        + "\n\n".join(["", *(f"::: fedbeyond.networks.{name}" for name in fedbeyond.networks.OWN), ""]),
        "api/methods.md": factories("Methods", fedbeyond, methods.PLACES),
        "api/wrappers.md": factories("Wrappers", fedbeyond, wrappers.PLACES),
        "api/optimizers.md": factories("Optimizers", fedbeyond, {n: p for n, p in top.items() if n in optimizers}),
        "api/testing.md": directives("Testing", "fedbeyond.testing", "fedbeyond.testing", fedbeyond.testing.__all__),
        "api/authors.md": directives("For authors of methods", "modules of fedbeyond", "fedbeyond", AUTHORS),
        "decisions/index.md": decisions(),
    }


def _factories() -> dict[str, str]:
    return fedbeyond._factories()  # methods, wrappers and optimizers, which are names of the package itself


def public() -> list[str]:
    """Return the classes and functions of the package that are neither modules nor factories."""
    things = {name: getattr(fedbeyond, name) for name in fedbeyond.__all__ if name not in _factories()}
    names = [name for name, thing in things.items() if callable(thing) and not isinstance(thing, ModuleType)]
    return sorted(names, key=lambda name: (isinstance(things[name], type), name != "run", name))  # functions first


def decisions() -> str:
    """Return a page that lists the decisions by their titles."""
    titles = {path.name: path.read_text().partition("\n")[0] for path in sorted(DOCS.glob("decisions/0*.md"))}
    rows = [f"- [{title.removeprefix('# ')}]({name})" for name, title in titles.items()]
    return "\n".join(
        ["# Decisions", "", "The reasons for the design, in the order in which it was decided.", "", *rows, ""]
    )


def directives(title: str, about: str, module: str, names: Any) -> str:
    """Return a page with what mkdocstrings reads from the source of each name."""
    return "\n\n".join([f"# {title}", f"`{about}`", *(f"::: {module}.{name}" for name in names)]) + "\n"


def factories(title: str, module: ModuleType, places: Mapping[str, str]) -> str:
    """Return a page with signature, description and options of each factory, as users call it."""
    sections = [part for name in places for part in section(module, name, getattr(module, name))]
    return "\n\n".join([f"# {title}", *sections]) + "\n"


def section(module: ModuleType, name: str, factory: Callable[..., Any]) -> Iterator[str]:
    """Yield the paragraphs that describe a factory."""
    yield f"## `{name}` {{ #{module.__name__}.{name} }}"
    parameters = inspect.signature(factory).parameters.values()
    given = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    short = ", ".join(given)
    inner = short if len(short) < 70 else "\n    " + ",\n    ".join(given) + ",\n"
    yield f"```python\n{module.__name__}.{name}({inner})\n```"
    yield inspect.getdoc(factory) or ""
    if table := "\n".join(options(factory)):
        yield table
    if (DOCS / "methods" / f"{name}.md").exists() and module is fedbeyond:
        yield f"Equations, what leaves a site, deviations from the paper: [{name}](../methods/{name}.md)."


def options(factory: Callable[..., Any]) -> Iterator[str]:
    """Yield the rows of a table: each option with its type, its value in each preset and its meaning."""
    presets = _factory.presets(factory)
    settable = _factory.options(factory)
    settable.pop("preset", None)
    if not settable:
        return
    described = any(meaning(parameter.annotation) for parameter in settable.values())
    yield "| option | type | " + " | ".join(presets) + (" | meaning |" if described else " |")
    yield "|---" * (2 + len(presets) + described) + "|"
    for name, parameter in settable.items():
        values = [code(given.get(name, parameter.default)) for given in presets.values()]
        cells = [
            f"`{name}`",
            kind(parameter.annotation),
            *values,
            *([meaning(parameter.annotation)] if described else []),
        ]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def code(value: Any) -> str:
    """Return a value as it is written in a spec, as code; nothing for an empty text."""
    return f"`{format_value(value)}`" if value not in ("", ()) else ""


def meaning(annotation: Any) -> str:
    """Return the sentence with which an option is annotated, as in Annotated[float, "the step size"]."""
    return " ".join(each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, str))


def kind(annotation: Any) -> str:
    """Return a type in words: float ≥ 0, < 1; size or uniform; int > 0 or none."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marks = [bound for each in inside[1:] for bound in getattr(each, "metadata", [each])]
        bounds = [f"{sign} {getattr(each, key)}" for each in marks for key, sign in SIGNS.items() if hasattr(each, key)]
        return " ".join([kind(inside[0]), ", ".join(bounds)]).strip()
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inside)
    if origin in (Union, UnionType):
        return " or ".join(kind(each) for each in inside)
    if inside:
        return f"list of {kind(inside[0])}"
    return {type(None): "`none`", inspect.Parameter.empty: ""}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )
