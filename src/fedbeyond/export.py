"""A finished run's model as files that another site can use: numbers, and a card that says what they are."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import __version__, checkpoint, experiment, registry
from .config import Config, parse
from .errors import ConfigError, StorageError
from .evaluate import scores
from .experiment import Experiment
from .nets import Task, write
from .plan import unloaded
from .report.table import RULES
from .results import Line
from .setting import dataset

MODEL, CARD = "model.safetensors", "model.json"
TEMPERATURES = torch.logspace(-1, 1, 201)  # 0.1 to 10


def export(run: Path, out: Path, select: str = "source-validation") -> Path:
    """Write the model of a run (the round that its source validation chose, or the last) and its card into a folder."""
    config = configuration(run)
    lines = experiment.lines(run)
    if not lines:
        raise StorageError(f"{run} has no finished round; give the folder of a run, as runs/fedavg/photo/seed-0")
    if select not in ("source-validation", "last"):
        raise ConfigError(f"--select {select} keeps no model; source-validation or last")
    setup = experiment.prepare(config)
    if select == "last":
        model = checkpoint.load(run / "checkpoint.safetensors")[0]["state"]["server"]["model"]
    else:
        model = checkpoint.load(run / "best.safetensors")[0]
    net = write(setup.nets["model"], model)
    told = card(setup, RULES[select](lines), temperature(net, list(setup.vals.values())))
    with checkpoint.storing(out):
        out.mkdir(parents=True, exist_ok=True)
    checkpoint.save(out / MODEL, model)
    checkpoint.write(out / CARD, json.dumps(told, indent=1).encode())
    return out


def configuration(run: Path) -> Config:
    """The configuration that a run's folder holds."""
    if not (run / "config.json").exists():
        raise StorageError(f"{run} is no run: it has no config.json; give a folder as runs/fedavg/photo/seed-0")
    held = experiment.note(run / "config.json")
    if held.get("train", {}).get("split"):  # its digest stands behind the name
        held["train"]["split"] = held["train"]["split"].rpartition(" ")[0]
    held["plugins"] = [name.partition(" ")[0] for name in held.get("plugins", [])]
    return parse(held, str(run / "config.json"))


def card(setup: Experiment, line: Line, heat: float) -> dict[str, Any]:
    """What a user of the model has to know."""
    config = setup.config
    domains = dict(setup.federation.sizes)
    found = line["scores"].items()
    shape = list(next(iter(setup.tests.values()))[0].shape[1:])
    return {
        "fedbeyond": __version__,
        "method": config.method,
        "network": unloaded(config.network),
        "classes": list(classes(config)),
        "shape": shape,
        "pixels": "RGB, resized to a square (bilinear), bytes divided by 127.5 less 1",
        "temperature": heat,
        "trained_on": domains,
        "unseen": config.target,
        "round": line["round"] + 1,
        "scores": {name: {part: splits[part] for part in ("val", "test") if part in splits} for name, splits in found},
        "config": config.identity(),
    }


def classes(config: Config) -> tuple[str, ...]:
    """The names of what is told apart."""
    return dataset(config.data).classes


def temperature(net: torch.nn.Module, splits: list[Any]) -> float:
    """What scores are divided by so that confidence fits accuracy, on the sites' validation images (Guo, ICML 2017)."""
    said = torch.cat([scores(net, images) for images, _ in splits])
    labels = torch.cat([truth for _, truth in splits])
    losses = torch.stack([F.cross_entropy(said / heat, labels) for heat in TEMPERATURES])
    return round(float(TEMPERATURES[losses.argmin()]), 4)


class Exported:
    """A model as it was written, ready to be asked."""

    def __init__(self, folder: Path) -> None:
        if not (folder / CARD).exists():
            raise StorageError(f"{folder} holds no {CARD}; give a folder that 'fedbeyond export' wrote")
        self.card = experiment.note(folder / CARD)
        registry.load_plugins(name.partition(" ")[0] for name in self.card["config"].get("plugins", ()))
        config = self.card["config"]
        optimizer = registry.make_one("optimizers", config["optimizer"])
        method = registry.build(self.card["method"], optimizer=optimizer)
        network = registry.make_one("networks", self.card["network"])
        sources = len(self.card["trained_on"])
        task = Task(tuple(self.card["classes"]), tuple(self.card["shape"]), network, sources)
        self.net = write(method.networks(task)["model"], checkpoint.load(folder / MODEL)[0]).eval()

    @torch.no_grad()
    def chances(self, pixels: Tensor) -> Tensor:
        """Of each class, for images as bytes."""
        return (scores(self.net, pixels) / float(self.card["temperature"])).softmax(1)
