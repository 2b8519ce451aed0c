"""Result lines that nobody trained for: as many as a test wants, with numbers that it can work out for itself."""

import json
import random
from pathlib import Path

TARGETS = ("cartoon", "painting", "photo", "sketch")


def scores(confusion):
    """What a line says of a confusion matrix (true class x answer)."""
    total = sum(map(sum, confusion))
    recall = [row[i] / sum(row) if sum(row) else None for i, row in enumerate(confusion)]
    accuracy = sum(row[i] for i, row in enumerate(confusion)) / total
    there = [share for share in recall if share is not None]
    balanced = sum(there) / len(there)
    return {
        "loss": 1.0, "accuracy": accuracy, "balanced_accuracy": balanced, "recall": recall, "confusion": confusion
    }  # fmt: skip


def drawn(rng, skill, classes=7, images=40):
    """A confusion matrix in which about `skill` of the images of each class are told rightly."""
    rows = []
    for label in range(classes):
        row = [0] * classes
        for _ in range(images):
            row[label if rng.random() < skill else rng.randrange(classes)] += 1
        rows.append(row)
    return rows


def line(method, target, seed, number, rounds, accuracies, **others):
    """A line with an accuracy for each domain; the target's is a test's, those of others are of validation."""
    told = {
        domain: {"test" if domain == target else "val": value if isinstance(value, dict) else {"accuracy": value}}
        for domain, value in accuracies.items()
    }
    sources = [domain for domain in accuracies if domain != target]
    return {
        "method": method, "target": target, "seed": seed, "setting": "0123abcd", "round": number, "rounds": rounds,
        "scores": told, "weights": {name: 1 / len(sources) for name in sources}, "diagnostics": {}, "rejected": [],
        "bytes_up": {name: {"parameters": {"model": 1000}} for name in sources},
    } | others  # fmt: skip


def bench(methods, targets=TARGETS, seeds=(0, 1), rounds=4, classes=3, images=10):
    """The lines of a whole grid; runs whose method has +ga tell gaps and weights that move."""
    rng = random.Random(0)
    lines = []
    for place, method in enumerate(methods):
        for target in targets:
            for seed in seeds:
                for number in range(rounds):
                    skill = 0.3 + 0.5 * number / rounds + 0.02 * place
                    every = {domain: scores(drawn(rng, skill, classes, images)) for domain in TARGETS}
                    made = line(method, target, seed, number, rounds, every)
                    if "+ga" in method:
                        sources = [domain for domain in TARGETS if domain != target]
                        first = round(rng.uniform(0.2, 0.4), 4)
                        rest = (1 - first) / (len(sources) - 1)
                        made["weights"] = {name: rest if i else first for i, name in enumerate(sources)}
                        gaps = {name: round(rng.uniform(-0.2, 0.8), 4) for name in sources}
                        made["diagnostics"] = {"gaps": gaps if number else {}}
                    lines.append(made)
    return lines


def write(lines, folder: Path):
    """The same lines as a folder of runs, with what lies beside them."""
    by_run = {}
    for one in lines:
        place = folder / one["method"] / one["target"] / f"seed-{one['seed']}"
        by_run.setdefault(place, []).append(one)
    for place, run in by_run.items():
        place.mkdir(parents=True)
        (place / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in run))
        config = {key: run[0][key] for key in ("method", "target", "seed")}
        config |= {"data": "styles", "network": "convnet", "train": {"rounds": run[0]["rounds"], "batch_size": 32}}
        (place / "config.json").write_text(json.dumps(config))
        (place / "machine.json").write_text(
            json.dumps({"fedbeyond": "0.1.0", "numerics": 1, "torch": "2.13", "threads": 1})
        )
    return folder
