"""What GA's weights must be whatever the gaps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from fedbeyond.errors import ConfigError
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.wrappers.ga import ga
from methods.test_by_hand import shares

gap = st.floats(-5, 5, allow_nan=False, width=32)


@given(st.lists(gap, min_size=2, max_size=6))
def test_weights_are_a_distribution(gaps):
    for options in ({}, {"norm": "max"}, {"center": False, "step": 0.9}):
        weights = shares(gaps, **options)
        assert sum(weights) == approx(1) and min(weights) >= 0


@given(st.lists(gap, min_size=2, max_size=6, unique=True))
def test_the_site_with_the_largest_gap_gains_and_none_moves_further_than_the_step(gaps):
    weights = shares(gaps, step=0.05)
    even = 1 / len(gaps)
    if max(gaps) - min(gaps) > 1e-3:
        assert weights[gaps.index(max(gaps))] > even > weights[gaps.index(min(gaps))]
    assert all(abs(weight - even) <= 0.05 + 1e-9 for weight in weights)


@given(st.permutations(range(5)), st.lists(gap, min_size=5, max_size=5))
def test_renaming_sites_renames_weights(order, gaps):
    weights = shares(gaps)
    assert shares([gaps[i] for i in order]) == approx([weights[i] for i in order])


def test_a_method_that_weighs_for_itself_is_refused_by_name():
    with pytest.raises(ConfigError, match="this method or a wrapper of it does that itself"):
        ga(replace(fedavg(), weighting=None))
    with pytest.raises(ConfigError, match="does that itself"):
        ga(ga(fedavg()))
