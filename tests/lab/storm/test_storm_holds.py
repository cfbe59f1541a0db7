"""Holds of a quota: what was cancelled or settled is held no more."""

from __future__ import annotations

from typing import Any

from storm_tale import Tale, places

POLICY = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 10_000 }
"acme/search" = { limit = 5_000 }
"""


def use(tale: Tale, at: float, amount: int, id: str, **fields: Any) -> int:
    return tale.ask(at, "llm", fields.pop("tenant", "acme"), amount, told={"id": id}, **fields)


def show(tale: Tale, at: float, held: int) -> int:
    figures = {"limit": 10_000, "unspent": 10_000 - held, "held": held, "spent": 0, "missing": 0}
    line = {"resource": "llm", "figures": {"whole": {"acme": figures}}}
    return tale.write("operator", "show", at, at + 0.1, **line)


def repeat(tale: Tale, at: float, used: int | None, id: str = "a/1", key: str = "k") -> int:
    told = {"id": id, "replayed": True, "used": used}
    return tale.ask(at, "llm", "acme", 30, key=key, told=told)


# -- wrong


def test_what_was_cancelled_is_still_held() -> None:
    tale = Tale(POLICY)
    show(tale, 1, 0)
    tale.ask(2, "llm", "acme", 20, is_="cancelled", wait_ms=1000)
    show(tale, 20, 20)
    (breach,) = tale.check("quotas")
    assert "20 more of acme" in breach.sentence and "can be 0" in breach.sentence
    assert places(breach) == ["operator:2", "operator:3"]


def test_what_was_settled_is_still_held() -> None:
    tale = Tale(POLICY)
    show(tale, 1, 0)
    tale.settle(3, use(tale, 2, 20, "a/1"), 5)
    show(tale, 20, 20)
    (breach,) = tale.check("quotas")
    assert "20 more of acme" in breach.sentence


def test_what_others_let_go_of_does_not_hide_it() -> None:
    tale = Tale(POLICY)
    grant = use(tale, 0.5, 20, "a/1", tenant="acme/search")
    show(tale, 1, 20)
    tale.settle(2, grant, 5)
    tale.ask(3, "llm", "acme", 20, is_="cancelled", wait_ms=1000)
    show(tale, 20, 20)
    (breach,) = tale.check("quotas")
    assert "20 more of acme" in breach.sentence


def test_a_settled_key_is_open_when_it_is_asked_for_again() -> None:
    tale = Tale(POLICY)
    tale.settle(2, use(tale, 1, 30, "a/1", key="k"), 12)
    repeat(tale, 30, None)
    (breach,) = tale.check("quotas")
    assert "settled for 12" in breach.sentence and "it is open" in breach.sentence
    assert places(breach) == ["c1:2", "c1:3"]


def test_a_settled_key_was_used_for_something_else() -> None:
    tale = Tale(POLICY)
    tale.settle(2, use(tale, 1, 30, "a/1", key="k"), 12)
    repeat(tale, 30, 30)
    (breach,) = tale.check("quotas")
    assert "used for 30" in breach.sentence


def test_what_was_told_and_forgotten_cannot_be_settled() -> None:
    tale = Tale(POLICY)
    tale.settle(2, use(tale, 1, 30, "a/1"), 12, is_="usage")
    (breach,) = tale.check("quotas")
    assert "a/1 of llm was told to acme, and cannot be settled" in breach.sentence


# -- right


def test_two_who_were_told_of_one_acquisition_may_settle_it_differently() -> None:
    tale = Tale(POLICY)
    first = use(tale, 1, 30, "a/1", key="k")
    tale.settle(2, use(tale, 1.5, 30, "a/1", key="k", client="c2"), 12, client="c2")
    tale.settle(3, first, 30, is_="usage")
    assert tale.check("quotas") == []


def test_what_clients_have_and_could_not_learn_may_be_held() -> None:
    tale = Tale(POLICY)
    show(tale, 1, 7)
    use(tale, 2, 20, "a/1")
    tale.ask(3, "llm", "acme", 5, is_="unknown")
    tale.begin(4, "llm")
    show(tale, 20, 32)
    assert tale.check("quotas") == []


def test_a_settlement_whose_answer_was_lost_proves_nothing() -> None:
    tale = Tale(POLICY)
    show(tale, 1, 0)
    tale.settle(3, use(tale, 2, 20, "a/1"), 5, is_="unknown")
    show(tale, 20, 20)
    assert tale.check("quotas") == []


def test_what_was_cancelled_over_http_may_have_been_answered() -> None:
    tale = Tale(POLICY)
    show(tale, 1, 0)
    tale.ask(2, "llm", "acme", 20, is_="cancelled", wait_ms=1000, via="http")
    show(tale, 20, 20)
    assert tale.check("quotas") == []


def test_nothing_is_said_after_a_fault_or_a_lost_ledger() -> None:
    for fault in ("kill", "disk_lost"):
        tale = Tale(POLICY)
        tale.fault(0 if fault == "kill" else -90, fault, "a", until=0.5)
        show(tale, 1, 0)
        tale.ask(2, "llm", "acme", 20, is_="cancelled", wait_ms=1000)
        show(tale, 20, 20)
        assert tale.check("quotas") == [], fault


def test_a_repeat_says_what_was_settled() -> None:
    tale = Tale(POLICY)
    tale.settle(2, use(tale, 1, 30, "a/1", key="k"), 12)
    repeat(tale, 30, 12)
    assert tale.check("quotas") == []


def test_a_client_that_was_killed_may_not_have_told() -> None:
    tale = Tale(POLICY)
    tale.settle(2, use(tale, 1, 30, "a/1", key="k"), 12)
    tale.fault(3, "kill", "c1")
    tale.ask(60, "llm", "acme", 30, client="c2", key="k", told={"id": "a/1", "replayed": True, "used": None})
    assert tale.check("quotas") == []
