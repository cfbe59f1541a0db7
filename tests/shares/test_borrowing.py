"""The allocation against the paper's equations (section III-C) and its own promises."""

from __future__ import annotations

import random

import numpy as np
import pytest
import shares_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.errors import UsageError
from bursar.shares.borrowing import (
    DEFAULT_TERMS,
    Terms,
    allocate,
    decay,
    fill,
    make_whole,
    payback_bound,
    settle,
)

HISTORIES = 2_000
INTERVALS = 15


def run(tokens, rows, terms=DEFAULT_TERMS):
    return allocate(
        tokens,
        np.array([row.weight for row in rows], float),
        np.array([row.demand for row in rows], np.int64),
        np.array([row.record for row in rows], np.int64),
        np.array([row.previous for row in rows], np.int64),
        np.array([row.remainder for row in rows], float),
        terms,
    )


def fresh(weight, demand, record=0, previous=0):
    return reference.Row(weight, demand, record, previous, 0.0)


def random_terms(chance):
    return Terms(
        needed_first=chance.random() < 0.6,
        borrow_cap=chance.choice([None, None, 0, 5, 1_000]),
        lend_cap=chance.choice([None, None, 0, 7, 500]),
    )


def advance(rows, active, allocation):
    """Carry one interval's outcome into the next."""
    for position, x in enumerate(active):
        rows[x].record = int(allocation.record[position])
        rows[x].remainder = float(allocation.remainder[position])
    for x in range(len(rows)):
        rows[x].previous = 0
    for position, x in enumerate(active):
        rows[x].previous = int(allocation.final[position])


def draw_demand(chance, row, tokens):
    kind = chance.random()
    if kind < 0.25:
        return 0
    if kind < 0.5:
        return chance.randrange(1, 4)
    return chance.randrange(1, max(2, 3 * tokens))


def test_agrees_with_the_plain_reference_on_thousands_of_histories():
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        tokens = chance.choice([1, 7, 20, 100, 10_000, 10**9])
        rows = [fresh(chance.choice([1, 2, 3, 10, 0.5]), 0) for _ in range(chance.randrange(1, 12))]
        terms = random_terms(chance)
        for interval in range(INTERVALS):
            for row in rows:
                row.demand = draw_demand(chance, row, tokens)
            active = [x for x in range(len(rows)) if rows[x].demand]
            if not active:
                continue
            seen = run(tokens, [rows[x] for x in active], terms)
            expected = reference.allocate(
                tokens, [rows[x] for x in active], terms.needed_first, terms.borrow_cap, terms.lend_cap
            )
            where = f"seed {seed}, interval {interval}, {terms}"
            assert seen.initial.tolist() == expected[0], where
            assert seen.redistributed.tolist() == expected[1], where
            assert seen.final.tolist() == expected[2], where
            assert seen.record.tolist() == expected[3], where
            assert seen.remainder.tolist() == expected[4], where
            advance(rows, active, seen)


@st.composite
def histories(draw):
    count = draw(st.integers(1, 8))
    tokens = draw(st.integers(1, 300))
    weights = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    demand = st.one_of(st.just(0), st.integers(1, 5), st.integers(1, 2_000))
    demands = draw(st.lists(st.lists(demand, min_size=count, max_size=count), min_size=1, max_size=30))
    terms = draw(
        st.builds(
            Terms,
            needed_first=st.booleans(),
            borrow_cap=st.none() | st.integers(0, 500),
            lend_cap=st.none() | st.integers(0, 500),
        )
    )
    return tokens, weights, demands, terms


@settings(max_examples=400, deadline=None)
@given(histories())
def test_tokens_handed_out_equal_the_capacity_and_records_sum_to_zero(history):
    tokens, weights, demands, terms = history
    rows = [fresh(weight, 0) for weight in weights]
    for demand in demands:
        for row, wanted in zip(rows, demand, strict=True):
            row.demand = wanted
        active = [x for x in range(len(rows)) if rows[x].demand]
        if not active:
            continue
        before = [row.record for row in rows]
        seen = run(tokens, [rows[x] for x in active], terms)
        for step in (seen.initial, seen.redistributed, seen.final):
            assert int(step.sum()) == tokens
            assert (step >= 0).all()
        advance(rows, active, seen)
        assert sum(row.record for row in rows) == 0
        check_promises(rows, active, before, seen, terms)


def check_promises(rows, active, before, seen, terms):
    """Nobody starves, nobody is reclaimed beyond its debt or paid beyond its credit."""
    for position, x in enumerate(active):
        initial, lent, final = (int(a[position]) for a in (seen.initial, seen.redistributed, seen.final))
        after_lending = before[x] + initial - lent
        assert final >= min((initial + 1) // 2, lent), "a debtor keeps half of its share"
        assert final >= min(rows[x].demand, (initial + 1) // 2), "nobody with demand starves"
        if final < lent:
            assert before[x] < 0 and after_lending < 0 and rows[x].record <= 0
        if final > lent:
            assert before[x] > 0 and after_lending > 0 and rows[x].record >= 0
        if terms.borrow_cap is not None:
            assert rows[x].record >= min(before[x], -terms.borrow_cap)
        if terms.lend_cap is not None:
            assert rows[x].record <= max(before[x], terms.lend_cap)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=20), st.integers(1, 30))
def test_over_time_every_backlogged_tenant_gets_its_share_of_small_capacities(weights, tokens):
    """Section III-C4: remainders make up for whole tokens, however few there are."""
    rows = [fresh(weight, 10**6) for weight in weights]
    received = [0] * len(rows)
    intervals = 40
    for _ in range(intervals):
        seen = run(tokens, rows)
        advance(rows, range(len(rows)), seen)
        received = [received[x] + int(seen.final[x]) for x in range(len(rows))]
    for x, weight in enumerate(weights):
        assert abs(received[x] - intervals * tokens * weight / sum(weights)) <= 2


def test_priorities_of_section_iv_d_are_met_when_all_are_backlogged():
    seen = run(1000, [fresh(weight, 5000) for weight in (10, 10, 30, 50)])
    assert seen.final.tolist() == [100, 100, 300, 500]
    assert seen.record.tolist() == [0, 0, 0, 0]


def test_a_lone_tenant_gets_the_whole_target():
    assert run(977, [fresh(1, 3)]).final.tolist() == [977]


def test_what_is_not_needed_is_lent_and_recorded_on_both_sides():
    seen = run(100, [fresh(1, 10), fresh(1, 500)])
    assert seen.final.tolist() == [10, 90]
    assert seen.record.tolist() == [40, -40]


def test_the_printed_rule_leaves_tokens_with_tenants_that_do_not_need_them():
    seen = run(100, [fresh(5, 25), fresh(1, 500, previous=100)], Terms(needed_first=False))
    assert seen.final[0] > 25 and seen.final.sum() == 100


def test_a_lender_is_paid_back_within_the_stated_number_of_intervals():
    """Section III-C3, with the bound that `payback_bound` states."""
    rows = [fresh(1, 10**6, 400), fresh(2, 10**6, -300), fresh(1, 10**6, -100)]
    initial = np.array([25, 50, 25])
    bound = payback_bound(0.25, np.array([0, 300, 100]), initial)
    for _ in range(bound):
        seen = run(100, rows)
        assert seen.final[0] > 25 or rows[0].record == 0
        advance(rows, range(3), seen)
    assert [row.record for row in rows] == [0, 0, 0], f"not paid back after {bound} intervals"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3_000)), min_size=1, max_size=8),
    st.integers(1, 20),
    st.integers(100, 1_000),
)
def test_every_debt_is_paid_within_the_bound_while_debtors_are_active(debtors, weight, tokens):
    rows = [fresh(weight, 10**6, sum(debt for _, debt in debtors))]
    rows += [fresh(w, 10**6, -debt) for w, debt in debtors]
    total = sum(row.weight for row in rows)
    initial = np.array([max(0, int(tokens * row.weight / total) - 1) for row in rows], np.int64)
    if (initial[1:] < 2).any():
        return  # a debtor of less than two tokens keeps them all
    bound = payback_bound(weight / total, np.array([-min(0, row.record) for row in rows]), initial)
    for _ in range(bound):
        advance(rows, range(len(rows)), run(tokens, rows))
    assert all(row.record == 0 for row in rows)


def test_a_debtor_is_never_starved_by_a_long_loan():
    """As printed (eq. 13, 14) the coefficient passes 1 and the debtor gets nothing for hundreds
    of intervals; here it always keeps half of its share."""
    rows = [fresh(9, 10**6, 10**6, 90), fresh(1, 10**6, -(10**6), 10)]
    for _ in range(300):
        seen = run(100, rows)
        assert seen.final[1] >= 5
        advance(rows, range(2), seen)


def test_fill_reaches_one_level_and_respects_every_limit():
    chance = np.random.default_rng(7)
    for _ in range(300):
        count = int(chance.integers(1, 30))
        factor = chance.uniform(0.01, 5, count)
        limit = chance.integers(0, 100, count)
        total = int(chance.integers(0, limit.sum() + 1))
        shares = fill(total, factor, limit)
        assert shares.sum() == pytest.approx(total)
        assert (shares <= limit).all()
        below = shares < limit
        if below.any():
            level = shares[below] / factor[below]
            assert level.max() == pytest.approx(level.min())
            assert (shares[~below] <= level.max() * factor[~below] + 1e-9).all()


def test_whole_tokens_take_excess_from_the_smallest_remainder():
    whole, remainder = make_whole(np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.5, 1.9]), 3)
    assert whole.tolist() == [0, 1, 2]
    assert remainder.tolist() == pytest.approx([1.0, 0.5, 0.9])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-500, 500), min_size=1, max_size=10))
def test_a_leaving_tenant_is_settled_against_the_rest(others):
    record = np.array(others, np.int64)
    leaving = -int(record.sum())
    after = settle(record, leaving)
    assert after.sum() == 0
    assert (np.abs(after) <= np.abs(record)).all()
    assert (after * record >= 0).all(), "no debt turns into a credit"


def test_decay_keeps_the_sum_zero():
    record = np.array([100, 7, -60, -47], np.int64)
    after = decay(record, 30)
    assert after.sum() == 0 and np.abs(after).sum() == np.abs(record).sum() - 60


@pytest.mark.parametrize(
    ("tokens", "rows", "words"),
    [
        (-1, [fresh(1, 1)], "0 to 2\\^52"),
        (2**53, [fresh(1, 1)], "larger units"),
        (1, [], "at least one"),
        (1, [fresh(0, 1)], "weight"),
        (1, [fresh(float("nan"), 1)], "weight"),
        (1, [fresh(1, 0)], "demand"),
        (1, [fresh(1, -5)], "demand"),
    ],
)
def test_bad_input_is_refused_with_a_reason(tokens, rows, words):
    with pytest.raises(UsageError, match=words):
        run(tokens, rows)


def test_bad_caps_are_refused():
    with pytest.raises(UsageError, match="borrow_cap"):
        Terms(borrow_cap=-1)
