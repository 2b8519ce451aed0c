"""One self-contained HTML page: answer, table, figures, what left each site, configuration, citations."""

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
from . import cite, cost, gallery, paper_comparison, provenance, statistics
from .figure import Figure, themed
from .gallery import PageFigure
from .layout import Cells
from .leaders import leaders
from .paper_comparison import PaperComparison
from .table import METRICS, Table, best_first, csv, default_baseline, group_runs, rows

MAX_REJECTED = 200  # rows in the table of rejected replies


def page(
    lines: list[Line],
    table: Table,
    comparison: PaperComparison | None = None,
    baseline: str | None = None,
    times: Sequence[Line] = (),
    folders: Sequence[Path] = (),
    figures: Sequence[Figure] | None = None,
) -> str:
    """Return the page of all finished runs, with a paper's numbers if given; `folders` are those of the runs."""
    baseline = baseline or default_baseline(table)
    runs = [run for key, run in group_runs(lines).items() if key[0] in table.methods]
    used = [line for run in runs for line in run]
    configs = provenance.read_beside_results(folders, "config.json")
    if figures is None:
        figures = gallery.figures(table, baseline, folders)
    references, unknown = cite.references(table.methods)
    best = leaders(table)
    script = _asset("page.js")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["breakable"] = breakable
    return environment.from_string(_asset("page.html")).render(
        style=Markup(_asset("page.css")),
        script=Markup(script),
        # the page loads nothing, and runs only this script, whatever a figure's file contains
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        table=table,
        facts=facts(table),
        rows=rows(table),
        best=best.methods,
        marks=f"; bold: {best.meaning}" if best.methods else "",
        hints=hints(table),
        picked=picked_runs(table),
        numbers=data_link(csv(table), "text/csv"),
        comparison=comparison,
        pairs=paper_comparison.rows(comparison) if comparison else [],
        answer=answer(table, baseline),
        warnings=cautions.run_warnings(table.picked, provenance.names_of_classes(folders)),
        baseline=baseline,
        differences=statistics.rows(table, baseline) if len(table.methods) > 1 else [],
        about=statistics.caption(table, baseline),
        figures=cards([*map(gallery.page_figure, figures), *gallery.saved_figures(folders)]),
        ledger=ledger(used, table),
        pooled=list(dict.fromkeys(run[0]["method"] for run in runs if POOLED in run[0]["bytes_up"])),
        costs=cost.rows(used, times),
        about_costs=cost.CAPTION,
        sites=cost.by_site(used),
        about_sites=cost.BY_SITE,
        rejected=rejected(used),
        digests=Counter(run[0]["setting"] for run in runs),
        settings=provenance.settings(configs),
        versions=provenance.versions(provenance.read_beside_results(folders, "machine.json")),
        configs=data_link(json.dumps(configs, indent=1), "application/json") if configs else "",
        references=references,
        unknown=unknown,
        ours=cite.OURS,
        version=__version__,
    )


def answer(table: Table, baseline: str) -> str:
    """Summarise the table in one sentence, with its uncertainty."""
    differences = statistics.differences(table, baseline) if len(table.methods) > 1 else []
    if not differences:
        return "Only one method has finished runs: there is nothing to compare yet."
    best = min(differences, key=lambda each: table.sign * each.mean)
    gain = -table.sign * best.mean
    over = f"over {best.pairs} run{'s' if best.pairs > 1 else ''} of each"
    if gain <= 0:
        return f"On the unseen domain, no method is better than {baseline} on average ({over})."
    within = f" ± {(best.high - best.low) / 2:.1f}" if best.pairs > 1 else ""
    text = f"On the unseen domain, {best.method} is better than {baseline} by {gain:.1f}{within} points {over}"
    if best.pairs < 2:
        return text + ". With one run, the effect of chance is not known."
    p = f"p = {statistics.format_p(best.t)}".replace("= <", "<")
    verdict = "more than chance" if best.t < 0.05 else "which may well be chance"
    return f"{text}: {verdict} ({p}, paired t-test, corrected for {len(differences)} comparisons)."


def hints(table: Table) -> dict[tuple[str, str], str]:
    """Return the chosen round of each seed, for the cell of a method and a target."""
    rounds: dict[tuple[str, str], list[str]] = {}
    for (method, target, seed), line in sorted(table.picked.items()):
        rounds.setdefault((method, target), []).append(f"seed {seed}: {line['round'] + 1} of {line['rounds']}")
    return {cell: f"Chosen round of {', '.join(found)}" for cell, found in rounds.items()}


def picked_runs(table: Table) -> Cells:
    """Return a row for each run: its chosen round and its score, the best method first."""
    head = [
        "method",
        "unseen domain",
        "seed",
        "chosen round",
        "of rounds",
        f"{METRICS[table.metric].partition(' (')[0]} (%)",
    ]
    body = []
    for method in best_first(table):
        for (name, target, seed), line in table.picked.items():
            if name == method:
                score = f"{table.score(method, target, seed):.1f}" if target in table.scored_targets else "-"
                body.append([method, target, str(seed), str(line["round"] + 1), str(line["rounds"]), score])
    return [head, *body]


def facts(table: Table) -> list[tuple[str, str]]:
    """Count the runs behind the answer."""
    finished = {(method, line["target"], seed) for (method, _, seed), line in table.picked.items()}
    rounds = sorted({line["rounds"] for line in table.picked.values()})
    return [
        ("methods", str(len(table.methods))),
        ("unseen domains", str(len(table.targets))),
        ("seeds", str(len(table.seeds))),
        ("finished runs", str(len(finished))),
        ("rounds", " or ".join(map(str, rounds)) or "-"),
    ]


def cards(figures: Sequence[PageFigure]) -> list[dict[str, Any]]:
    """Prepare figures for the template: in the page's colours, with text for screen readers, and to download."""
    result, seen = [], Counter[str]()
    for figure in figures:
        seen[figure.name] += 1
        name = figure.name if seen[figure.name] == 1 else f"{figure.name}-{seen[figure.name]}"
        tag = f'<svg role="img" aria-label="{escape(figure.title)}. {escape(figure.caption)}"'
        if width := re.search(r'viewBox="\S+ \S+ (\d+)', figure.svg):  # a small screen scrolls: text stays readable
            tag += f' style="min-width: {width[1]}px"'
        result.append(
            {
                "name": name,
                "title": figure.title,
                "caption": figure.caption.rstrip("."),
                "svg": Markup(with_hover(themed(figure.svg, name).replace("<svg", tag, 1), name, figure)),
                "drawn": data_link(figure.svg, "image/svg+xml"),
                "numbers": data_link(figure.csv, "text/csv"),
            }
        )
    return result


def with_hover(svg: str, name: str, figure: PageFigure) -> str:
    """Give the parts of an SVG their texts for the pointer and the name of their line, for the page's script."""

    def described(match: re.Match[str]) -> str:
        if (part := figure.hover.get(match[1])) is None:
            return match[0]
        line = f' data-line="{escape(part.line)}"' if part.line else ""
        return f'{match[0]}{line} data-texts="{escape(json.dumps(part.texts, ensure_ascii=False))}"'

    return re.sub(rf'\bid="{re.escape(name)}-([\w-]+)"', described, svg)


def breakable(text: str) -> Markup:
    """Allow a line break between the parts and options of a method's spelling."""
    return Markup(re.sub(r"(?<=\()|(?=\+)", "<wbr>", escape(text)))


def data_link(content: str, kind: str) -> str:
    """Return a data URL that holds a file, so that a download needs no network."""
    return f"data:{kind};base64,{base64.b64encode(content.encode()).decode()}"


def ledger(lines: Sequence[Line], table: Table) -> Cells:
    """Return the most bytes that leave a site in a round, by method, kind and name."""
    sizes: dict[tuple[str, str, str], int] = {}
    for line in lines:
        for kinds in line["bytes_up"].values():
            for kind, names in kinds.items():
                for name, size in names.items():
                    key = (line["method"], kind, name)
                    sizes[key] = max(size, sizes.get(key, 0))
    entries = sorted(sizes.items(), key=lambda item: table.methods.index(item[0][0]))
    return [["method", "kind", "name", "bytes"], *([*key, f"{size:,}"] for key, size in entries)]


def rejected(lines: Sequence[Line]) -> Cells:
    """Return the rejected replies, with their reasons and numbers of rounds."""
    counts = Counter((line["method"], each["site"], each["reason"]) for line in lines for each in line["rejected"])
    body = [[*key, str(count)] for key, count in counts.most_common(MAX_REJECTED)]
    return [["method", "site", "reason", "rounds"], *body] if body else []


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
