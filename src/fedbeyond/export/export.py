"""Export the model of a run: its numbers, and a card that describes it."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import __version__, _io, spec
from ..classifier import logits, write
from ..errors import ConfigError, StorageError
from ..evaluation import cautions
from ..evaluation.selection import Line, class_counts, evaluated
from ..experiment import checkpoint, run_folder
from ..experiment.build import assemble, dataset, partition, without_weights
from ..experiment.config import Config
from ..experiment.plan import client_samples
from ..experiment.prepare import Experiment, prepare
from ..method import global_model
from ..tree import Tree
from . import onnx_file

MODEL, CARD = "model.safetensors", "model.json"
ONNX_SAMPLES = 32  # images of each site on which an ONNX file is compared with the model
PIXELS = "RGB, resized to a square (bilinear), bytes divided by 127.5 minus 1"
FEATURES = (
    "the columns in their order: a number, or a one-hot vector of the categories; missing values imputed (median, most "
    "frequent category) and numbers standardised (mean 0, standard deviation 1) with all rows of the site"
)
TEMPERATURES = torch.logspace(-1, 1, 201)  # 0.1 to 10


def export(run: Path, out: Path, select: str | None = None, onnx: bool = False) -> Path:
    """Write the model of a run (of the round that source validation selected, or of the last) and its card."""
    if onnx:
        onnx_file.require_packages()
    config = run_folder.read_config(run)
    select = select or config.train.select
    if select not in (config.train.select, "last"):
        raise ConfigError(
            f"--select {select} has no model in this run; give {config.train.select} or last (a run keeps the model of "
            "its key train.select)"
        )
    lines = run_folder.lines(run)
    if not evaluated(lines):
        raise StorageError(
            f"{run} has no evaluated round ({len(lines)} of {config.train.rounds} rounds are done); let it finish: "
            "give the same 'fedbeyond run' again"
        )
    if select == "last" and "scores" not in lines[-1]:
        raise StorageError(f"{run}: its last round so far was not evaluated; let it finish, or leave out --select last")
    experiment = prepare(config)
    if experiment.method.eval_models is not global_model:
        raise ConfigError(f"{config.method} has a model at each site and no global model; there is nothing to export")
    model, line = load_model(run, lines, select)
    card = describe(experiment, line)
    card["warnings"][:0] = unfinished_warning(len(lines), config, card["round"], select)
    net = rebuild(card, model)
    card["temperature"] = temperature(net, list(experiment.validation.values()))
    contents = {MODEL: checkpoint.content(model)}
    if onnx:
        samples = [images[:ONNX_SAMPLES] for images, _ in experiment.validation.values()]
        contents[onnx_file.FILE], card["onnx"] = onnx_file.to_onnx(net, card, samples)
    card["files"] = {name: digest(content) for name, content in contents.items()}
    with _io.storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / onnx_file.FILE).unlink(missing_ok=True)  # one from an earlier export would not match the card
    for name, content in (contents | {CARD: json.dumps(card, indent=1).encode()}).items():
        _io.write(out / name, content)
    return out


def load_model(run: Path, lines: list[Line], select: str) -> tuple[Tree, Line]:
    """Return the model that is exported, and the line of its round."""
    if select == "last":
        if (run / run_folder.LAST).exists():  # with the BatchNorm statistics that it was evaluated with
            return checkpoint.load(run / run_folder.LAST)[0], lines[-1]
        return checkpoint.load(run / run_folder.CHECKPOINT)[0]["state"]["server"]["model"], lines[-1]
    model, notes = checkpoint.load(run / run_folder.BEST)
    for line in lines:
        if line["round"] == notes["round"]:
            return model, line
    raise StorageError(
        f"{run / run_folder.BEST} is of round {notes['round'] + 1}, whose line is not written yet; let the run finish: "
        "give the same 'fedbeyond run' again"
    )


def unfinished_warning(done: int, config: Config, exported: int, select: str) -> list[str]:
    """Warn if rounds of the run are missing: how many are done, and which round's model is exported."""
    if done >= config.train.rounds:
        return []
    which = "the last one so far" if select == "last" else f"the best one so far by {select}"
    return [
        f"the run is not finished: {done} of {config.train.rounds} rounds are done. The exported model is that of "
        f"round {exported}, {which}. To use all rounds, give the same 'fedbeyond run' again, then export again."
    ]


def digest(content: bytes) -> str:
    """Return the digest of a file's contents."""
    return f"sha256:{sha256(content).hexdigest()}"


def describe(experiment: Experiment, line: Line) -> dict[str, Any]:
    """Return the card: what a user of the model has to know."""
    config, data = experiment.config, dataset(experiment.config.data)
    scores, parts = line["scores"].items(), ("val", "local_test", "test")
    warnings = [*cautions.site_warnings(client_samples(partition(config, data), data), data.classes)]
    warnings += cautions.model_warnings({(config.method, str(config.target), config.seed): line}, data.classes)
    tested = {name: splits[part] for name, splits in scores for part in ("val", "test") if part in splits}
    rates = {name: cautions.majority_rate(class_counts(metrics)) for name, metrics in tested.items()}
    inputs: dict[str, Any] = {"pixels": PIXELS}
    if data.complete is not None:
        inputs = {"features": FEATURES, "columns": {name: list(kinds) for name, kinds in data.columns}}
        if label := spec.parse(config.data)[0].options.get("label"):
            inputs["label"] = str(label)
    return {
        "fedbeyond": __version__,
        "method": config.method,
        "network": without_weights(config.network),
        "classes": list(data.classes),
        "shape": list(next(iter(experiment.unseen.values()))[0].shape[1:]),
        **inputs,
        "temperature": 1.0,
        "trained_on": dict(experiment.engine.sizes),
        "unseen": config.target,
        "round": line["round"] + 1,
        "scores": {name: {part: splits[part] for part in parts if part in splits} for name, splits in scores},
        "majority_class": {name: rate for name, rate in rates.items() if rate is not None},
        "warnings": warnings,
        "config": config.identity(),
    }


def temperature(net: torch.nn.Module, splits: list[Any]) -> float:
    """Return the temperature that calibrates the model on the sites' validation images (Guo et al., ICML 2017)."""
    outputs = torch.cat([logits(net, images) for images, _ in splits])
    labels = torch.cat([truth for _, truth in splits])
    losses = torch.stack([F.cross_entropy(outputs / value, labels) for value in TEMPERATURES])
    return round(float(TEMPERATURES[losses.argmin()]), 4)


def rebuild(card: dict[str, Any], model: Tree) -> torch.nn.Module:
    """Build the network that a card describes, with the numbers of a model, in eval mode and float32.

    Options of training (transform, precision, BatchNorm policy) are left at their defaults: they do not change the
    network that is exported, and a card may come from a version that has other ones.
    """
    plugins = tuple(name.partition(" ")[0] for name in card["config"].get("plugins", ()))
    config = Config(
        method=card["method"], network=card["network"], optimizer=card["config"]["optimizer"], plugins=plugins
    )
    assembly = assemble(config, tuple(card["classes"]), tuple(card["shape"]), len(card["trained_on"]))
    return write(assembly.nets["model"], model).eval()


class Exported:
    """An exported model, ready to predict."""

    def __init__(self, folder: Path) -> None:
        if not (folder / CARD).exists():
            raise StorageError(f"{folder} holds no {CARD}; give a folder that 'fedbeyond export' wrote")
        self.card = _io.read_json(folder / CARD)
        known = self.card.get("files", {}).get(MODEL)
        if known and (folder / MODEL).exists() and digest((folder / MODEL).read_bytes()) != known:
            raise StorageError(f"{folder / MODEL} is not the file that {CARD} describes; copy or export both again")
        self.net = rebuild(self.card, checkpoint.load(folder / MODEL)[0])

    @torch.no_grad()
    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return the probability of each class, for images as bytes or for rows of features."""
        return (logits(self.net, inputs) / float(self.card["temperature"])).softmax(1)
