"""Metrics against scikit-learn's, on random cases with classes that are missing, tied and never answered."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from torch import nn

from fedbeyond.classifier import measure
from fedbeyond.evaluation.metrics import calibration_error, classification_metrics, evaluate
from fedbeyond.images import View, mapped


@st.composite
def cases(draw):
    count, images = draw(st.integers(2, 6)), draw(st.integers(2, 40))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    present = draw(st.integers(1, count))  # classes above it have no image
    labels = torch.randint(present, (images,), generator=rng)
    scores = torch.randn(images, count, generator=rng) * draw(st.sampled_from([0.5, 3.0]))
    if draw(st.booleans()):
        scores = scores.round()  # ties
    return scores.softmax(1).double(), labels


@given(cases())
def test_shares_are_those_of_scikit_learn(case):
    probabilities, labels = case
    told, answers = classification_metrics(probabilities, labels), probabilities.argmax(1)
    assert told["accuracy"] == pytest.approx(metrics.accuracy_score(labels, answers), abs=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are answered and not there
        assert told["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, answers), abs=1e-6)
    for average, name in (("macro", "f1"), ("weighted", "f1_weighted")):
        want = metrics.f1_score(labels, answers, average=average, zero_division=0)
        assert told[name] == pytest.approx(want, abs=1e-6)
    want = metrics.confusion_matrix(labels, answers, labels=range(probabilities.shape[1]))
    assert told["confusion"] == want.tolist()


@given(cases())
def test_auc_is_that_of_scikit_learn_over_the_classes_present(case):
    probabilities, labels = case
    told = classification_metrics(probabilities, labels)
    present = sorted(set(labels.tolist()))
    if len(present) == 1:
        assert "auc" not in told
        return
    areas = [metrics.roc_auc_score(labels == place, probabilities[:, place]) for place in present]
    weights = [int((labels == place).sum()) for place in present]
    assert told["auc"] == pytest.approx(sum(areas) / len(areas))
    assert told["auc_weighted"] == pytest.approx(sum(a * w for a, w in zip(areas, weights, strict=True)) / sum(weights))
    if len(present) == probabilities.shape[1] > 2:
        for average, name in (("macro", "auc"), ("weighted", "auc_weighted")):
            want = metrics.roc_auc_score(labels, probabilities, multi_class="ovr", average=average)
            assert told[name] == pytest.approx(want)
    if (
        probabilities.shape[1] == 2
    ):  # either class against the other is the same area: that of scikit-learn's binary score
        want = metrics.roc_auc_score(labels, probabilities[:, 1])
        assert told["auc"] == pytest.approx(want, abs=1e-12) and told["auc_weighted"] == pytest.approx(want, abs=1e-12)


@given(cases(), st.integers(0, 5))
def test_of_one_class_alone_shares_are_those_of_scikit_learn_and_there_is_no_auc(case, place):
    probabilities, labels = case
    labels = torch.full_like(labels, min(place, probabilities.shape[1] - 1))
    told, answers = classification_metrics(probabilities, labels), probabilities.argmax(1)
    assert not {"auc", "auc_weighted"} & told.keys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of a single class
        assert told["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, answers), abs=1e-6)
    for average, name in (("macro", "f1"), ("weighted", "f1_weighted")):
        assert told[name] == pytest.approx(
            metrics.f1_score(labels, answers, average=average, zero_division=0), abs=1e-6
        )


@given(st.integers(2, 5), st.sampled_from([1, 2, 4]), st.integers(0, 10**6))
def test_auc_of_chances_with_few_values_is_that_of_scikit_learn(count, steps, seed):
    """As of a network that is sure of everything: nearly all are ties."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(count), torch.randint(count, (30,), generator=rng)])
    probabilities = torch.randint(steps + 1, (len(labels), count), generator=rng).float() + 0.01
    probabilities = probabilities / probabilities.sum(1, keepdim=True)
    told = classification_metrics(probabilities, labels)
    areas = [metrics.roc_auc_score(labels == place, probabilities[:, place]) for place in range(count)]
    assert told["auc"] == pytest.approx(sum(areas) / count, abs=1e-12)


def test_auc_is_exact_where_one_class_is_rare_among_many_images():
    rng = torch.Generator().manual_seed(0)
    labels = (torch.rand(300_000, generator=rng) > 5e-5).long()
    first = torch.rand(300_000, generator=rng)
    told = classification_metrics(torch.stack([first, 1 - first], 1), labels)
    assert 0 < int((labels == 0).sum()) < 50
    areas = [metrics.roc_auc_score(labels == place, chance) for place, chance in enumerate((first, 1 - first))]
    assert told["auc"] == pytest.approx(sum(areas) / 2, abs=1e-12)


def test_calibration_error_by_hand():
    confidence, right = torch.tensor([0.95, 0.96, 0.55]), torch.tensor([True, False, True])
    # 0.95 and 0.96 share the bin (14/15, 1]: (0.95 + 0.96) / 2 against one half; 0.55 is alone: 0.55 against 1
    assert calibration_error(confidence, right) == pytest.approx((abs(1.91 - 1) + 0.45) / 3)
    assert calibration_error(torch.tensor([1.0, 1.0]), torch.tensor([True, True])) == 0


def test_a_class_without_images_has_no_recall():
    told = classification_metrics(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]), torch.tensor([0, 0]))
    assert told["recall"] == [0.5, None, None] and told["balanced_accuracy"] == 0.5
    assert told["f1"] == pytest.approx((2 / 3 + 0) / 2)  # of the class that is there and the one that was answered


def test_of_many_classes_no_confusion_is_kept():
    assert "confusion" not in classification_metrics(torch.eye(17), torch.arange(17))


def test_images_are_read_a_batch_at_a_time():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images = torch.randint(256, (1030, 3, 2, 2), dtype=torch.uint8)
    labels = torch.randint(3, (1030,))
    asked = []

    class Watched(View):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            asked.append(len(found))
            return found

    told = evaluate(net, (Watched([images], [torch.arange(1030)]), labels))
    assert asked == [128] * 8 + [6]
    short = measure(net, (images, labels))
    assert told["loss"] == short["loss"].item() and told["accuracy"] == short["accuracy"].item()
    assert told["loss"] == pytest.approx(nn.functional.cross_entropy(net(images / 127.5 - 1), labels).item(), rel=1e-5)


def test_images_on_disk_are_judged_as_those_in_memory_and_stay_there(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images = torch.randint(256, (700, 3, 2, 2), dtype=torch.uint8)
    labels, rows = torch.randint(3, (700,)), torch.randperm(700)
    np.save(tmp_path / "images.npy", images.numpy())
    stored = mapped(np.load(tmp_path / "images.npy", mmap_mode="r"))
    assert evaluate(net, (View([stored], [rows]), labels)) == evaluate(net, (images[rows], labels))
    assert evaluate(net, (stored, labels)) == evaluate(net, (images, labels))
