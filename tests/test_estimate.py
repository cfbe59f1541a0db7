"""Estimates from what was seen (sections III-D and V of the rate paper)."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.errors import UsageError
from bursar.estimate import (
    Average,
    SlidingWindow,
    count_recent,
    estimate_demand,
    extrapolate,
    has_moved,
)
from bursar.world import MILLISECOND_NS, SECOND_NS


def test_demand_is_the_queue_and_the_arrivals_carried_on():
    """Section III-D."""
    assert estimate_demand(30, 200, SECOND_NS, 4 * SECOND_NS) == 830
    assert estimate_demand(30, 200, SECOND_NS, 0) == 30
    assert estimate_demand(30, 0, 0, SECOND_NS) == 30


def test_a_closed_loop_tenant_is_believed_to_want_all_that_is_left():
    """Five requests outstanding, one answered each 20 ms: 50 arrive in a second, whatever the
    tenant would take."""
    hidden = estimate_demand(5, 50, SECOND_NS, SECOND_NS, capacity_left=1000)
    assert hidden == 55
    assert estimate_demand(5, 50, SECOND_NS, SECOND_NS, backlogged=True, capacity_left=1000) == 1000
    assert estimate_demand(5, 5000, SECOND_NS, SECOND_NS, backlogged=True, capacity_left=1000) == 5005


@given(st.integers(0, 2**40), st.integers(1, 10**12), st.integers(1, 10**12))
def test_extrapolation_is_the_nearest_whole_number(count, seen, left):
    assert abs(extrapolate(count, seen, left) * seen - count * left) * 2 <= seen


def test_small_counts_move_by_more_than_chance_before_they_are_news():
    assert not has_moved(3, 7)
    assert has_moved(3, 8)
    assert not has_moved(1000, 1050)
    assert has_moved(1000, 1060)
    assert not has_moved(0, 0)
    assert has_moved(100, 0)


def test_an_even_pace_is_counted_whole():
    for rate in (0.3, 1.0, 2.5, 40.0):
        counts = [int((k + 1) * rate) - int(k * rate) for k in range(20)]
        assert count_recent(counts)[1] == 20


def test_chance_arrivals_keep_most_of_the_interval():
    rng = random.Random(7)
    kept = []
    for _ in range(500):
        moments = sorted(rng.uniform(0, 10) for _ in range(400))
        counts = [sum(k <= m < k + 1 for m in moments) for k in range(10)]
        kept.append(count_recent(counts)[1])
    assert sum(kept) / len(kept) > 7.5


@pytest.mark.parametrize("before, after", [(100, 0), (0, 100), (40, 120), (300, 90)])
def test_what_was_before_a_change_is_forgotten(before, after):
    total, parts = count_recent([before] * 6 + [after] * 4)
    assert (total, parts) == (4 * after, 4)


def test_the_first_value_is_the_average_and_later_ones_pull_it():
    average = Average(0.25)
    assert average.value is None
    assert average.add(8.0) == 8.0
    assert average.add(16.0) == 10.0
    assert average.add(10.0) == 10.0
    for _ in range(100):
        average.add(3.0)
    assert average.value == pytest.approx(3.0)
    with pytest.raises(UsageError, match="alpha"):
        Average(0.0)


def test_a_window_forgets_what_is_older_than_its_span():
    window = SlidingWindow(SECOND_NS)
    for k in range(50):
        window.add(k * 100 * MILLISECOND_NS, 5)
    now = 49 * 100 * MILLISECOND_NS
    assert window.count(now) == 50
    assert window.rate(now + 99 * MILLISECOND_NS) == pytest.approx(50, rel=0.02)
    assert window.counts(now) == [5] * 10
    assert window.count(now + 5 * SECOND_NS) == 0
    assert window.rate(now + 5 * SECOND_NS) == 0.0


def test_a_young_window_divides_by_the_time_it_has_watched():
    window = SlidingWindow(SECOND_NS)
    assert window.rate(0) == 0.0
    for k in range(20):
        window.add(7 * SECOND_NS + k * 10 * MILLISECOND_NS)
    assert window.rate(7 * SECOND_NS + 200 * MILLISECOND_NS) == pytest.approx(100, rel=0.01)


def test_a_window_holds_a_bounded_number_of_parts():
    window = SlidingWindow(SECOND_NS, parts=4)
    for k in range(10_000):
        window.add(k * 37 * MILLISECOND_NS)
    assert len(window._counts) <= 4
    with pytest.raises(UsageError, match="parts"):
        SlidingWindow(3, parts=4)


def test_estimates_need_no_numpy():
    code = "import sys, bursar.estimate; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
