"""From result lines to a table: a selection rule picks one round of each run, seeds become mean ± std."""

from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from ..errors import ConfigError
from ..experiment import selection
from ..registry import nearest
from ..results import Line

Rule = Callable[[Sequence[Line]], Line]

RULES: dict[str, Rule] = {
    "source-validation": lambda run: max(run, key=selection),
    "last": lambda run: run[-1],
    "oracle": lambda run: max(run, key=lambda line: unseen(line)),
}
CAPTIONS = {
    "source-validation": "round chosen by source-validation accuracy",
    "last": "last round",
    "oracle": "ORACLE: round chosen by looking at the unseen domain itself; an upper line, not a result",
}


class Table(NamedTuple):
    """Accuracies in percent: one number a seed for every method on every target, and the average over targets."""

    rule: str
    methods: tuple[str, ...]
    targets: tuple[str, ...]
    cells: dict[tuple[str, str], list[float]]
    seeds: int
    unfinished: int
    settings: int = 1

    @property
    def caption(self) -> str:
        """What the numbers are."""
        many = f"mean ± standard deviation over {self.seeds} seeds" if self.seeds > 1 else "one seed"
        note = f"; {self.unfinished} unfinished runs left out" if self.unfinished else ""
        if self.settings > 1:
            note += f"; NOT COMPARABLE: rows come from {self.settings} settings (data, network, optimizer or training)"
        return f"Accuracy on the unseen domain (%), {CAPTIONS[self.rule]}, {many}{note}"


def unseen(line: Line) -> float:
    """Accuracy on the whole of the domain that took no part."""
    return float(line["scores"][line["target"]]["test"]["accuracy"])


def runs(lines: Iterable[Line]) -> dict[tuple[str, str, int], list[Line]]:
    """The lines of each run, in the order of rounds."""
    found: dict[tuple[str, str, int], dict[int, Line]] = {}
    for line in lines:
        key = (line["method"], line["target"], line["seed"])
        first = next(iter(found.setdefault(key, {}).values()), line)
        if first["setting"] != line["setting"]:
            raise ConfigError(
                f"{key[0]}, {key[1]} unseen, seed {key[2]} was run under two settings "
                f"({first['setting']}, {line['setting']}); report their folders one by one"
            )
        found[key][line["round"]] = line
    return {key: [rounds[number] for number in sorted(rounds)] for key, rounds in found.items()}


def tabulate(lines: Iterable[Line], rule: str = "source-validation") -> Table:
    """The table of all finished runs under a selection rule."""
    if rule not in RULES:
        raise ConfigError(f"selection rule {rule!r} is not known; {nearest(rule, RULES)}")
    every = runs(lines)
    done = {key: run for key, run in every.items() if len(run) == run[-1]["rounds"]}
    methods, targets = tuple(dict.fromkeys(key[0] for key in done)), tuple(dict.fromkeys(key[1] for key in done))
    seeds = sorted({key[2] for key in done})
    cells: dict[tuple[str, str], list[float]] = {}
    for method in methods:
        scores = {
            (target, seed): 100 * unseen(RULES[rule](done[method, target, seed]))
            for target in targets
            for seed in seeds
            if (method, target, seed) in done
        }
        for target in targets:
            cells[method, target] = [scores[target, seed] for seed in seeds if (target, seed) in scores]
        whole = [seed for seed in seeds if all((target, seed) in scores for target in targets)]
        cells[method, "average"] = [mean(scores[target, seed] for target in targets) for seed in whole]
    settings = {run[0]["setting"] for run in done.values()}
    return Table(rule, methods, targets, cells, len(seeds), len(every) - len(done), len(settings))


def number(values: Sequence[float], plusminus: str = " ± ") -> str:
    """Mean ± std, as precisely as accuracies deserve."""
    if not values:
        return "-"
    return f"{mean(values):.1f}" + (f"{plusminus}{stdev(values):.1f}" if len(values) > 1 else "")


def rows(table: Table, plusminus: str = " ± ") -> list[list[str]]:
    """Header and body as strings."""
    columns = [*table.targets, "average"]
    body = [[method, *(number(table.cells[method, c], plusminus) for c in columns)] for method in table.methods]
    return [["method", *columns], *body]


def text(table: Table) -> str:
    """For a terminal."""
    cells = rows(table)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join([table.caption, "", lines[0], "─" * len(lines[0]), *lines[1:]]) + "\n"


def markdown(table: Table) -> str:
    """For a README."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows(table)]
    ruler = "|---|" + "---:|" * (len(table.targets) + 1)
    return "\n".join([head, ruler, *body, "", table.caption]) + "\n"


def latex(table: Table) -> str:
    """For a paper that uses booktabs."""
    head, *body = [" & ".join(_escape(cell) for cell in row) + r" \\" for row in rows(table, r" \pm ")]
    columns = "l" + "r" * (len(table.targets) + 1)
    caption = _escape(table.caption).replace("±", r"$\pm$")
    parts = [r"\begin{table}", rf"\caption{{{caption}.}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head]
    return "\n".join([*parts, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def csv(table: Table) -> str:
    """For other programs: every number behind the table, one a line."""
    lines = ["method,target,accuracy"]
    for (method, target), values in table.cells.items():
        lines += [f'"{method}",{target},{value:.4f}' for value in values]
    return "\n".join(lines) + "\n"


def _escape(cell: str) -> str:
    if r"\pm" in cell:
        return f"${cell}$"
    for mark in "%_&#":
        cell = cell.replace(mark, f"\\{mark}")
    return cell
