"""What becomes of BatchNorm, measured: source validation and unseen accuracy of every method under every policy.

    python benchmarks/batchnorm.py average=benchmarks/results/styles.jsonl reestimate=benchmarks/results/styles.jsonl

Each word names a policy and the result file of its runs; `average` takes the scores with averaged statistics of runs
that have both. The table has, for each method, the mean over targets and seeds of source validation / unseen accuracy
(%) in the round that source validation chose under that policy, and how many runs are behind it.

    python benchmarks/batchnorm.py --rounds benchmarks/results/batchnorm_pacs.jsonl

has the same of every round, averaged and re-estimated, from runs that have both.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from fedbeyond.evaluation.rules import unseen
from fedbeyond.evaluation.selection import Line, select_round, selection_score
from fedbeyond.experiment import results


def main(words: list[str]) -> None:
    """Print a table in Markdown."""
    if words[0] == "--rounds":
        return by_round(results.load([Path(words[1])]))
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(dict)
    for word in words:
        policy, _, file = word.partition("=")
        lines = results.load([Path(file)])
        for method, pairs in measured(results.averaged(lines) if policy == "average" else lines).items():
            found[method][policy] = pairs
    policies = [word.partition("=")[0] for word in words]
    print(f"| method | {' | '.join(policies)} |\n|---|{'---:|' * len(policies)}")
    for method, cells in found.items():
        print(f"| {method} | {' | '.join(cell(cells.get(policy)) for policy in policies)} |")


def by_round(lines: list[Line]) -> None:
    """Print source validation and unseen accuracy of every round under both policies."""
    rounds = range(lines[0]["rounds"])
    print(f"| statistics | {' | '.join(f'round {number + 1}' for number in rounds)} |\n|---|{'---:|' * len(rounds)}")
    for name, some in (("averaged", results.averaged(lines)), ("re-estimated", lines)):
        pairs = [
            [(selection_score(line), unseen(line)) for line in some if line["round"] == number] for number in rounds
        ]
        print(f"| {name} | {' | '.join(map(cell, pairs))} |")


def measured(lines: list[Line]) -> dict[str, list[tuple[float, float]]]:
    """Source validation and unseen accuracy of every finished run, by method."""
    runs: dict[tuple[str, str, int], list[Line]] = defaultdict(list)
    for line in lines:
        runs[line["method"], line["target"], line["seed"]].append(line)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (method, _, _), run in sorted(runs.items()):
        if len(run) == run[-1]["rounds"]:
            best = select_round(run)
            found[method].append((selection_score(best), unseen(best)))
    return found


def cell(pairs: list[tuple[float, float]] | None) -> str:
    """Means in percent, and the number of runs."""
    if not pairs:
        return "-"
    own, other = (100 * fmean(values) for values in zip(*pairs, strict=True))
    return f"{own:.1f} / {other:.1f} ({len(pairs)})"


if __name__ == "__main__":
    main(sys.argv[1:])
