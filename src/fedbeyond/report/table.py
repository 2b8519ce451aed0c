"""From result lines to a table: a selection rule picks one round of each run, seeds become mean ± std."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from ..errors import ConfigError, nearest
from ..evaluation.cautions import majority_rate
from ..evaluation.rules import CAPTIONS, RULES, own_rule, unseen
from ..evaluation.selection import Line, class_counts, over_sources, undefined
from ..spec import unseen_domains
from . import layout

METRICS = {  # as result lines name them, and as captions do
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1 (mean over classes)",
    "f1_weighted": "F1 (weighted by images)",
    "auc": "AUC (one class against the rest, mean over classes)",
    "auc_weighted": "AUC (one class against the rest, weighted by images)",
    "calibration_error": "calibration error (less is better)",
}


WHERE = {
    "unseen": "the unseen domain",
    "own": "the in-domain tests of the sites, mean over their domains, by the domain left out",
}


class Table(NamedTuple):
    """The line that a rule picks of every run, and the numbers in percent that they hold."""

    rule: str
    methods: tuple[str, ...]
    targets: tuple[str, ...]
    picked: dict[tuple[str, str, int], Line]  # method, target, seed
    unfinished: int
    metric: str = "accuracy"
    where: str = "unseen"
    one_class: tuple[str, ...] = ()  # domains, or clients, whose samples have one class, for which there is no AUC

    @property
    def measured(self) -> tuple[str, ...]:
        """The unseen domains that have the metric."""
        return tuple(target for target in self.targets if self.where == "own" or target not in self.one_class)

    @property
    def seeds(self) -> list[int]:
        """All seeds of any run."""
        return sorted({seed for _, _, seed in self.picked})

    def on(self, method: str, target: str) -> list[float]:
        """Accuracies on one unseen domain, one a seed; none if the metric is undefined there."""
        if target not in self.measured:
            return []
        return [self.one(method, target, seed) for seed in self.seeds if (method, target, seed) in self.picked]

    def one(self, method: str, target: str, seed: int) -> float:
        """What a run reached on an unseen domain (or on its sites' own tests), in percent."""
        line = self.picked[method, target, seed]
        return 100 * (unseen(line, target, self.metric) if self.where == "unseen" else own(line, self.metric))

    def average(self, method: str) -> list[float]:
        """Means over all unseen domains that have the metric, one a seed that has them all."""
        if not self.measured:
            return []
        whole = [seed for seed in self.seeds if all((method, target, seed) in self.picked for target in self.targets)]
        return [mean(self.one(method, target, seed) for target in self.measured) for seed in whole]

    @property
    def what(self) -> str:
        """What is measured."""
        return f"{METRICS[self.metric]} on {WHERE[self.where]} (%)"

    @property
    def chosen(self) -> str:
        """By which rule a round of a run was chosen."""
        return CAPTIONS[self.rule]

    @property
    def caption(self) -> str:
        """What the numbers are."""
        counts = {len(self.on(method, target)) for method in self.methods for target in self.measured}
        many = f"mean ± standard deviation over {'up to ' if len(counts) > 1 else ''}{max(counts, default=0)} seeds"
        note = f"; {self.unfinished} unfinished runs left out" if self.unfinished else ""
        settings = {line["setting"] for line in self.picked.values()}
        if len(settings) > 1:
            note += f"; NOT COMPARABLE: rows come from {len(settings)} settings (data, network, optimizer or training)"
        if self.one_class:
            note += f"; no AUC where samples have one class ({', '.join(self.one_class)}): left out of averages"
        note += statistics_note(self.picked.values())
        once = max(counts, default=0) < 2
        what = self.what[0].upper() + self.what[1:]
        return f"{what}, {self.chosen}, {'one seed' if once else many}{note}"


def statistics_note(lines: Collection[Line]) -> str:
    """Say how BatchNorm statistics were made, where runs have them both averaged and re-estimated."""
    for made, marked in (("averaged", "statistics"), ("re-estimated", "scores_average")):
        many = sum(marked in line for line in lines)
        if many:
            return f"; BatchNorm statistics {made}{'' if many == len(lines) else ' where a run has both'}"
    return ""


def own(line: Line, metric: str = "accuracy") -> float:
    """Accuracy (or another metric) on the images that sites kept apart: the mean over their domains."""
    try:
        return over_sources(line, "own_test", metric)
    except KeyError as error:
        raise ConfigError(
            f"the results of {line['method']}, {line['target']} unseen, hold no in-domain {error.args[0]}; run with "
            "train.test = 0.1 (a share of each site's images) to have one, or choose another --metric"
        ) from None


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
        if found[key].setdefault(line["round"], line) != line:
            raise ConfigError(
                f"{key[0]}, {key[1]} unseen, seed {key[2]}: two different results for round {line['round']}"
            )
    return {key: [rounds[number] for number in sorted(rounds)] for key, rounds in found.items()}


def tabulate(lines: Iterable[Line], rule: str | None = None, metric: str = "accuracy", where: str = "unseen") -> Table:
    """The table of all finished runs under a selection rule; none given: the rule of the runs' own train.select."""
    if rule is not None and rule not in RULES:
        raise ConfigError(f"selection rule {rule!r} is not known; {nearest(rule, RULES)}")
    if metric not in METRICS:
        raise ConfigError(f"metric {metric!r} is not known; {nearest(metric, METRICS)}")
    if where not in WHERE:
        raise ConfigError(f"--on {where} is not known; {nearest(where, WHERE)}")
    every = runs(lines)
    done = {key: run for key, run in every.items() if len(run) == run[-1]["rounds"]}
    rule = rule or own_rule(done.values())
    picked: dict[tuple[str, str, int], Line] = {}
    for (method, target, seed), run in done.items():
        for domain in unseen_domains(target):  # several, if they were left out at once
            line = RULES[rule](run)
            other = picked.setdefault((method, domain, seed), line)["target"]
            if other != target:
                raise ConfigError(
                    f"{method}, seed {seed}: {domain} was unseen in two runs ({other}; {target}); report one by one"
                )
    methods, targets = tuple(dict.fromkeys(key[0] for key in picked)), tuple(dict.fromkeys(key[1] for key in picked))
    alone = one_class(picked, metric, where)
    return Table(rule, methods, targets, picked, len(every) - len(done), metric, where, alone)


def one_class(picked: Mapping[tuple[str, str, int], Line], metric: str, where: str) -> tuple[str, ...]:
    """List the domains (in-domain: the clients) on which a metric is undefined because their samples have one class."""
    part, found = "test" if where == "unseen" else "own_test", dict[str, None]()
    for (_, target, _), line in picked.items():
        for name, splits in line["scores"].items():
            if (name == target or where == "own") and part in splits and undefined(splits[part], metric):
                found[name] = None
    return tuple(found)


def usual(table: Table) -> str:
    """The method that others are compared with if none is named: fedavg, or the first there is."""
    return next((name for name in ("fedavg", *table.methods) if name in table.methods), "")


def best_first(table: Table) -> list[str]:
    """The methods, the best first; those that lack an unseen domain come last."""
    sign = 1 if table.metric == "calibration_error" else -1  # less is better, or more is

    def place(method: str) -> tuple[bool, float]:
        found = [value for target in table.measured for value in table.on(method, target)]
        return not all(table.on(method, target) for target in table.measured), sign * mean(found) if found else 0.0

    return sorted(table.methods, key=place)


def number(values: Sequence[float], plusminus: str = " ± ") -> str:
    """Mean ± std, as precisely as accuracies deserve."""
    if not values:
        return "-"
    return f"{mean(values):.1f}" + (f"{plusminus}{stdev(values):.1f}" if len(values) > 1 else "")


def rows(table: Table, plusminus: str = " ± ") -> list[list[str]]:
    """Header and body as strings."""
    body = []
    for method in table.methods:
        values = [*(table.on(method, target) for target in table.targets), table.average(method)]
        body.append([method, *(number(each, plusminus) for each in values)])
    return [["method", *table.targets, "average"], *body, *majority_rows(table, table.targets)]


def majority_rows(table: Table, targets: Sequence[str]) -> list[list[str]]:
    """Make the row that accuracies are to be compared with: always predicting the most frequent class.

    None for other metrics, or where result lines hold no confusion matrices.
    """
    if (table.metric, table.where) != ("accuracy", "unseen"):
        return []
    known: dict[str, float] = {}
    for (_, target, _), line in table.picked.items():
        rate = majority_rate(class_counts(line["scores"].get(target, {}).get("test", {})))
        if rate is not None:
            known[target] = 100 * rate
    if not known:
        return []
    average = [mean(known[target] for target in targets)] if {*targets} <= known.keys() else []
    cells = [number([known[target]] if target in known else []) for target in targets]
    return [["majority class", *cells, number(average)]]


def text(table: Table) -> str:
    """For a terminal."""
    return layout.text(rows(table), table.caption)


def markdown(table: Table) -> str:
    """For a README."""
    return layout.markdown(rows(table), table.caption)


def latex(table: Table) -> str:
    """For a paper that uses booktabs."""
    return layout.latex(rows(table, r" \pm "), table.caption)


def csv(table: Table) -> str:
    """For other programs: every number behind the table, with the round it was picked from."""
    lines = [f"method,target,seed,round,{table.metric}"]
    for (method, target, seed), line in table.picked.items():
        quoted = ",".join('"' + text.replace('"', '""') + '"' for text in (method, target))
        value = f"{table.one(method, target, seed):.4f}" if target in table.measured else ""
        lines.append(f"{quoted},{seed},{line['round']},{value}")
    return "\n".join(lines) + "\n"
