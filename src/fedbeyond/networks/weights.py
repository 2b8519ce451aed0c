"""Pretrained weights: the input normalisation of ImageNet networks, and loading a file into a network."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..classifier import Classifier, Task, require_images
from ..errors import ConfigError, MissingError

Weights = Annotated[str, "file of pretrained parameters; empty: random initialisation"]
Three = tuple[float, float, float]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMED = 3  # number of names in an error message


def normalised(x: Tensor, mean: Three = MEAN, std: Three = STD) -> Tensor:
    """Normalise images from -1..1 as ImageNet networks expect: scale to 0..1, subtract `mean`, divide by `std`."""
    scale = [0.5 / s for s in std]
    shift = [(0.5 - m) / s for m, s in zip(mean, std, strict=True)]
    return x * x.new_tensor(scale).view(3, 1, 1) + x.new_tensor(shift).view(3, 1, 1)


def require_colours(task: Task, name: str) -> None:
    """Raise `ConfigError` unless the data are images of three channels, which ImageNet networks need."""
    require_images(task, name)
    if task.shape[0] != 3:
        raise ConfigError(f"{name} needs images of 3 channels, these have {task.shape[0]}; use convnet")


def load(net: Classifier, path: str, head: str, tensors: dict[str, Tensor] | None = None) -> Classifier:
    """Load a file into the body, and into the head if the number of classes is the same; return the network.

    `head` is the file's name for the last layer. `tensors` is the content of the file, if it was read before.
    """
    tensors = dict(read(path) if tensors is None else tensors)
    last = {key: tensors.pop(f"{head}.{key}") for key in ("weight", "bias") if f"{head}.{key}" in tensors}
    expected = net.body.state_dict()
    for name in expected.keys() - tensors.keys():
        if name.endswith(".num_batches_tracked"):  # missing in files older than this counter
            tensors[name] = expected[name]
    _require_same(path, tensors, expected)
    net.body.load_state_dict(tensors)
    initial = net.head.state_dict()
    if last.keys() == initial.keys() and all(last[key].shape == initial[key].shape for key in initial):
        net.head.load_state_dict(last)
    return net


def read(path: str) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file, or of a .pth file that holds only tensors; once until `forget`."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise MissingError(f"weights {path}: no such file; give a torchvision .pth file or a .safetensors file")
    return _read(file, path, file.stat().st_mtime_ns)


def forget() -> None:
    """Release the file that was read last; the networks of one method that share it are built."""
    _read.cache_clear()


@lru_cache(maxsize=1)
def _read(file: Path, path: str, changed: int) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # another kind of file can raise anything, and torch's message advises to trust it
        reason = type(error).__name__
        raise ConfigError(f"weights {path}: cannot be read ({reason}); give a file that holds only tensors") from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ConfigError(f"weights {path}: not a dict of tensors; give a file with only the network's state_dict")
    return tensors


def _require_same(path: str, tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise `ConfigError` if names or shapes of the tensors differ from the expected ones."""
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        faults = [f"{verb} {_first(names)}" for verb, names in (("lacks", missing), ("has unknown", unknown)) if names]
        raise ConfigError(f"weights {path}: the file {' and '.join(faults)}; give weights of the configured network")
    wrong = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if tensors[name].shape != expected[name].shape
    ]
    if wrong:
        raise ConfigError(f"weights {path}: wrong shapes: {_first(wrong)}; give weights of the configured network")


def _first(names: list[str]) -> str:
    """Join the first names, and count the others."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
