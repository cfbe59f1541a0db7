"""Quotas: sums over distinct acquisitions, keys, and the books at the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storm_tale import BEGAN_NS, SECOND_NS, Tale, places

POLICY = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 100 }
"acme/search" = { limit = 60 }
"acme/mail" = { limit = 60 }
"*" = { limit = "0.03k" }
"""
HALF_PAST_TEN_NS = 1_790_000_000 * SECOND_NS // (3600 * SECOND_NS) * (3600 * SECOND_NS) + 1800 * SECOND_NS


def use(tale: Tale, at: float, amount: int, tenant: str = "acme", id: str = "", **fields: Any) -> int:
    return tale.ask(at, "llm", tenant, amount, told={"id": id or f"a.{at}"}, **fields)


def show(tale: Tale, at: float, **figures: int | None) -> int:
    whole = {
        "acme": {"limit": 100, "unspent": 0, "held": 0, "spent": 0, "in_flight": 0, "missing": 0} | figures
    }
    return tale.write("operator", "show", at, at + 0.1, resource="llm", figures={"whole": whole})


# -- wrong


def test_more_than_the_limit() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 60)
    use(tale, 2, 40, client="c2")
    use(tale, 900, 1)
    (breach,) = tale.check("quotas")
    assert places(breach) == ["c1:1", "c2:1", "c1:2"]
    assert "101 of llm" in breach.sentence and "at most 100" in breach.sentence


def test_children_that_are_each_within_theirs_pass_the_parents() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 60, "acme/search")
    use(tale, 2, 60, "acme/mail")
    (breach,) = tale.check("quotas")
    assert "used by acme," in breach.sentence and "120 of llm" in breach.sentence


def test_a_tenant_of_a_template() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 31, "stranger")
    (breach,) = tale.check("quotas")
    assert "at most 30" in breach.sentence


def test_a_key_that_is_charged_twice() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 10, id="a.1", key="k")
    use(tale, 2, 10, id="b.7", key="k", client="c2")
    (breach,) = tale.check("quotas")
    assert places(breach) == ["c1:1", "c2:1"] and "charged twice" in breach.sentence


def test_a_key_whose_grant_was_partly_used_is_not_free_again() -> None:
    tale = Tale(POLICY)
    number = use(tale, 1, 10, id="a.1", key="k")
    tale.settle(2, number, 1)
    use(tale, 3, 10, id="a.2", key="k")
    assert len(tale.check("quotas")) == 1


def test_a_key_of_a_ledger_that_was_written_off_is_free_again() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 10, id="a~2/1", key="k")
    tale.write("operator", "fence", 2, 3, node="a", resource="llm", ok=False)
    use(tale, 4, 10, id="b/7", key="k", client="c2")
    assert tale.check("quotas") == []
    use(tale, 5, 10, id="b/8", key="k", client="c2")
    assert len(tale.check("quotas")) == 1


def test_the_audit_misses_units_when_all_is_healed() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "kill", "a", until=2)
    use(tale, 3, 10)
    show(tale, 40, unspent=85, spent=10, missing=5)
    (breach,) = tale.check("quotas")
    assert "misses 5 units of acme" in breach.sentence and places(breach) == ["operator:2"]


def test_a_use_that_was_told_and_is_not_charged() -> None:
    tale = Tale(POLICY)
    use(tale, 3, 10)
    use(tale, 4, 10, "acme/search")
    show(tale, 40, unspent=85, spent=15)
    (breach,) = tale.check("quotas")
    assert "used 20" in breach.sentence and places(breach) == ["operator:2", "c1:1", "c1:2"]


def test_a_window_that_is_passed() -> None:
    about = {"wall_ns": HALF_PAST_TEN_NS, "boot_ns": BEGAN_NS}
    tale = Tale(POLICY.replace('kind = "quota"', 'kind = "quota"\nwindow = "hour"'), about)
    use(tale, 1, 60)
    use(tale, 2, 41)
    assert len(tale.check("quotas")) == 1


# -- right, though it looks wrong


def test_a_retry_elsewhere_is_the_same_acquisition() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 90, id="a.1", key="k", is_="unknown")
    use(tale, 2, 90, id="a.1", key="k")
    tale.ask(3, "llm", amount=90, told={"id": "a.1", "replayed": True}, key="k", client="c2")
    assert tale.check("quotas") == []


def test_what_was_settled_elsewhere_by_its_id() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 90, id="a.1")
    tale.write("c2", "settle", 2, 2.1, resource="llm", id="a.1", used=30, answer={"is": "done"})
    use(tale, 3, 70)
    assert tale.check("quotas") == []


def test_what_a_repeat_says_was_used() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 90, id="a.1", key="k")
    tale.ask(2, "llm", amount=90, told={"id": "a.1", "replayed": True, "used": 30}, key="k")
    use(tale, 3, 70)
    assert tale.check("quotas") == []


def test_a_settlement_whose_answer_never_came() -> None:
    tale = Tale(POLICY)
    number = use(tale, 1, 90)
    tale.write("c1", "settle", 2, None, grant=number, used=0)
    use(tale, 3, 100)
    assert tale.check("quotas") == []


def test_a_key_whose_grant_was_given_back_unused_is_free_again() -> None:
    tale = Tale(POLICY)
    number = use(tale, 1, 10, id="a.1", key="k")
    tale.settle(2, number, 0)
    use(tale, 3, 10, id="a.2", key="k")
    assert tale.check("quotas") == []


def test_a_top_up_may_have_come_through_though_it_was_told_as_failed() -> None:
    tale = Tale(POLICY)
    tale.write("operator", "topup", 1, None, resource="llm", tenant="acme", amount=50, ok=None)
    use(tale, 3, 150)
    assert tale.check("quotas") == []


def test_a_cut_leaves_what_was_used() -> None:
    tale = Tale(POLICY)
    use(tale, 1, 90)
    tale.change(5, POLICY.replace("limit = 100", "limit = 60"))
    show(tale, 40, limit=60, spent=90)
    assert tale.check("quotas") == []


def test_the_books_are_judged_only_when_all_is_healed() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "kill", "a", until=50)
    use(tale, 3, 10)
    show(tale, 40, unspent=85, spent=10, missing=5)
    show(tale, 60, unspent=90, spent=10, missing=0)
    assert tale.check("quotas") == []


@pytest.mark.parametrize("fault", ["disk_lost", "flipped"])
def test_a_ledger_that_was_lost_is_not_in_the_books(fault: str) -> None:
    tale = Tale(POLICY)
    use(tale, 1, 40)
    tale.fault(5, fault, "a", until=9)
    show(tale, 60, unspent=100)
    assert tale.check("quotas") == []


def test_a_new_window_begins_within_the_run() -> None:
    about = {"wall_ns": HALF_PAST_TEN_NS, "boot_ns": BEGAN_NS}
    tale = Tale(POLICY.replace('kind = "quota"', 'kind = "quota"\nwindow = "hour"'), about)
    use(tale, 1, 100)
    use(tale, 1801, 100)
    assert tale.check("quotas") == []


def test_a_clock_that_jumped_charges_the_neighbouring_window() -> None:
    about = {"wall_ns": HALF_PAST_TEN_NS, "boot_ns": BEGAN_NS}
    tale = Tale(POLICY.replace('kind = "quota"', 'kind = "quota"\nwindow = "hour"'), about)
    use(tale, 1, 100)
    tale.fault(5, "clock", "a", until=20, jump_ms=3_600_000)
    use(tale, 10, 100)
    assert tale.check("quotas") == []


def test_grants_from_lots_have_no_id_and_count_each() -> None:
    tale = Tale(POLICY)
    for at in range(100):
        tale.ask(at, "llm", told={"id": ""})
    assert tale.check("quotas") == []
    tale.ask(200, "llm", told={"id": ""})
    assert len(tale.check("quotas")) == 1


# -- against a plain sum


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["acme", "acme/search", "acme/mail", "stranger"]),
            st.integers(1, 40),  # amount
            st.integers(0, 50),  # used, above the amount: not settled
            st.integers(1, 3),  # how often it is told
        ),
        max_size=12,
    )
)
def test_generated_sums_agree_with_a_plain_one(rows: list[tuple[str, int, int, int]]) -> None:
    tale = Tale(POLICY)
    sums = {"acme": 0, "acme/search": 0, "acme/mail": 0, "stranger": 0}
    for at, (tenant, amount, used, times) in enumerate(rows):
        for again in range(times):
            number = use(tale, at + again / 10, amount, tenant, id=f"id-{at}", client=f"c{again}")
        if used <= amount:
            tale.settle(at + 0.5, number, used, client=f"c{times - 1}")
        for account in {tenant, tenant.partition("/")[0]}:
            sums[account] += min(amount, used)
    limits = {"acme": 100, "acme/search": 60, "acme/mail": 60, "stranger": 30}
    assert len(tale.check("quotas")) == sum(sums[account] > limits[account] for account in sums)
