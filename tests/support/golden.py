"""The weights of twenty methods after two rounds on the toy sites, as digests and as sketches of a few numbers.

`python tests/support/golden.py` rewrites golden.json. It refuses to if NUMERICS still equals the file's: a
change of numbers raises NUMERICS, and CHANGELOG.md says by how much they changed.
"""

import json
import sys
from pathlib import Path

import torch

import fedbeyond
from fedbeyond import tree
from fedbeyond.engine.reestimation import SuspendedPasses, reestimate_models
from fedbeyond.experiment import registry
from fedbeyond.networks.moments import levels
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate

FILE = Path(__file__).with_name("golden.json")
METHODS = [
    "fedavg",
    "fedprox(mu=0.1)",
    "scaffold",
    "fednova(mu=0.1)",
    "feddyn",
    "fedadam",
    "fedavg+ga",
    "fedsb(budget=3)+rc+ga",
    "fedgca",
    "fedadg(classify=0, align=1)",
    "ndag(width=2, warmup=0)",
    "feddag(width=2, warmup=1)",
    "harmofl",
    "elcfs",
    "fedavg+am",
    "moon",
    "fedavg+dp",
    "scaffold under adam(lr=0.01)",
    "fednova(mu=0.1) under sgd(lr=0.05, momentum=0.9)",
    "ddaig(width=2, warmup=0) under sgd(lr=0.05, momentum=0.9)",
    "statistics re-estimated",
]
NUMBERS = 4  # of a sketch
CHANGED = (
    "raise NUMERICS in src/fedbeyond/__init__.py, say in CHANGELOG.md by how much, then python tests/support/golden.py"
)


def build() -> str:
    """What rounding depends on: torch's version and the instructions that it uses on this processor."""
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def weights(name: str) -> tree.Tree:
    """A method's global model after two rounds, perhaps under another optimizer than plain SGD."""
    if name == "statistics re-estimated":
        return reestimated_model()
    spelled, _, optimizer = name.partition(" under ")
    given = {"optimizer": registry.make_one("optimizers", optimizer)} if optimizer else {}
    return simulate(registry.build(spelled, **given), rounds=2)[0]["server"]["model"]


def reestimated_model() -> tree.Tree:
    """A small ConvNet whose four BatchNorm layers were measured at the toy sites."""
    task = toy.TASK._replace(network=registry.make_one("networks", "convnet(width=2)"))
    method = registry.build("fedavg")
    sites = {site.name: site for site in toy.sites(method, {"east": 300, "west": 20}, task=task)}
    gate, model = toy.gate(method, {"east": 300, "west": 20}, task=task), toy.shared(method, task)["model"]
    layers = levels(sites["east"].nets["model"], task.shape)
    passes = SuspendedPasses(sites)
    return reestimate_models({"model": model}, layers, {"east": 0.75, "west": 0.25}, passes.measure, gate, 0).models[
        "model"
    ]


def sketch(model: tree.Tree) -> list[float]:
    """A few random projections of a model, which all its floats enter: they tell on any machine that it changed."""
    floats = [leaf.double().flatten() for _, leaf in sorted(tree.flatten(model).items()) if leaf.is_floating_point()]
    vector = torch.cat(floats)
    draws = torch.Generator().manual_seed(0)
    directions = torch.randn(NUMBERS, len(vector), generator=draws, dtype=torch.float64)
    return [round(float(number), 6) for number in directions @ vector]


def write() -> None:
    """Write what today's code gives; digests of other machines stay while NUMERICS does."""
    torch.set_num_threads(1)
    known = json.loads(FILE.read_text()) if FILE.exists() else {"numerics": None, "methods": {}}
    same = known["numerics"] == fedbeyond.NUMERICS
    entries = {}
    for name in METHODS:
        model, before = weights(name), known["methods"].get(name, {})
        fresh = tree.digest(model).hex()[:16]
        if same and before.get("digests", {}).get(build(), fresh) != fresh:
            sys.exit(f"{name} changed: {CHANGED}")
        others = before["digests"] if same and before else {}
        entries[name] = {"sketch": sketch(model), "digests": others | {build(): fresh}}
    FILE.write_text(json.dumps({"numerics": fedbeyond.NUMERICS, "methods": entries}, indent=1) + "\n")


if __name__ == "__main__":
    write()
