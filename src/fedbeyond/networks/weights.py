"""Numbers that were learnt on ImageNet: the images they expect, and how a file of them gets into a network."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..classifier import Classifier, Task, require_images
from ..errors import ConfigError, MissingError

Three = tuple[float, float, float]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMED = 3  # names that an error message lists


def normalised(x: Tensor, mean: Three = MEAN, std: Three = STD) -> Tensor:
    """Images in -1..1 as networks trained on ImageNet expect them: in 0..1, less `mean`, over `std`."""
    scale = [0.5 / spread for spread in std]
    shift = [(0.5 - middle) / spread for middle, spread in zip(mean, std, strict=True)]
    return x * x.new_tensor(scale).view(3, 1, 1) + x.new_tensor(shift).view(3, 1, 1)


def require_colours(task: Task, name: str) -> None:
    """Refuse images that a network made for ImageNet cannot take."""
    require_images(task, name)
    if task.shape[0] != 3:
        raise ConfigError(f"{name} takes images of 3 channels, these have {task.shape[0]}; take convnet for them")


def load(net: Classifier, path: str, head: str, found: dict[str, Tensor] | None = None) -> Classifier:
    """Put the numbers of a file into a body, and into the head if the file's answers as many classes; returns the net.

    `head` is the file's name for the last layer. `found` is what the file holds, if it was read before.
    """
    found = dict(read(path) if found is None else found)
    last = {part: found.pop(f"{head}.{part}") for part in ("weight", "bias") if f"{head}.{part}" in found}
    own = net.body.state_dict()
    for name in own.keys() - found.keys():
        if name.endswith(".num_batches_tracked"):  # files older than this counter lack it
            found[name] = own[name]
    _compare(path, found, own)
    net.body.load_state_dict(found)
    fresh = net.head.state_dict()
    if last.keys() == fresh.keys() and all(last[part].shape == fresh[part].shape for part in fresh):
        net.head.load_state_dict(last)
    return net


def read(path: str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth file that holds nothing else."""
    place = Path(path).expanduser()
    if not place.is_file():
        raise MissingError(f"weights {path}: no such file; give a torchvision .pth file or a .safetensors file")
    try:
        if place.suffix == ".safetensors":
            return load_file(place)
        found = torch.load(place, map_location="cpu", weights_only=True)
    except Exception as error:  # a file of another kind can provoke anything, and torch then advises to trust it
        reason = type(error).__name__
        raise ConfigError(f"weights {path}: cannot be read ({reason}); give a file that holds only tensors") from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ConfigError(f"weights {path}: not tensors by name; give a file with the network's state_dict alone")
    return found


def _compare(path: str, found: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    lacking, odd = sorted(own.keys() - found.keys()), sorted(found.keys() - own.keys())
    if lacking or odd:
        told = [f"{word} {_first(names)}" for word, names in (("lacks", lacking), ("has unknown", odd)) if names]
        raise ConfigError(f"weights {path}: the file {' and '.join(told)}; give weights of the network that is named")
    wrong = [
        f"{name} {tuple(found[name].shape)} for {tuple(own[name].shape)}"
        for name in own
        if found[name].shape != own[name].shape
    ]
    if wrong:
        raise ConfigError(f"weights {path}: other shapes: {_first(wrong)}; give weights of the network that is named")


def _first(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
