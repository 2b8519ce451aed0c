"""One self-contained HTML page: the answer, the table, figures, what left each site, how it was run, what to cite."""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from .. import __version__
from ..evaluation import cautions
from ..evaluation.selection import Line
from ..spec import POOLED
from . import beside, cite, cost, gallery, statistics
from .beside import Beside
from .figure import Figure, themed
from .gallery import Shown
from .made import class_names, made, settings, versions
from .table import Table, csv, rows, runs, usual

ASIDE = 200  # rows of replies set aside


def page(
    lines: list[Line],
    table: Table,
    both: Beside | None = None,
    baseline: str | None = None,
    times: Sequence[Line] = (),
    folders: Sequence[Path] = (),
    figures: Sequence[Figure] | None = None,
) -> str:
    """The page of all finished runs, perhaps with a paper's numbers beside them; `folders` are those of the runs."""
    baseline = baseline or usual(table)
    every = [run for key, run in runs(lines).items() if key[0] in table.methods]
    origin = made(folders)
    if figures is None:
        figures = gallery.figures(lines, table, baseline, class_names(origin.configs))
    references, unknown = cite.references(table.methods)
    script = _part("page.js")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["breakable"] = breakable
    return environment.from_string(_part("page.html")).render(
        style=Markup(_part("page.css")),
        script=Markup(script),
        # nothing is loaded from anywhere, and no other script than ours runs, whatever a figure's file holds
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        table=table,
        facts=facts(table),
        rows=rows(table),
        numbers=link(csv(table), "text/csv"),
        both=both,
        pairs=beside.rows(both) if both else [],
        answer=answer(table, baseline),
        warnings=cautions.of_runs(table.picked, class_names(origin.configs)),
        baseline=baseline,
        differences=statistics.rows(table, baseline) if len(table.methods) > 1 else [],
        about=statistics.caption(table, baseline),
        figures=cards([*map(gallery.shown, figures), *gallery.kept(folders)]),
        ledger=ledger(every, table),
        pooled=list(dict.fromkeys(run[0]["method"] for run in every if POOLED in run[0]["left"])),
        costs=cost.rows([line for run in every for line in run], times),
        about_costs=cost.CAPTION,
        sites=cost.by_site([line for run in every for line in run]),
        about_sites=cost.BY_SITE,
        aside=aside(every)[:ASIDE],
        digests=Counter(run[0]["setting"] for run in every),
        settings=settings(origin.configs),
        versions=versions(origin.machines),
        configs=link(json.dumps(origin.configs, indent=1), "application/json") if origin.configs else "",
        references=references,
        unknown=unknown,
        ours=cite.OURS,
        version=__version__,
    )


def answer(table: Table, baseline: str) -> str:
    """What the table says, in a sentence, with its uncertainty."""
    found = statistics.differences(table, baseline) if len(table.methods) > 1 else []
    if not found:
        return "One method alone has finished runs: there is nothing to compare yet."
    less = table.metric == "calibration_error"
    best = min(found, key=lambda one: one.mean) if less else max(found, key=lambda one: one.mean)
    gain = -best.mean if less else best.mean
    over = f"over {best.pairs} run{'s' if best.pairs > 1 else ''} of each"
    if gain <= 0:
        return f"On the unseen domain, no method is better than {baseline} on average ({over})."
    within = f" ± {best.spread:.1f}" if best.pairs > 1 else ""
    text = f"On the unseen domain, {best.method} is better than {baseline} by {gain:.1f}{within} points {over}"
    if best.pairs < 2:
        return text + ". One run says nothing about chance."
    sure = f"p = {statistics.chance(best.t)}".replace("= <", "<")
    verdict = "more than chance" if best.t < 0.05 else "which may well be chance"
    return f"{text}: {verdict} ({sure}, paired t-test, corrected for {len(found)} comparisons)."


def facts(table: Table) -> list[tuple[str, str]]:
    """How much there is behind the answer."""
    finished = {(method, line["target"], seed) for (method, _, seed), line in table.picked.items()}
    rounds = sorted({line["rounds"] for line in table.picked.values()})
    return [
        ("methods", str(len(table.methods))),
        ("unseen domains", str(len(table.targets))),
        ("seeds", str(len(table.seeds))),
        ("finished runs", str(len(finished))),
        ("rounds", " or ".join(map(str, rounds)) or "-"),
    ]


def cards(found: Sequence[Shown]) -> list[dict[str, Any]]:
    """Figures as the page shows them: drawn in its colours, named for those who cannot see them, and to take along."""
    ready, taken = [], Counter[str]()
    for one in found:
        taken[one.name] += 1
        name = one.name if taken[one.name] == 1 else f"{one.name}-{taken[one.name]}"
        said = f'<svg role="img" aria-label="{escape(one.title)}. {escape(one.caption)}"'
        if wide := re.search(r'viewBox="\S+ \S+ (\d+)', one.svg):  # on a small screen one scrolls: words stay readable
            said += f' style="min-width: {wide[1]}px"'
        ready.append(
            {
                "name": name,
                "title": one.title,
                "caption": one.caption.rstrip("."),
                "svg": Markup(themed(one.svg, name).replace("<svg", said, 1)),
                "drawn": link(one.svg, "image/svg+xml"),
                "numbers": link(one.csv, "text/csv"),
            }
        )
    return ready


def breakable(text: str) -> Markup:
    """A spelling that may go on in the next line between its parts and options."""
    return Markup(re.sub(r"(?<=\()|(?=\+)", "<wbr>", escape(text)))


def link(content: str, kind: str) -> str:
    """A file inside the page, which a browser saves without asking anyone."""
    return f"data:{kind};base64,{base64.b64encode(content.encode()).decode()}"


def ledger(every: Sequence[Sequence[Line]], table: Table) -> list[tuple[str, str, str, int]]:
    """What leaves a site in a round, at most, under each method."""
    book: dict[tuple[str, str, str], int] = {}
    for run in every:
        for line in run:
            for kinds in line["left"].values():
                for kind, names in kinds.items():
                    for name, size in names.items():
                        key = (line["method"], kind, name)
                        book[key] = max(size, book.get(key, 0))
    return [(*key, size) for key, size in sorted(book.items(), key=lambda item: table.methods.index(item[0][0]))]


def aside(every: Sequence[Sequence[Line]]) -> list[tuple[str, str, str, int]]:
    """Replies that were not used, and why; how often."""
    entries = (
        (line["method"], entry["site"], entry["reason"]) for run in every for line in run for entry in line["aside"]
    )
    return [(*key, count) for key, count in Counter(entries).most_common()]


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
