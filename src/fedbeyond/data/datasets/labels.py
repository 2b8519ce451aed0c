"""Labels of a Python program as class numbers: whole numbers, texts or booleans, with or without names of classes."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError
from ..finding import shortened
from .columns import MANY_CLASSES

ACCEPTED = "give a whole number, a text or a boolean for each input"


def listed_labels(y: object, where: str) -> list[object]:
    """Return labels as a list of int, str or bool; raise if they are of another kind."""
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    if not (hasattr(y, "__array__") or isinstance(y, list | tuple)):
        raise DataError(f"{where} is of type {type(y).__name__}; {ACCEPTED}, in an array or a list")
    try:
        array = np.asarray(y)
    except ValueError:
        raise DataError(f"{where} is nested lists of different lengths; {ACCEPTED}") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        shape = " x ".join(map(str, array.shape)) or "()"
        one_hot = "; of one-hot labels give y.argmax(1)" if array.ndim == 2 else ""
        raise DataError(f"{where} has shape {shape}; {ACCEPTED}: one axis of the length of x{one_hot}")
    given = list(y) if isinstance(y, list | tuple) and array.dtype.kind in "OSU" else array.tolist()
    return [label_of(value, f"label {row} of {where}") for row, value in enumerate(given)]


def label_of(value: object, where: str) -> object:
    """Return a label as int, str or bool; a number without a fraction is whole."""
    if hasattr(value, "item") and getattr(value, "shape", None) in ((), (1,)):
        value = value.item()  # of a numpy or torch scalar
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip():
        return str(value)
    if isinstance(value, bool | int):
        return value
    kind = repr(value) if isinstance(value, float | str | None) else f"of type {type(value).__name__}"
    fraction = "; regression is not supported" if isinstance(value, float) and value == value else ""
    raise DataError(f"{where} is {kind}; {ACCEPTED}{fraction}")


def encode_labels(
    labels: Mapping[str, Sequence[object]], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Return the names of the classes, and the labels of each site as numbers of classes."""
    kinds = {type(label): site for site, some in labels.items() for label in some}
    if len(kinds) > 1:
        listed = " and ".join(f"of type {kind.__name__} at site {site!r}" for kind, site in kinds.items())
        raise DataError(f"labels are {listed}; give labels of one type")
    different = {label for some in labels.values() for label in some}
    if len(different) < 2:
        raise DataError(f"all labels are {next(iter(different))!r}; give data of two classes or more")
    if classes is None:
        return _without_names(labels, different)
    names = class_names(classes)
    known: dict[object, int] = {name: number for number, name in enumerate(names)}
    if str not in kinds:
        known = {number: number for number in range(len(names))}
    for site, some in labels.items():
        if unknown := [label for label in dict.fromkeys(some) if label not in known]:
            listed = f"0 to {len(names) - 1}" if str not in kinds else shortened(names)
            raise DataError(
                f"labels of site {site!r} are not in classes: {shortened([repr(label) for label in unknown], 3)}; "
                f"{len(names)} classes accept {listed}; fix the labels, or name all classes"
            )
    return names, {site: torch.tensor([known[label] for label in some]) for site, some in labels.items()}


def _without_names(
    labels: Mapping[str, Sequence[object]], different: set[object]
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Return sorted labels as classes."""
    total = sum(map(len, labels.values()))
    if len(different) > MANY_CLASSES and 2 * len(different) > total:
        raise DataError(
            f"y has {len(different)} different labels in {total} rows, hardly any twice; a label names one of a few "
            f"classes, and regression is not supported; give other labels, or name the classes with classes="
        )
    ordered = sorted(different, key=lambda label: (str(label) if isinstance(label, str) else "", _number(label)))
    number_of = {label: number for number, label in enumerate(ordered)}
    encoded = {site: torch.tensor([number_of[label] for label in some]) for site, some in labels.items()}
    return tuple(map(str, ordered)), encoded


def _number(label: object) -> int:
    return label if isinstance(label, int) else 0


def class_names(classes: object) -> tuple[str, ...]:
    """Return names of classes; raise unless they are two different texts or more."""
    listed = classes.tolist() if isinstance(classes, np.ndarray) else classes
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not all(isinstance(c, str) for c in listed):
        raise DataError(
            f"classes is of type {type(classes).__name__}; give the name of each class, as in ['no', 'yes']"
        )
    names = tuple(map(str, listed))
    if len(names) < 2 or len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise DataError(f"classes has {len(names)} names: {shortened(names)}; give two or more, all different")
    return names
