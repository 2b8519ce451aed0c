"""How good a model is: metrics of a network on a split."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..classifier import mean_loss, scores, write
from ..images import Split
from ..tree import Tree

BINS = 15  # of confidence, for the calibration error
MOST_CLASSES = 16  # whose confusion is kept with every result


def evaluate(net: nn.Module, split: Split) -> dict[str, Any]:
    """All that a result line says of a model on a split; shares between 0 and 1."""
    images, labels = split
    said = scores(net, images)
    return {"loss": mean_loss(said, labels).item()} | judge(said.softmax(1), labels)


def on_average(net: nn.Module, models: Sequence[Tree], split: Split) -> dict[str, Any]:
    """What a result line says of models on a split; of several, the mean."""
    found = [evaluate(write(net, model), split) for model in models]
    return found[0] if len(found) == 1 else {key: _middle([one.get(key) for one in found]) for key in found[0]}


def _middle(values: list[Any]) -> Any:
    """The mean of numbers, or of lists of them, place by place; none where one is missing."""
    if isinstance(values[0], list):
        return [_middle(list(each)) for each in zip(*values, strict=True)]
    return None if None in values else sum(values) / len(values)


def judge(chances: Tensor, labels: Tensor) -> dict[str, Any]:
    """How good predicted chances (image x class) are, whichever classes there are images of.

    AUC is that of each class against all others, for classes that some images have and others have not; F1 is over
    classes that are there or were answered, as in scikit-learn. Calibration error: how far confidence is from accuracy.
    """
    count = chances.shape[1]
    confidence, answers = chances.max(1)
    confusion = torch.bincount(labels * count + answers, minlength=count * count).view(count, count)
    true, answered, right = confusion.sum(1), confusion.sum(0), confusion.diag()
    here, either = true > 0, true + answered > 0
    recall = right / true.clamp(min=1)
    f1 = 2 * right / (true + answered).clamp(min=1)
    told: dict[str, Any] = {
        "accuracy": float(right.sum() / len(labels)),
        "balanced_accuracy": float(recall[here].mean()),
        "f1": float(f1[either].mean()),
        "f1_weighted": float((f1 * true).sum() / len(labels)),
        "calibration_error": calibration_error(confidence, answers == labels),
    }
    told |= ranking(chances, labels)
    told["recall"] = [round(float(share), 4) if there else None for share, there in zip(recall, here, strict=True)]
    return told | ({"confusion": confusion.tolist()} if count <= MOST_CLASSES else {})


def ranking(chances: Tensor, labels: Tensor) -> dict[str, float]:
    """The area under the curve of each class against the rest: the mean over classes, and that weighted by images."""
    areas, weights = [], []
    for place in range(chances.shape[1]):
        own = labels == place
        positives, negatives = int(own.sum()), int((~own).sum())
        if positives and negatives:
            _, group, many = chances[:, place].unique(return_inverse=True, return_counts=True)
            ranks = (many.cumsum(0) - (many - 1).double() / 2)[group]  # of ties, the middle
            wins = float(ranks[own].sum()) - positives * (positives + 1) / 2
            areas.append(wins / (positives * negatives))
            weights.append(positives)
    if not areas:  # one class alone: there is nothing to rank
        return {}
    weighted = sum(area * weight for area, weight in zip(areas, weights, strict=True)) / sum(weights)
    return {"auc": sum(areas) / len(areas), "auc_weighted": weighted}


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """The mean distance of confidence from accuracy, over bins of confidence (Guo and others, ICML 2017)."""
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, confidence.double() - right.double())
    return float(gaps.abs().sum() / len(right))
