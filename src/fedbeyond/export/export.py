"""Export the model of a run: its numbers, and a card that describes it."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import __version__, _io
from .._method import global_model
from ..classifier import logits, write
from ..errors import ConfigError, StorageError
from ..evaluation import cautions
from ..evaluation.selection import Line, class_counts, evaluated
from ..experiment import checkpoint, registry, run_folder
from ..experiment.build import assemble, dataset, partition, without_weights
from ..experiment.config import Config
from ..experiment.plan import client_samples
from ..experiment.prepare import Experiment, prepare
from ..networks import PLACES
from ..networks.own import factory_of
from ..tree import Tree
from . import onnx_file

MODEL, CARD = "model.safetensors", "model.json"
ONNX_SAMPLES = 32  # images of each site on which an ONNX file is compared with the model
PIXELS = "RGB, resized to a square (bilinear), bytes divided by 127.5 minus 1"
FEATURES = (
    "the columns in their order: a number, or a one-hot vector of the categories; missing values imputed (median, most "
    "frequent category) and numbers standardised (mean 0, standard deviation 1) with all rows of the site"
)
UNCHANGED = "rows of numbers as they are, not standardised"
TEMPERATURES = torch.logspace(-1, 1, 201)  # 0.1 to 10


def export(run: Path, out: Path, select: str | None = None, onnx: bool = False) -> Path:
    """Write the model of a run (of the round that source validation selected, or of the last) and its card."""
    if onnx:
        onnx_file.require_packages()
    config = run_folder.read_config(run)
    select = select or config.train.select
    if select not in (config.train.select, "last"):
        raise ConfigError(
            f"select {select}: the model is not kept in this run; give {config.train.select} or last (a run keeps the "
            "model of its key train.select)"
        )
    lines = run_folder.lines(run)
    if not evaluated(lines):
        raise StorageError(
            f"{run} has no evaluated round ({len(lines)} of {config.train.rounds} rounds are done); let it finish: "
            "give the same 'fedbeyond run' again"
        )
    if select == "last" and "scores" not in lines[-1]:
        raise StorageError(f"{run}: its last round so far was not evaluated; let it finish, or do not select the last")
    run_folder.ensure_own_code(run, config)
    experiment = prepare(config, cached=False)
    ensure_global_model(experiment)
    model, line = load_model(run, lines, select, experiment.assembly.frozen)
    model = experiment.assembly.whole_model(model)
    card = describe(experiment, line)
    card["warnings"][:0] = unfinished_warning(len(lines), config, card["round"], select)
    net = rebuild(card, model)
    card["temperature"] = temperature(net, list(experiment.validation.values()))
    contents = {MODEL: checkpoint.content(model)}
    if onnx:
        samples = [images[:ONNX_SAMPLES] for images, _ in experiment.validation.values()]
        contents[onnx_file.FILE], card["onnx"] = onnx_file.to_onnx(net, card, samples)
    card["files"] = {name: digest(content) for name, content in contents.items()}
    contents[CARD] = json.dumps(card, indent=1).encode()
    with _io.storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    _io.write_all({out / name: content for name, content in contents.items()})
    if not onnx:
        with _io.storage_errors(out):
            (out / onnx_file.FILE).unlink(missing_ok=True)  # one from an earlier export does not match the card
    return out


def ensure_global_model(experiment: Experiment) -> None:
    """Raise `ConfigError` if a method has no global model that other sites could use."""
    if experiment.method.eval_models is not global_model:
        raise ConfigError(
            f"{experiment.config.method} has a model at each site and no global model; there is nothing to export"
        )


def load_model(run: Path, lines: list[Line], select: str, frozen: str = "") -> tuple[Tree, Line]:
    """Return the model that is exported, and the line of its round; `frozen` is the digest of what is not in it."""
    # the last one has the BatchNorm statistics that it was evaluated with
    last = run_folder.LAST if (run / run_folder.LAST).exists() else run_folder.CHECKPOINT
    file = run / (last if select == "last" else run_folder.BEST)
    model, notes = checkpoint.load(file)
    run_folder.ensure_same_frozen(notes, frozen, file)
    if select == "last":
        return model["state"]["server"]["model"] if last == run_folder.CHECKPOINT else model, lines[-1]
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
        columns = {name: list(kinds) for name, kinds in data.columns}
        inputs = {"features": FEATURES if columns else UNCHANGED, "columns": columns}
        given = {"label": data.label, "missing": list(data.missing)}
        inputs |= {key: value for key, value in given.items() if value}
    return {
        "fedbeyond": __version__,
        "method": config.method,
        "network": without_weights(config.network),
        **own_network(config.network),
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


def own_network(network: str) -> dict[str, str]:
    """Return where the function that builds a network is, "module:name", if it is not one of fedbeyond's."""
    name = registry.single(network).name
    if name in PLACES:
        return {}
    factory = registry.find("networks", name)
    return {"network_factory": f"{factory.__module__}:{getattr(factory, '__qualname__', type(factory).__name__)}"}


def temperature(net: torch.nn.Module, splits: list[Any]) -> float:
    """Return the temperature that calibrates the model on the sites' validation images (Guo et al., ICML 2017)."""
    outputs = torch.cat([logits(net, images) for images, _ in splits])
    labels = torch.cat([truth for _, truth in splits])
    losses = torch.stack([F.cross_entropy(outputs / value, labels) for value in TEMPERATURES])
    return round(float(TEMPERATURES[losses.argmin()]), 4)


def rebuild(card: dict[str, Any], model: Tree, network: object = None) -> torch.nn.Module:
    """Build the network that a card describes, with the numbers of a model, in eval mode and float32.

    A `network` that is given (a module or a function that returns one) is used instead of the one that the card names.

    Options of training (transform, precision, BatchNorm policy) are left at their defaults: they do not change the
    network that is exported, and a card may come from a version that has other ones.
    """
    plugins = tuple(name.partition(" ")[0] for name in card["config"].get("plugins", ()))
    config = Config(
        method=card["method"], network=card["network"], optimizer=card["config"]["optimizer"], plugins=plugins
    )
    registry.load_plugins(plugins)
    name, place = registry.single(card["network"]).name, card.get("network_factory", "")
    if network is None and place and name not in registry.known("networks"):
        own = place.startswith("__main__:") or "<" in place  # no module has it
        function, module = ("your function", "a module with it") if own else (place.replace(":", "."), "that module")
        origin = "a script or notebook" if own else place
        raise ConfigError(
            f"this model uses the network {name!r} of {origin}, which is unknown here; "
            f'call fedbeyond.register("networks", "{name}", {function}) first, or name {module} in the key plugins of '
            "the run and export again"
        )
    size: tuple[Any, ...] = (tuple(card["classes"]), tuple(card["shape"]), len(card["trained_on"]))
    assembly = assemble(config, *size, network=None if network is None else factory_of(network))
    try:
        return write(assembly.nets["model"], model).eval()
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the network {card['network']} does not have the parameters of this model ({error}); use the network that "
            "it was trained with"
        ) from error


class Exported:
    """An exported model, ready to predict; `network` builds it if it is not one that is registered."""

    def __init__(self, folder: Path, network: object = None) -> None:
        if not (folder / CARD).exists():
            raise StorageError(f"{folder} holds no {CARD}; give a folder that 'fedbeyond export' wrote")
        self.card = _io.read_json(folder / CARD)
        known = self.card.get("files", {}).get(MODEL)
        if known and (folder / MODEL).exists() and digest((folder / MODEL).read_bytes()) != known:
            raise StorageError(f"{folder / MODEL} is not the file that {CARD} describes; copy or export both again")
        self.net = rebuild(self.card, checkpoint.load(folder / MODEL, "copy or export it again")[0], network)

    @torch.no_grad()
    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return the probability of each class, for images as bytes or for rows of features."""
        return (logits(self.net, inputs) / float(self.card["temperature"])).softmax(1)
