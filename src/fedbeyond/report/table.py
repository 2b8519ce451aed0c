"""Tables from result lines: a selection rule picks one round of each run; seeds become mean ± std."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from ..errors import ConfigError, nearest
from ..evaluation.cautions import majority_rate
from ..evaluation.rules import CAPTIONS, RULES, UNVALIDATED, configured_rule, unseen
from ..evaluation.selection import CRITERIA, Line, class_counts, is_undefined, source_mean, validated
from ..spec import unseen_domains
from . import layout

METRICS = {  # name in result lines: name in captions
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
RunKey = tuple[str, str, int]  # method, target, seed


class Table(NamedTuple):
    """The result line that a rule picks from every run, and the scores of these lines in percent."""

    rule: str
    methods: tuple[str, ...]
    targets: tuple[str, ...]
    picked: dict[RunKey, Line]  # with one unseen domain in each key, also if several were left out together
    runs: dict[RunKey, list[Line]]  # all lines of the finished runs, in the order of rounds
    unfinished: int
    metric: str = "accuracy"
    where: str = "unseen"
    one_class: tuple[str, ...] = ()  # domains, or clients, whose samples have one class: no AUC

    @property
    def scored_targets(self) -> tuple[str, ...]:
        """Return the unseen domains on which the metric is defined."""
        return tuple(target for target in self.targets if self.where == "own" or target not in self.one_class)

    @property
    def sign(self) -> int:
        """Return the factor that makes less better: 1 for the calibration error, -1 for all other metrics."""
        return 1 if self.metric == "calibration_error" else -1

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of all runs."""
        return sorted({seed for _, _, seed in self.picked})

    def scores(self, method: str, target: str) -> list[float]:
        """Return the scores on an unseen domain, one for each seed; none if the metric is undefined there."""
        if target not in self.scored_targets:
            return []
        return [self.score(method, target, seed) for seed in self.seeds if (method, target, seed) in self.picked]

    def score(self, method: str, target: str, seed: int) -> float:
        """Return the score of a run on an unseen domain (or on its sites' in-domain tests), in percent."""
        line = self.picked[method, target, seed]
        own = self.where == "own"
        return 100 * (in_domain_score(line, self.metric) if own else unseen(line, target, self.metric))

    def average(self, method: str) -> list[float]:
        """Return the mean over all scored targets, one for each seed that has all targets."""
        if not self.scored_targets:
            return []
        return [
            mean(self.score(method, target, seed) for target in self.scored_targets)
            for seed in self.seeds
            if all((method, target, seed) in self.picked for target in self.targets)
        ]

    @property
    def measure(self) -> str:
        """Name the metric and the data it is measured on."""
        return f"{METRICS[self.metric]} on {WHERE[self.where]} (%)"

    @property
    def selection(self) -> str:
        """Describe the rule that chose a round of each run; without validation scores it is the last."""
        without = [run for run in self.runs.values() if self.rule in CRITERIA and not validated(run)]
        if len(without) < len(self.runs):
            return CAPTIONS[self.rule] + (f" ({len(without)} of {len(self.runs)}: {UNVALIDATED})" if without else "")
        return UNVALIDATED if without else CAPTIONS[self.rule]

    @property
    def caption(self) -> str:
        """Describe the numbers."""
        counts = {len(self.scores(method, target)) for method in self.methods for target in self.scored_targets}
        most = max(counts, default=0)
        seeds = f"mean ± standard deviation over {'up to ' if len(counts) > 1 else ''}{most} seeds"
        note = f"; {self.unfinished} unfinished runs left out" if self.unfinished else ""
        settings = {line["setting"] for line in self.picked.values()}
        if len(settings) > 1:
            note += f"; NOT COMPARABLE: rows come from {len(settings)} settings (data, network, optimizer or training)"
        if self.one_class:
            note += f"; no AUC where samples have one class ({', '.join(self.one_class)}): left out of averages"
        note += statistics_note(self.picked.values())
        return f"{capitalized(self.measure)}, {self.selection}, {seeds if most > 1 else 'one seed'}{note}"


def capitalized(text: str) -> str:
    """Return a text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def statistics_note(lines: Collection[Line]) -> str:
    """State how BatchNorm statistics were computed, if runs have them both averaged and re-estimated."""
    for policy, key in (("averaged", "statistics"), ("re-estimated", "scores_average")):
        count = sum(key in line for line in lines)
        if count:
            return f"; BatchNorm statistics {policy}{'' if count == len(lines) else ' where a run has both'}"
    return ""


def in_domain_score(line: Line, metric: str) -> float:
    """Return a metric on the sites' in-domain test images: the mean over their domains."""
    try:
        return source_mean(line, "local_test", metric)
    except KeyError as error:
        raise ConfigError(
            f"the results of {line['method']}, {line['target']} unseen, hold no in-domain {error.args[0]}; run with "
            "train.test = 0.1 (a share of each site's images) to get one, or choose another metric"
        ) from None


def group_runs(lines: Iterable[Line]) -> dict[RunKey, list[Line]]:
    """Group lines by run, in the order of rounds."""
    groups: dict[RunKey, dict[int, Line]] = {}
    for line in lines:
        key = (line["method"], line["target"], line["seed"])
        first = next(iter(groups.setdefault(key, {}).values()), line)
        if first["setting"] != line["setting"]:
            raise ConfigError(
                f"{key[0]}, {key[1]} unseen, seed {key[2]} was run under two settings "
                f"({first['setting']}, {line['setting']}); report their folders one by one"
            )
        if groups[key].setdefault(line["round"], line) != line:
            raise ConfigError(
                f"{key[0]}, {key[1]} unseen, seed {key[2]}: two different results for round {line['round'] + 1}; "
                "report their folders one by one"
            )
    return {key: [rounds[number] for number in sorted(rounds)] for key, rounds in groups.items()}


def tabulate(lines: Iterable[Line], rule: str | None = None, metric: str = "accuracy", where: str = "unseen") -> Table:
    """Make the table of all finished runs with a selection rule; by default the rule of the runs' train.select."""
    if rule is not None and rule not in RULES:
        raise ConfigError(f"selection rule {rule!r} is not known; {nearest(rule, RULES)}")
    if metric not in METRICS:
        raise ConfigError(f"metric {metric!r} is not known; {nearest(metric, METRICS)}")
    if where not in WHERE:
        raise ConfigError(f"--on {where} is not known; {nearest(where, WHERE)}")
    every = group_runs(lines)
    done = {key: run for key, run in every.items() if len(run) == run[-1]["rounds"]}
    rule = rule or configured_rule(done.values())
    picked: dict[RunKey, Line] = {}
    for (method, target, seed), run in done.items():
        for domain in unseen_domains(target):  # several, if left out together
            line = RULES[rule](run)
            other = picked.setdefault((method, domain, seed), line)["target"]
            if other != target:
                raise ConfigError(
                    f"{method}, seed {seed}: {domain} was unseen in two runs ({other}; {target}); report one by one"
                )
    methods, targets = tuple(dict.fromkeys(key[0] for key in picked)), tuple(dict.fromkeys(key[1] for key in picked))
    undefined_on = one_class(picked, metric, where)
    return Table(rule, methods, targets, picked, done, len(every) - len(done), metric, where, undefined_on)


def one_class(picked: Mapping[RunKey, Line], metric: str, where: str) -> tuple[str, ...]:
    """List the domains (in-domain: the clients) on which a metric is undefined because their samples have one class."""
    part, names = "test" if where == "unseen" else "local_test", dict[str, None]()
    for (_, target, _), line in picked.items():
        for name, splits in line["scores"].items():
            if (name == target or where == "own") and part in splits and is_undefined(splits[part], metric):
                names[name] = None
    return tuple(names)


def default_baseline(table: Table) -> str:
    """Return the method that others are compared with by default: fedavg, or else the first method."""
    return next((name for name in ("fedavg", *table.methods) if name in table.methods), "")


def best_first(table: Table) -> list[str]:
    """Return the methods by their average, best first; methods without an average come last, by their mean score."""

    def order(method: str) -> tuple[bool, float]:
        averages = table.average(method)
        values = averages or [value for target in table.targets for value in table.scores(method, target)]
        return not averages, table.sign * mean(values) if values else 0.0

    return sorted(table.methods, key=order)


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def number(values: Sequence[float]) -> str:
    """Format mean ± std with one decimal."""
    if not values:
        return "-"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def labelled(method: str, baseline: str | None) -> str:
    """Return the name of a method's row: the baseline is named as such."""
    return f"{method} (baseline)" if method == baseline else method


def rows(table: Table, baseline: str | None = None) -> layout.Cells:
    """Return head and body as strings, the best average first."""
    body = []
    for method in best_first(table):
        values = [*(table.scores(method, target) for target in table.targets), table.average(method)]
        body.append([labelled(method, baseline), *map(number, values)])
    return [["method", *table.targets, "average"], *body, *majority_rows(table, table.targets)]


def majority_rows(table: Table, targets: Sequence[str]) -> layout.Cells:
    """Return a reference row for accuracies: always predicting the most frequent class.

    Return no row for other metrics, or if result lines hold no confusion matrices.
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


def pairs_of(table: Table, methods: Sequence[str]) -> list[tuple[str, int]]:
    """Return the pairs of target and seed on which all the methods were run."""
    pairs = [(target, seed) for target in table.scored_targets for seed in table.seeds]
    return [pair for pair in pairs if all((method, *pair) in table.picked for method in methods)]


def text(table: Table) -> str:
    """Format the table for a terminal."""
    return layout.text(rows(table), table.caption)


def csv(table: Table) -> str:
    """Format every number behind the table as CSV, with its round (counted from 1) and whether it is ranked."""
    lines = [f"method,target,seed,round,{table.metric},in_mean_rank"]
    shared = set(pairs_of(table, table.methods))
    for (method, target, seed), line in table.picked.items():
        quoted = ",".join('"' + text.replace('"', '""') + '"' for text in (method, target))
        value = f"{table.score(method, target, seed):.4f}" if target in table.scored_targets else ""
        ranked = "yes" if (target, seed) in shared else "no"
        lines.append(f"{quoted},{seed},{line['round'] + 1},{value},{ranked}")
    return "\n".join(lines) + "\n"
