"""Rates: what was told in a period against the highest limit that could have been in force."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storm_tale import Tale, places

POLICY = """
[resource.api]
kind = "rate"
servers = { "*" = "120/s" }
[resource.api.tenant]
acme = { limit = "10/s" }
"guest/*" = { limit = "5/s" }
"*" = { limit = "2/s" }
"""
CUT = POLICY.replace('"10/s"', '"4/s"')
RAISED = POLICY.replace('"10/s"', '"30/s"')


def tell_period(
    tale: Tale, period: int, amounts: list[int], tenant: str = "acme", **fields: object
) -> list[int]:
    """Grants in one period of a second, which is open from its number on."""
    return [
        tale.ask(period + 0.05 * at, "api", tenant, amount, told={"period": period}, **fields)
        for at, amount in enumerate(amounts)
    ]


# -- wrong


def test_more_than_the_limit_in_one_period() -> None:
    tale = Tale(POLICY)
    tell_period(tale, 7, [3, 3, 3])
    tell_period(tale, 8, [4, 4, 3])
    (breach,) = tale.check("rates")
    assert places(breach) == ["c1:4", "c1:5", "c1:6"]
    assert "11 tokens of api in period 8" in breach.sentence and "at most 10" in breach.sentence


def test_clients_that_are_each_within_the_limit_are_added_up() -> None:
    tale = Tale(POLICY)
    tell_period(tale, 7, [6], client="c1")
    tell_period(tale, 7, [5], client="c2", nodes=["b"])
    (breach,) = tale.check("rates")
    assert places(breach) == ["c1:1", "c2:1"]


@pytest.mark.parametrize(
    ("tenant", "limit"), [("guest/x", 5), ("guest/x/y", 5), ("stranger", 2), ("guest", 2)]
)
def test_whom_a_template_gives_its_terms(tenant: str, limit: int) -> None:
    tale = Tale(POLICY)
    tell_period(tale, 7, [limit], tenant)
    assert tale.check("rates") == []
    tell_period(tale, 7, [1], tenant)
    assert f"at most {limit}" in tale.check("rates")[0].sentence


def test_a_cut_limit_is_in_force_some_periods_later() -> None:
    tale = Tale(POLICY)
    tale.change(20, CUT)
    tell_period(tale, 30, [5])
    (breach,) = tale.check("rates")
    assert "at most 4" in breach.sentence


def test_a_removed_tenant_is_granted_nothing() -> None:
    tale = Tale(POLICY.replace('"*" = { limit = "2/s" }\n', ""))
    tale.set_tenant(1, "api", "globex", {"limit": "8/s"})
    tell_period(tale, 5, [8], "globex")
    tale.set_tenant(10, "api", "globex", None)
    tell_period(tale, 20, [1], "globex")
    (breach,) = tale.check("rates")
    assert "period 20" in breach.sentence and "at most 0" in breach.sentence


def test_a_period_that_was_over_long_ago() -> None:
    tale = Tale(POLICY)
    tell_period(tale, 7, [1])
    tell_period(tale, 8, [1])
    tale.ask(15, "api", told={"period": 7})
    (breach,) = tale.check("rates")
    assert places(breach) == ["c1:2", "c1:3"]
    assert "charged to period 7" in breach.sentence


def test_a_grant_that_says_no_period() -> None:
    tale = Tale(POLICY)
    tale.ask(7, "api", told={"period": 0})
    (breach,) = tale.check("rates")
    assert places(breach) == ["c1:1"]


def test_a_settlement_that_was_refused_gives_nothing_back() -> None:
    tale = Tale(POLICY)
    first, _ = tell_period(tale, 7, [6, 6])
    tale.settle(7.5, first, 0, is_="usage")
    assert len(tale.check("rates")) == 1


# -- right, though it looks wrong


def test_what_is_given_back_unused_counts_as_not_told() -> None:
    tale = Tale(POLICY)
    first, _ = tell_period(tale, 7, [6, 6])
    tale.settle(7.5, first, 4)
    assert tale.check("rates") == []


def test_a_settlement_whose_answer_was_lost_may_have_happened() -> None:
    tale = Tale(POLICY)
    first, _ = tell_period(tale, 7, [6, 6])
    tale.settle(7.5, first, 0, is_="unknown")
    assert tale.check("rates") == []


def test_twice_the_limit_within_a_second_that_two_periods_meet_in() -> None:
    tale = Tale(POLICY)
    tale.ask(7.9, "api", amount=10, told={"period": 7})
    tale.ask(8.0, "api", amount=10, told={"period": 8})
    assert tale.check("rates") == []


def test_what_goes_on_without_bursar_is_counted_apart() -> None:
    tale = Tale(POLICY)
    tell_period(tale, 7, [10])
    tale.ask(7.5, "api", amount=8, told={"period": 7, "fallback": "keep"})
    assert tale.check("rates") == []


def test_a_cut_limit_may_hold_until_the_next_period_but_one() -> None:
    tale = Tale(POLICY)
    tale.change(20, CUT)
    tell_period(tale, 21, [10])
    tell_period(tale, 22, [10])
    assert tale.check("rates") == []


def test_a_raised_limit_counts_from_the_moment_it_was_asked_for() -> None:
    tale = Tale(POLICY)
    tale.change(20, RAISED, end=25)
    tell_period(tale, 21, [30])
    assert tale.check("rates") == []


def test_a_change_without_an_end_may_or_may_not_have_happened() -> None:
    tale = Tale(POLICY)
    tale.change(20, CUT, ok=None)
    tell_period(tale, 40, [10])
    tale.change(50, RAISED, ok=None)
    tell_period(tale, 140, [30])
    assert tale.check("rates") == []


def test_a_text_that_was_told_as_failed_may_stand_in_the_store_all_the_same() -> None:
    tale = Tale(POLICY)
    tale.change(20, RAISED, ok=False)
    tell_period(tale, 40, [30])
    assert tale.check("rates") == []


def test_a_long_wait_ends_in_a_later_period() -> None:
    tale = Tale(POLICY)
    tell_period(tale, 8, [10])
    tale.ask(7.0, "api", wait_ms=5000, end=11.2, told={"period": 11})
    tell_period(tale, 12, [10])
    assert tale.check("rates") == []


def test_neighbouring_periods_may_overlap_for_a_moment() -> None:
    tale = Tale(POLICY)
    tale.ask(8.0, "api", told={"period": 8})
    tale.ask(8.4, "api", told={"period": 7}, client="c2")
    assert tale.check("rates") == []


def test_several_at_once_count_once_for_each_resource() -> None:
    tale = Tale(POLICY)
    number = tale.ask(7, "", op="acquire_all")
    tale.ask(7, "api", amount=10, told={"period": 7}, part_of=number)
    assert tale.check("rates") == []
    tale.ask(7.2, "api", told={"period": 7})
    assert len(tale.check("rates")) == 1
    tale.settle(7.3, number, 9)
    assert tale.check("rates") == []


def test_a_tenant_without_a_limit_is_not_judged() -> None:
    tale = Tale(POLICY.replace('acme = { limit = "10/s" }', "acme = {}"))
    tell_period(tale, 7, [1000])
    assert tale.check("rates") == []


# -- against a plain sum


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),  # period
            st.sampled_from(["acme", "guest/x", "guest/y"]),
            st.integers(1, 6),  # amount
            st.integers(0, 8),  # used, above the amount: not settled
            st.sampled_from([None, None, None, "keep"]),
        ),
        max_size=25,
    )
)
def test_generated_sums_agree_with_a_plain_one(rows: list[tuple[int, str, int, int, str | None]]) -> None:
    tale = Tale(POLICY)
    sums: dict[tuple[int, str], int] = {}
    for at, (period, tenant, amount, used, fallback) in enumerate(rows):
        told = {"period": period, "fallback": fallback}
        number = tale.ask(period + 0.01 * at, "api", tenant, amount, told=told, client=f"c{at}")
        if used <= amount:
            tale.settle(period + 0.3, number, used, client=f"c{at}")
        if fallback is None:
            sums[period, tenant] = sums.get((period, tenant), 0) + min(amount, used)
    limits = {"acme": 10, "guest/x": 5, "guest/y": 5}
    wrong = {(period, tenant) for (period, tenant), told in sums.items() if told > limits[tenant]}
    assert len(tale.check("rates")) == len(wrong)
