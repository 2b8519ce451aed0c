"""Metrics of a network on a split."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..classifier import logits, mean_loss, write
from ..images import Split
from ..server import MAX_WEIGHT
from ..tree import Tree

BINS = 15  # bins of confidence for the calibration error
MAX_CONFUSION_CLASSES = 16  # with more classes, results hold no confusion matrix
SHARES = ("accuracy", "balanced_accuracy", "f1", "f1_weighted", "calibration_error")
COUNTS = ("recall", "confusion")  # of each class; a site that rounds its scores leaves them out
AREAS = ("auc", "auc_weighted")  # absent, or None in a mean, if there is only one class
MAX_FLOAT = torch.finfo(torch.float32).max  # largest finite loss: a sum of larger ones may overflow
ROUNDING = 1e-6  # shares are float32 and may exceed 1 by this


def evaluate(net: nn.Module, split: Split) -> dict[str, Any]:
    """Compute all metrics of a result line for a model on a split; rates are between 0 and 1."""
    images, labels = split
    outputs = logits(net, images)
    return {"loss": mean_loss(outputs, labels).item()} | classification_metrics(outputs.softmax(1), labels)


def evaluate_models(net: nn.Module, models: Sequence[Tree], split: Split) -> dict[str, Any]:
    """Compute all metrics of a result line on a split; for several models, their mean."""
    metrics = [evaluate(write(net, model), split) for model in models]
    return metrics[0] if len(metrics) == 1 else {key: _mean([m.get(key) for m in metrics]) for key in metrics[0]}


def _mean(values: list[Any]) -> Any:
    """Return the mean of numbers, or of lists element by element; None where a value is missing."""
    if isinstance(values[0], list):
        return [_mean(list(elements)) for elements in zip(*values, strict=True)]
    return None if None in values else sum(values) / len(values)


def classification_metrics(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """Compute metrics of predicted probabilities (image x class); classes may be without images.

    AUC is one class against the rest, over classes with both positive and negative images. F1 is over classes that are
    present or predicted, as in scikit-learn. The calibration error is the distance of confidence from accuracy.
    """
    count = probabilities.shape[1]
    confidence, predicted = probabilities.max(1)
    confusion = torch.bincount(labels * count + predicted, minlength=count * count).view(count, count)
    actual, answered, correct = confusion.sum(1), confusion.sum(0), confusion.diag()
    present, either = actual > 0, actual + answered > 0
    recall = correct / actual.clamp(min=1)
    f1 = 2 * correct / (actual + answered).clamp(min=1)
    metrics: dict[str, Any] = {
        "accuracy": float(correct.sum() / len(labels)),
        "balanced_accuracy": float(recall[present].mean()),
        "f1": float(f1[either].mean()),
        "f1_weighted": float((f1 * actual).sum() / len(labels)),
        "calibration_error": calibration_error(confidence, predicted == labels),
    }
    metrics |= auc(probabilities, labels)
    metrics["recall"] = [round(float(r), 4) if known else None for r, known in zip(recall, present, strict=True)]
    return metrics | ({"confusion": confusion.tolist()} if count <= MAX_CONFUSION_CLASSES else {})


def auc(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the one-against-rest AUC of each class; return the mean over classes, plain and weighted by images."""
    areas, weights = [], []
    for index in range(probabilities.shape[1]):
        positive = labels == index
        positives, negatives = int(positive.sum()), int((~positive).sum())
        if positives and negatives:
            _, group, counts = probabilities[:, index].unique(return_inverse=True, return_counts=True)
            ranks = (counts.cumsum(0) - (counts - 1).double() / 2)[group]  # ties share their mean rank
            wins = float(ranks[positive].sum()) - positives * (positives + 1) / 2
            areas.append(wins / (positives * negatives))
            weights.append(positives)
    if not areas:  # only one class: AUC is undefined
        return {}
    weighted = sum(area * weight for area, weight in zip(areas, weights, strict=True)) / sum(weights)
    return {"auc": sum(areas) / len(areas), "auc_weighted": weighted}


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Compute the expected calibration error: mean |confidence - accuracy| over bins (Guo and others, ICML 2017)."""
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, confidence.double() - right.double())
    return float(gaps.abs().sum() / len(right))


def rounded(metrics: Mapping[str, Any], digits: int) -> dict[str, Any]:
    """Round shares to so many decimals and the loss to so many digits; leave out recall and confusion.

    These two count few samples exactly. The loss has no scale: the larger a model's outputs, the more digits of it
    stand before the decimal point.
    """
    kept = {name: value for name, value in metrics.items() if name not in COUNTS}
    shares = {name: None if value is None else round(value, digits) for name, value in kept.items()}
    return shares | {"loss": float(f"{metrics['loss']:.{max(digits, 1)}g}")}


def are_plausible(metrics: Any, classes: int, images: int | None = None) -> bool:
    """Return whether these can be the metrics of a model on a split, with the names and ranges of `evaluate`.

    They may be `rounded`. The loss and the calibration error of a model that diverged are not finite; every other
    number is.
    """
    if not isinstance(metrics, dict):
        return False
    needed = {"loss", *SHARES}
    if metrics.keys() & {*COUNTS}:
        needed |= {"recall"} | ({"confusion"} if classes <= MAX_CONFUSION_CLASSES else set())
    if not needed <= metrics.keys() <= needed | {*AREAS}:
        return False
    loss, error, recall = metrics["loss"], metrics["calibration_error"], metrics.get("recall", [None] * classes)
    areas = [metrics[name] for name in AREAS if metrics.get(name) is not None]
    shares = [metrics[name] for name in SHARES if name != "calibration_error"] + areas
    return (
        (_is_number(loss) and (0 <= loss <= MAX_FLOAT or loss == math.inf or loss != loss))
        and (_is_share(error) or (_is_number(error) and error != error))
        and all(map(_is_share, shares))
        and _is_row(recall, classes)
        and all(share is None or _is_share(share) for share in recall)
        and ("confusion" not in metrics or _is_confusion(metrics["confusion"], classes, images))
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)  # True is an int, but no number


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1 + ROUNDING


def _is_row(values: Any, length: int) -> bool:
    return isinstance(values, list) and len(values) == length


def _is_confusion(matrix: Any, classes: int, images: int | None) -> bool:
    """Return whether this is a confusion matrix of as many images as are known, or of any plausible number."""
    if not _is_row(matrix, classes) or not all(_is_row(row, classes) for row in matrix):
        return False
    cells = [cell for row in matrix for cell in row]
    if not all(_is_number(cell) and 0 <= cell <= MAX_WEIGHT for cell in cells):
        return False
    return images is None or abs(sum(cells) - images) <= ROUNDING * images
