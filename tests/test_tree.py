"""Trees form a vector space, and survive being flattened."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbeyond import tree

key = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="._+-"), min_size=1, max_size=4)
leaf = st.lists(st.integers(-8, 8), min_size=0, max_size=4).map(lambda xs: torch.tensor(xs, dtype=torch.float64))
trees = st.dictionaries(key, st.recursive(leaf, lambda node: st.dictionaries(key, node, max_size=3), max_leaves=6))


def same(a, b):
    a, b = tree.flatten(a), tree.flatten(b)
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k]) for k in a)


def like(a, shift):
    return tree.map(lambda x: torch.arange(x.numel(), dtype=x.dtype) + shift, a)


@given(trees)
def test_unflatten_undoes_flatten(a):
    assert same(tree.unflatten(tree.flatten(a)), a)
    assert list(tree.flatten(tree.unflatten(tree.flatten(a)))) == list(tree.flatten(a))


@given(trees, st.integers(-3, 3))
def test_trees_are_a_vector_space(a, n):
    b = like(a, n)
    assert same(tree.add(a, b), tree.add(b, a))
    assert same(tree.sub(tree.add(a, b), b), a)
    assert same(tree.add(a, tree.zeros(a)), a)
    assert same(tree.scale(2.0, tree.add(a, b)), tree.add(tree.scale(2.0, a), tree.scale(2.0, b)))
    assert torch.allclose(tree.dot(a, b).double(), tree.dot(b, a).double())


@given(trees, st.lists(st.floats(0.1, 9), min_size=1, max_size=4))
def test_the_mean_of_equal_trees_is_the_tree(a, weights):
    assert same(tree.mean([a] * len(weights), weights), a)


@given(trees, st.floats(0.1, 9), st.floats(0.1, 9))
def test_a_mean_lies_where_its_weights_say(a, wa, wb):
    b = like(a, 1)
    want = tree.scale(1 / (wa + wb), tree.add(tree.scale(wa, a), tree.scale(wb, b)))
    assert same(tree.mean([a, b], [wa, wb]), want)


def test_of_counters_the_mean_is_the_largest():
    counts = [{"n": torch.tensor(3)}, {"n": torch.tensor(7)}]
    assert tree.mean(counts, [9.0, 1.0])["n"].item() == 7


def test_a_mean_changes_none_of_its_trees():
    first, second = {"x": torch.ones(2)}, {"x": torch.zeros(2)}
    tree.mean([first, second], [1.0, 1.0])
    assert first["x"].tolist() == [1, 1] and second["x"].tolist() == [0, 0]


def test_weights_that_sum_to_nothing_are_refused():
    with pytest.raises(ValueError, match="positive sum"):
        tree.mean([{"x": torch.ones(1)}], [0.0])


def test_trees_of_different_keys_are_refused():
    with pytest.raises(ValueError, match="differ in their keys"):
        tree.add({"x": torch.ones(1)}, {"y": torch.ones(1)})


@pytest.mark.parametrize("key", ["", "a/b"])
def test_keys_that_would_not_survive_flattening_are_refused(key):
    with pytest.raises(ValueError, match="must not contain '/'"):
        tree.flatten({key: torch.ones(1)})
