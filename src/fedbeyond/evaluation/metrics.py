"""Metrics of a network on a split."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..classifier import logits, mean_loss, write
from ..images import Split
from ..tree import Tree

BINS = 15  # bins of confidence for the calibration error
MAX_CONFUSION_CLASSES = 16  # with more classes, results hold no confusion matrix


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
