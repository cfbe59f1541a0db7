"""Bursts that are announced: kept as what others owe, lent until they begin, forgiven if they do not come."""

from __future__ import annotations

import asyncio

import pytest
from test_share_resource import make_policy, with_share

from bursar.errors import UsageError
from bursar.shares.book import TargetBook
from bursar.shares.bursts import GRACE_INTERVALS
from bursar.shares.handout import TenantTerms
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS

INTERVAL_NS = 100 * MILLISECOND_NS
BUSY = {"batch": 500}


def make_book(**weights):
    tenants = {name: TenantTerms(weight=weight) for name, weight in weights.items()}
    return TargetBook(tenants, Rate.of(1000), INTERVAL_NS)


def run(book, intervals, demand=BUSY):
    for _ in range(intervals):
        book.close(demand)
    return book.handout.lines


def test_an_idle_tenant_lends_for_its_burst_and_no_more_than_it_announced():
    book = make_book(sim=1, batch=1)
    book.announce("sim", 120, 10 * INTERVAL_NS, SECOND_NS * 10)
    assert run(book, 1)["batch"].final == 99, "lent at once, but for the token by which it takes part"
    assert book.records() == {"batch": -49, "sim": 49}
    run(book, 4)
    assert book.records() == {"batch": -120, "sim": 120}
    assert "sim" not in book.handout.lines


def test_when_it_begins_its_tokens_are_there_before_its_first_request_and_it_is_paid_back():
    book, unannounced = make_book(sim=1, batch=1), make_book(sim=1, batch=1)
    book.announce("sim", 120, 10 * INTERVAL_NS, SECOND_NS * 10)
    run(book, 9)
    first = run(book, 1)["sim"]  # the handout in force when it begins
    assert first.final > first.initial == 50
    got = first.final
    for _ in range(3):
        got += run(book, 1, {**BUSY, "sim": 200})["sim"].final
    run(unannounced, 10)
    due = sum(run(unannounced, 1, {**BUSY, "sim": 200})["sim"].final for _ in range(3))
    assert got >= due + 50 + 60, "the interval that it needs to be seen, and what was kept"


def test_what_was_kept_for_a_burst_that_does_not_come_is_forgiven():
    book = make_book(sim=1, batch=1, other=1)
    run(book, 1, {"batch": 500, "other": 10})
    before = book.records()
    book.announce("sim", 500, 4 * INTERVAL_NS, 20 * INTERVAL_NS)
    run(book, 4)
    assert book.record("sim") > 50
    lines = [run(book, 1) for _ in range(6)]
    waited = [line for line in lines if "sim" in line]
    assert len(waited) == GRACE_INTERVALS - 1, "then its tokens are others' again"
    run(book, 12)
    assert book.records().get("sim", 0) == 0 and sum(book.records().values()) == 0
    assert book.record("other") == before["other"]


def test_a_tenant_that_owes_works_nothing_off_by_announcing():
    book = make_book(sim=1, batch=1)
    run(book, 1, {"sim": 500, "batch": 1})
    owed = book.record("sim")
    book.announce("sim", 100, SECOND_NS, 2 * SECOND_NS)
    run(book, 5)
    assert book.record("sim") == owed < 0


def test_what_is_taken_back_or_announced_again_leaves_no_credit():
    book = make_book(sim=1, batch=1)
    book.announce("sim", 120, SECOND_NS, 2 * SECOND_NS)
    run(book, 2)
    book.announce("sim", 90, SECOND_NS, 2 * SECOND_NS)
    assert book.record("sim") == 0
    run(book, 1)
    book.announce("sim", 0, 0, 1)
    assert book.record("sim") == 0 and not book.bursts


def test_a_restart_knows_of_bursts_and_of_what_was_kept():
    book, again = make_book(sim=1, batch=1), make_book(sim=1, batch=1)
    book.announce("sim", 120, SECOND_NS, 2 * SECOND_NS)
    run(book, 3)
    again.replay([make_book(sim=1).snapshot(), book.snapshot()])
    assert again.records() == book.records() and again.bursts.get("sim") == book.bursts.get("sim")
    run(again, 20)
    assert again.record("sim") == 0


def test_a_tenant_that_leaves_the_policy_announces_nothing_any_more():
    book = make_book(sim=1, batch=1)
    book.announce("sim", 120, SECOND_NS, 2 * SECOND_NS)
    run(book, 3)
    book.set_tenants({"batch": TenantTerms()})
    assert not book.bursts and book.records() == {"batch": 0}
    with pytest.raises(UsageError, match="not in the policy"):
        book.announce("sim", 120, SECOND_NS, 2 * SECOND_NS)


@with_share(make_policy(capacity=1000, a=1, b=1))
async def test_a_burst_is_announced_at_the_door_and_explained(world, resource):
    said = await resource.verb("announce", tenant="a", tokens="64", after="500ms", lasting=5)
    assert said == {"tokens": 64, "starts_in": 0.5, "ends_in": 5.5}
    await asyncio.sleep(0.25)
    assert any("announced 64 tokens" in each for each in (await resource.explain("a")).sentences)
    for wrong in (
        {"tokens": -1},
        {"tokens": 1, "after": -1},
        {"tokens": "much"},
        {"tokens": 1, "lasting": "2d"},
    ):
        with pytest.raises(UsageError):
            await resource.verb("announce", tenant="a", **wrong)
