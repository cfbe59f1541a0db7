"""Whole tokens out of fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.apportion import apportion, apportion_within
from bursar.errors import UsageError

totals = st.integers(0, 2**60)
whole_weights = st.lists(st.integers(0, 2**60), min_size=1, max_size=30)
any_weights = st.lists(
    st.one_of(st.integers(0, 1000), st.floats(0, 1e6), st.fractions(0, 1000)), min_size=1, max_size=12
)
capped = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=20)


@given(totals, whole_weights.filter(any))
def test_parts_sum_to_the_total_and_are_the_share_rounded_down_or_up(total, weights):
    parts = apportion(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - Fraction(total * weight, sum(weights))) < 1


@given(totals, any_weights.filter(any))
def test_floats_and_fractions_are_weighed_exactly(total, weights):
    parts = apportion(total, weights)
    whole = sum(Fraction(weight) for weight in weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * Fraction(weight) / whole) < 1


@given(totals, whole_weights.filter(any))
def test_a_larger_weight_never_gets_less(total, weights):
    pairs = sorted(zip(weights, apportion(total, weights), strict=True))
    for (light, less), (heavy, more) in pairwise(pairs):
        assert light == heavy or less <= more


def test_ties_go_to_the_earlier():
    assert apportion(2, [1, 1, 1]) == [1, 1, 0]
    assert apportion(10, [3, 3, 3]) == [4, 3, 3]


def test_nothing_to_divide_needs_no_weight():
    assert apportion(0, [0, 0]) == [0, 0]
    assert apportion(0, []) == []


@given(st.integers(0, 20_000), capped)
def test_capped_parts_take_all_that_fits(total, pairs):
    weights, caps = [w for w, _ in pairs], [c for _, c in pairs]
    parts = apportion_within(total, weights, caps)
    assert sum(parts) == min(total, sum(cap for weight, cap in pairs if weight))
    assert all(part <= cap for part, cap in zip(parts, caps, strict=True))
    assert all(part == 0 for part, weight in zip(parts, weights, strict=True) if weight == 0)


@given(st.integers(0, 20_000), capped)
def test_parts_below_their_cap_are_in_proportion(total, pairs):
    weights, caps = [w for w, _ in pairs], [c for _, c in pairs]
    parts = apportion_within(total, weights, caps)
    below = [(p, w) for p, w, c in zip(parts, weights, caps, strict=True) if w and p < c]
    for part, weight in below:
        share = Fraction(sum(p for p, _ in below) * weight, sum(w for _, w in below))
        assert abs(part - share) < 1


@given(st.integers(0, 20_000), st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_caps_that_do_not_bind_change_nothing(total, weights):
    assert apportion_within(total, weights, [total] * len(weights)) == apportion(total, weights)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: apportion(-1, [1]), "total is -1"),
        (lambda: apportion(3, [1, -2]), "weight 1 is -2"),
        (lambda: apportion(3, [float("nan")]), "weight 0 is nan"),
        (lambda: apportion(3, [float("inf")]), "weight 0 is inf"),
        (lambda: apportion(3, [0, 0]), "every weight is zero"),
        (lambda: apportion_within(3, [1, 1], [1]), "caps"),
        (lambda: apportion_within(3, [1, 1], [1, -1]), "caps"),
    ],
)
def test_bad_input_gets_a_clear_error(call, says):
    with pytest.raises(UsageError, match=says):
        call()
