"""Compare predictions with the labels of the data, and describe the result for a terminal."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..evaluation.cautions import WIDTH
from ..evaluation.metrics import classification_metrics

LISTED = 6  # number of names in a message; the others are counted


class LabelSource(NamedTuple):
    """Where labels are looked for, in words."""

    place: str  # such as: column 'ill'
    absent: str  # such as: visits.csv has no labels in a column 'ill'


def score(
    probabilities: Tensor, labels: Sequence[str], classes: Sequence[str], unit: str, source: LabelSource
) -> list[str]:
    """Return lines with accuracy and counts by class, or with the reason why there is no accuracy.

    Labels that are empty or not classes of the model do not count; a line says how many there are.
    """
    index = {name: number for number, name in enumerate(classes)}
    known = torch.tensor([label in index for label in labels])
    unknown = Counter(label for label in labels if label and label not in index)
    if not known.any():
        reason = f"the model does not know the labels ({source.place}: {list_names([*unknown])})"
        return wrap(
            f"no accuracy: {reason if unknown else source.absent}; the model's classes are {list_names(classes)}"
        )
    probabilities, truth = probabilities[known], torch.tensor([index[label] for label in labels if label in index])
    metrics = classification_metrics(probabilities, truth)
    lines = wrap(
        f"accuracy {metrics['accuracy']:.1%}, balanced accuracy {metrics['balanced_accuracy']:.1%} "
        f"({counted(len(truth), unit)}, labels: {source.place})"
    )
    lines += count_table(probabilities.argmax(1), truth, classes, unit)
    if unknown:
        counts = list_names([f"{label} {count:,}" for label, count in unknown.items()])
        lines += wrap(
            f"not counted: {counted(unknown.total(), unit)} whose label is not a class of the model ({counts})"
        )
    if missing := sum(not label for label in labels):
        lines.append(f"not counted: {counted(missing, unit)} without a label")
    return lines


def count_table(predicted: Tensor, truth: Tensor, classes: Sequence[str], unit: str) -> list[str]:
    """Return a table of the classes that occur: how often each is the label, predicted, and predicted correctly."""
    columns = [torch.bincount(each, minlength=len(classes)) for each in (truth, predicted, truth[predicted == truth])]
    rows = [row for row in zip(classes, *(column.tolist() for column in columns), strict=True) if row[1] or row[2]]
    width = max(len(name) for name in ("class", *(row[0] for row in rows)))
    head = f"{'class':{width}}  {unit:>9}  {'predicted':>9}  {'correct':>9}"
    return [head, *(f"{name:{width}}  {label:9,}  {answer:9,}  {hit:9,}" for name, label, answer, hit in rows)]


def counted(number: int, unit: str) -> str:
    """Return a number with its unit, which is given in the plural."""
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"


def list_names(names: Sequence[str]) -> str:
    """Join the first names, and count the others."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def wrap(text: str) -> list[str]:
    """Break a sentence into lines for a terminal."""
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
