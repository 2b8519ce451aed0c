"""A finished run's model as files that another site can use: numbers, and a card that says what they are."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import __version__, _io
from ..classifier import Task, scores, write
from ..errors import ConfigError, StorageError
from ..evaluation import cautions, selection
from ..evaluation.rules import RULES
from ..evaluation.selection import Line, class_counts, judged
from ..experiment import checkpoint, registry, runner
from ..experiment.build import dataset, division
from ..experiment.plan import held_by, unloaded
from ..experiment.runner import Experiment, configuration
from ..method import the_model
from ..tree import Tree
from . import onnx_file

MODEL, CARD = "model.safetensors", "model.json"
TRIED = 32  # images of each site that an ONNX file is tried on
PIXELS = "RGB, resized to a square (bilinear), bytes divided by 127.5 less 1"
FEATURES = (
    "the columns in their order: a number, or a one among zeros for one of the categories; filled in (median, most "
    "frequent category) and numbers standardised (mean 0, spread 1) by all rows of the site"
)
TEMPERATURES = torch.logspace(-1, 1, 201)  # 0.1 to 10


def export(run: Path, out: Path, select: str | None = None, onnx: bool = False) -> Path:
    """Write the model of a run (the round that its source validation chose, or the last) and its card into a folder."""
    if onnx:
        onnx_file.require_packages()
    config = configuration(run)
    select = select or config.train.select
    if select not in (config.train.select, "last"):
        raise ConfigError(
            f"--select {select} has no model in this run; give {config.train.select} or last (a run keeps the model of "
            "its key train.select)"
        )
    line = selected = chosen(run, select)
    setup = runner.prepare(config)
    if setup.method.judged is not the_model:
        raise ConfigError(f"{config.method} makes a model at each site and none of all; there is nothing to export")
    if select != "last":
        model, notes = checkpoint.load(run / "best.safetensors")
        # the card describes the file: an older version may have selected by another rule
        line = next((each for each in runner.lines(run) if each["round"] == notes["round"]), selected)
    elif (run / runner.LAST).exists():  # with the statistics that it was evaluated with
        model = checkpoint.load(run / runner.LAST)[0]
    else:
        model = checkpoint.load(run / "checkpoint.safetensors")[0]["state"]["server"]["model"]
    told = card(setup, line)
    if line["round"] != selected["round"]:
        told["warnings"].append(
            f"this is the model of round {line['round'] + 1}, selected by another version; round "
            f"{selected['round'] + 1} would be selected now, and its model was not kept. Run again with another --out."
        )
    net = rebuilt(told, model)
    told["temperature"] = temperature(net, list(setup.vals.values()))
    contents = {MODEL: checkpoint.content(model)}
    if onnx:
        samples = [images[:TRIED] for images, _ in setup.vals.values()]
        contents[onnx_file.FILE], told["onnx"] = onnx_file.portable(net, told, samples)
    told["files"] = {name: digest(content) for name, content in contents.items()}
    with _io.storing(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / onnx_file.FILE).unlink(missing_ok=True)  # that of another export would not fit the card
    for name, content in (contents | {CARD: json.dumps(told, indent=1).encode()}).items():
        _io.write(out / name, content)
    return out


def chosen(run: Path, select: str) -> Line:
    """The line of the round whose model is meant."""
    lines = runner.lines(run)
    if not judged(lines):
        raise StorageError(f"{run} has no round that was judged; let it finish: give the same 'fedbeyond run' again")
    line = RULES[select](lines) if select == "last" else selection.chosen(lines, selection.CRITERIA[select])
    if "scores" not in line:
        raise StorageError(f"{run}: its last round so far was not judged; let it finish, or leave out --select last")
    return line


def digest(content: bytes) -> str:
    """What a file's contents are known by."""
    return f"sha256:{sha256(content).hexdigest()}"


def card(setup: Experiment, line: Line) -> dict[str, Any]:
    """What a user of the model has to know."""
    config, data = setup.config, dataset(setup.config.data)
    domains = dict(setup.federation.sizes)
    found, parts = line["scores"].items(), ("val", "own_test", "test")
    warnings = [*cautions.of_sites(held_by(division(config, data), data), data.classes)]
    warnings += cautions.of_models({(config.method, str(config.target), config.seed): line}, data.classes)
    tested = {name: splits[part] for name, splits in found for part in ("val", "test") if part in splits}
    rates = {name: cautions.majority_rate(class_counts(scores)) for name, scores in tested.items()}
    about: dict[str, Any] = {"pixels": PIXELS}
    if data.complete is not None:
        about = {"features": FEATURES, "columns": {name: list(kinds) for name, kinds in data.columns}}
    return {
        "fedbeyond": __version__,
        "method": config.method,
        "network": unloaded(config.network),
        "classes": list(data.classes),
        "shape": list(next(iter(setup.tests.values()))[0].shape[1:]),
        **about,
        "temperature": 1.0,
        "trained_on": domains,
        "unseen": config.target,
        "round": line["round"] + 1,
        "scores": {name: {part: splits[part] for part in parts if part in splits} for name, splits in found},
        "majority_class": {name: rate for name, rate in rates.items() if rate is not None},
        "warnings": warnings,
        "config": config.identity(),
    }


def temperature(net: torch.nn.Module, splits: list[Any]) -> float:
    """What scores are divided by so that confidence fits accuracy, on the sites' validation images (Guo, ICML 2017)."""
    said = torch.cat([scores(net, images) for images, _ in splits])
    labels = torch.cat([truth for _, truth in splits])
    losses = torch.stack([F.cross_entropy(said / heat, labels) for heat in TEMPERATURES])
    return round(float(TEMPERATURES[losses.argmin()]), 4)


def rebuilt(card: dict[str, Any], model: Tree) -> torch.nn.Module:
    """The network that a card describes, with a model's numbers, ready to be asked."""
    config = card["config"]
    registry.load_plugins(name.partition(" ")[0] for name in config.get("plugins", ()))
    method = registry.build(card["method"], optimizer=registry.make_one("optimizers", config["optimizer"]))
    network = registry.make_one("networks", card["network"])
    task = Task(tuple(card["classes"]), tuple(card["shape"]), network, len(card["trained_on"]))
    return write(method.networks(task)["model"], model).eval()


class Exported:
    """A model as it was written, ready to be asked."""

    def __init__(self, folder: Path) -> None:
        if not (folder / CARD).exists():
            raise StorageError(f"{folder} holds no {CARD}; give a folder that 'fedbeyond export' wrote")
        self.card = _io.note(folder / CARD)
        known = self.card.get("files", {}).get(MODEL)
        if known and (folder / MODEL).exists() and digest((folder / MODEL).read_bytes()) != known:
            raise StorageError(f"{folder / MODEL} is not the file that {CARD} describes; copy or export both again")
        self.net = rebuilt(self.card, checkpoint.load(folder / MODEL)[0])

    @torch.no_grad()
    def chances(self, given: Tensor) -> Tensor:
        """Of each class, for images as bytes or for rows of features."""
        return (scores(self.net, given) / float(self.card["temperature"])).softmax(1)
