"""Holds for long work: their time, their use in parts, and what is used beyond them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from quota_town import Quota, Town, left

from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.values import QuotaTenant
from bursar.quotas import growing
from bursar.quotas.overdrafts import overdraft_of, owner_of
from bursar.quotas.windows import Window, account_name, split_account
from bursar.world import SECOND_NS

OWING = {
    "acme": QuotaTenant(limit=100, overdraft=20),
    "acme/search": QuotaTenant(limit=60, parent="acme"),
}
MODES = pytest.mark.parametrize("mode", ["exact", "fast"])


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow disks are not what is tested here."""
    if "partition" not in request.node.name:
        monkeypatch.setattr(growing, "ANSWER_NS", 10 * SECOND_NS)


async def total(resource: Quota, account: str = "acme") -> dict[str, Any]:
    """The account over all nodes, once everything is written."""
    await left(resource, account)
    rows = (await resource.verb("survey"))["rows"]
    found: dict[str, Any] = next(row for row in rows if row["account"] == account)
    return found


@MODES
async def test_what_is_spent_in_parts_is_charged_when_the_grant_is_left(town: Town, mode: str) -> None:
    llm = await town.open("a", mode=mode)
    async with llm.acquire("acme", 40) as grant:
        for _ in range(3):
            await grant.spend(8)
    assert await left(llm) == (76, 0, 24)
    with pytest.raises(ValueError, match="the stream broke"):
        async with llm.acquire("acme", 40) as grant:
            await grant.spend(6)
            raise ValueError("the stream broke")
    assert await left(llm) == (70, 0, 30)


async def test_a_hold_that_is_used_up_takes_nothing_more_by_default(town: Town) -> None:
    llm = await town.open("a")
    async with llm.acquire("acme", 10) as grant:
        await grant.spend(9)
        with pytest.raises(Refused, match="no more can be had"):
            await grant.spend(2)
        await grant.spend(1)
    assert await left(llm) == (90, 0, 10)


@MODES
async def test_a_hold_grows_as_it_is_spent_from_whatever_node_has_units(town: Town, mode: str) -> None:
    one, two = await town.open("a", over="take", mode=mode), await town.open("b", over="take", mode=mode)
    elsewhere = await two.acquire("acme/search", 20, wait=10)
    async with asyncio.timeout(10):
        async with one.acquire("acme/search", 10, wait=10) as grant:
            await grant.spend(30)
            assert grant.amount == 30 and one.hold_of(grant).size == 30
            with pytest.raises(Refused, match="left"):
                await grant.spend(60)
            assert grant.used == 30
    assert await left(one, "acme/search") == (10, 20, 30)
    await elsewhere.release()


@MODES
async def test_more_than_was_held_is_taken_if_it_is_there(town: Town, mode: str) -> None:
    llm = await town.open("a", over="take", mode=mode)
    async with llm.acquire("acme/search", 10) as grant:
        grant.settle(25)
    assert await left(llm) == (75, 0, 25)
    assert await left(llm, "acme/search") == (35, 0, 25)
    with pytest.raises(Refused, match="60 are charged") as refused:
        async with llm.acquire("acme", 10) as grant:
            await llm.acquire("acme", 15)
            grant.settle(90)
    assert refused.value.reason == "unpaid"
    told = await total(llm)
    assert (told["unspent"], told["held"], told["spent"], told["unpaid"]) == (0, 15, 85, 30)


@MODES
async def test_an_overdraft_is_used_after_the_rest_and_never_by_who_only_asks(town: Town, mode: str) -> None:
    llm = await town.open("a", over="overdraft", tenants=OWING, mode=mode)
    async with llm.acquire("acme/search", 40) as grant:
        first = await llm.acquire("acme", 55)
        grant.settle(58)
    assert await left(llm, "acme/search") == (2, 0, 58), "its own limit covers it, and acme's does not"
    assert await left(llm) == (0, 55, 45)
    assert await left(llm, overdraft_of("acme")) == (7, 0, 13)
    with pytest.raises(Refused):
        await llm.acquire("acme", 1, wait=0.2)
    with pytest.raises(Refused, match="62 are charged, and the 8 beyond"):
        first.settle(70)
        await first.release()
    assert await left(llm, overdraft_of("acme")) == (0, 0, 20)
    assert (await total(llm))["unpaid"] == 8
    row = llm.decider.statistics().tenants["acme"]
    assert (row.overdrawn, row.unpaid, row.spent) == (20, 8, 100)


async def test_what_was_settled_is_said_again_and_unpaid_survives_a_restart(town: Town) -> None:
    llm = await town.open("a", over="take")
    grant = await llm.acquire("acme", 60)
    await llm.acquire("acme", 40)
    for _ in range(2):
        with pytest.raises(Refused, match="the 15 beyond are counted as unpaid"):
            await llm.settle(grant.id, 75)
    with pytest.raises(UsageError, match="charged already"):
        await llm.settle(grant.id, 76)
    assert (await total(llm))["unpaid"] == 15
    for cleanly in (False, True):
        await town.close("a", cleanly=cleanly)
        llm = await town.open("a", over="take")
        assert (await total(llm))["unpaid"] == 15
        with pytest.raises(Refused, match="15 beyond"):
            await llm.settle(grant.id, 75)


async def test_a_hold_that_grew_is_open_after_a_crash_and_settled_by_its_id(town: Town) -> None:
    llm = await town.open("a", over="overdraft", tenants=OWING)
    grant = await llm.acquire("acme", 90)
    await grant.spend(115)
    await town.close("a", cleanly=False)
    llm = await town.open("a", over="overdraft", tenants=OWING)
    assert llm.hold_of(grant).size == 115
    await llm.settle(grant.id, 95)
    assert await left(llm) == (5, 0, 95), "what came first is used first"
    assert await left(llm, overdraft_of("acme")) == (20, 0, 0)


async def test_a_settlement_in_a_partition_is_not_decided_and_may_be_said_again(town: Town) -> None:
    one, two = await town.open("a", over="take"), await town.open("b", over="take")
    await two.acquire("acme", 60, wait=10)
    grant = await one.acquire("acme", 20, wait=10)
    await town.close("b", cleanly=False)
    with pytest.raises(Unknown, match="say it again later"):
        await one.settle(grant.id, 90)
    assert one.hold_of(grant).used is None, "what is not decided is not settled"
    two = await town.open("b", over="take")
    async with asyncio.timeout(10):
        while True:
            try:
                await two.settle(grant.id, 35)
                break
            except Unknown:
                await asyncio.sleep(0.05)
    assert await left(one) == (5, 60, 35), "both nodes' units count"


async def test_each_hold_has_a_time_of_its_own_that_can_be_put_off(town: Town) -> None:
    llm = await town.open("a", hold_expiry_ns=10**9, over="take")
    short, long = await llm.acquire("acme", 10), await llm.acquire("acme", 20, hold="10min")
    kept = await llm.acquire("acme", 30)
    await kept.extend(600)
    async with asyncio.timeout(10):
        while llm.hold_of(short).used is None:
            await asyncio.sleep(0.05)
    assert llm.hold_of(long).used is None and llm.hold_of(kept).used is None
    with pytest.raises(UsageError, match="it had expired, and 10 of its 10 were charged"):
        await short.extend(5)
    with pytest.raises(UsageError, match="after it had expired"):
        await llm.settle(short.id, 12)
    assert (await total(llm))["unpaid"] == 2, "what was used beyond it is known all the same"
    await town.close("a", cleanly=False)
    llm = await town.open("a", hold_expiry_ns=10**9, over="take")
    assert [llm.hold_of(grant).hold_ns for grant in (long, kept)] == [600 * 10**9] * 2
    await asyncio.sleep(1.6)
    assert llm.hold_of(long).used is None and llm.hold_of(kept).used is None


async def test_a_hold_is_extended_and_spent_from_at_any_node(town: Town) -> None:
    one, two = await town.open("a", over="take"), await town.open("b", over="take")
    grant = await one.acquire("acme", 10, wait=10)
    await two.extend_id(grant.id, 900 * 10**9)
    assert one.hold_of(grant).hold_ns == 900 * 10**9
    assert await two.grow_id(grant.id, 14) == 14
    await two.settle(grant.id, 12)
    with pytest.raises(UsageError, match="over"):
        await two.grow_id(grant.id, 20)
    with pytest.raises(UsageError, match="over"):
        await two.extend_id(grant.id, 10**9)
    assert await left(one) == (88, 0, 12)


async def test_a_retry_with_a_key_hears_of_all_that_was_used(town: Town) -> None:
    llm = await town.open("a", over="take")
    async with llm.acquire("acme", 10, key="k") as grant:
        grant.settle(25)
    again = await llm.acquire("acme", 10, key="k")
    assert again.replayed and again.used == 25 and again.closed


async def test_overdrafts_follow_the_policy(town: Town) -> None:
    llm = await town.open("a", over="overdraft", tenants=OWING)
    async with llm.acquire("acme", 100) as grant:
        grant.settle(110)
    assert await left(llm, overdraft_of("acme")) == (10, 0, 10)
    await _change(llm, over="overdraft", tenants={**OWING, "acme": QuotaTenant(limit=100, overdraft=30)})
    assert await left(llm, overdraft_of("acme")) == (20, 0, 10)
    await _change(llm, over="take", tenants={**OWING, "acme": QuotaTenant(limit=100)})
    assert (await total(llm, overdraft_of("acme")))["unspent"] == 0, "a cut takes what is unspent"


async def _change(llm: Quota, **terms: Any) -> None:
    from msgspec.structs import replace

    await llm.reconfigure(replace(llm.policy, **terms))
    async with asyncio.timeout(10):
        while llm.courier.book.ledger.durable < llm.courier.book.ledger.written:
            await asyncio.sleep(0.01)


async def test_nobody_can_be_named_like_an_overdraft(town: Town) -> None:
    guests = {"*": QuotaTenant(limit=10), "acme/*": QuotaTenant(limit=10, parent="acme")}
    llm = await town.open("a", tenants=OWING, templates=guests, over="overdraft")
    with pytest.raises(Refused) as refused:
        await llm.acquire(overdraft_of("acme"), 1)
    assert refused.value.reason == "tenant"
    assert split_account(overdraft_of(account_name("acme", Window(0, 86_400)))) == (
        "acme//*overdraft",
        (0, 86_400),
    )
    assert owner_of("acme//*overdraft") == "acme" and not owner_of("acme")


@pytest.mark.parametrize("hold", [0, 0.5, 31 * 86_400, True, "soon", "10", None, float("nan")])
async def test_a_time_that_makes_no_sense_is_a_usage_error(town: Town, hold: Any) -> None:
    llm = await town.open("a")
    grant = await llm.acquire("acme", 10)
    with pytest.raises(UsageError):
        await grant.extend(hold)
    if hold is not None:
        with pytest.raises(UsageError):
            await llm.acquire("acme", 1, hold=hold)
