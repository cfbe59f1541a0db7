"""A settlement is not lost: it works after a restart, from another node, and twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from quota_town import Quota, Town, left

from bursar.errors import Unknown, UsageError
from bursar.world import MILLISECOND_NS


async def test_a_hold_is_settled_by_its_id_after_a_restart(town: Town) -> None:
    llm = await town.open("a")
    stopped = await llm.acquire("acme", 40, wait=5.0)
    await town.close("a")
    llm = await town.open("a")
    dropped = await llm.acquire("acme", 20, wait=5.0)
    await town.close("a", cleanly=False)
    llm = await town.open("a")
    assert await left(llm) == (40, 60, 0), "nothing is charged because the node was away"
    await llm.settle(stopped.id, 25)
    await llm.settle(dropped.id, 1)
    assert await left(llm) == (74, 0, 26)


async def test_a_hold_is_settled_from_another_node(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    grant = await one.acquire("beta", 40, wait=5.0)
    await two.settle(grant.id, 25)
    assert one.hold_of(grant).used == 25
    await two.settle(grant.id, 25)
    with pytest.raises(UsageError, match="25 of the 40 that were acquired were charged already"):
        await two.settle(grant.id, 24)
    assert await left(one, "beta") == (975, 0, 25)


async def test_every_node_knows_whose_a_hold_is_also_when_it_is_settled(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    grant = await one.acquire("beta", 40, wait=5.0)
    assert await one.whose(grant.id) == await two.whose(grant.id) == "beta"
    await one.settle(grant.id, 25)
    assert await two.whose(grant.id) == "beta"
    for unknown in ("a/999", "nowhere/1", "a"):
        with pytest.raises(UsageError):
            await two.whose(unknown)


async def test_settling_again_is_nothing_with_the_same_number_and_an_error_with_another(town: Town) -> None:
    llm = await town.open("a")
    grant = await llm.acquire("acme", 40, wait=5.0)
    await llm.settle(grant.id, 25)
    await town.close("a", cleanly=False)
    llm = await town.open("a")
    await llm.settle(grant.id, 25)
    for used in (24, 40, None):
        with pytest.raises(UsageError, match="25 of the 40 that were acquired were charged already"):
            await llm.settle(grant.id, used)
    assert await left(llm) == (75, 0, 25)


async def test_without_a_number_all_of_it_was_used(town: Town) -> None:
    llm = await town.open("a")
    grant = await llm.acquire("acme", 40, wait=5.0)
    await llm.settle(grant.id, None)
    await llm.settle(grant.id, 40)
    assert await left(llm) == (60, 0, 40)


async def test_more_than_was_acquired_is_an_error_and_charged_as_far_as_it_was(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    grant = await one.acquire("beta", 10, wait=5.0)
    with pytest.raises(UsageError, match=r"settled with 5000: 10 of the 10 .* acquire as much"):
        await two.settle(grant.id, 5_000)
    assert await left(one, "beta") == (990, 0, 10)


async def test_what_expired_was_charged_in_full_and_says_so(town: Town) -> None:
    llm = await town.open("a", hold_expiry_ns=100 * MILLISECOND_NS)
    grant = await llm.acquire("acme", 40, wait=5.0)
    async with asyncio.timeout(5):
        while llm.hold_of(grant).used is None:
            await asyncio.sleep(0.02)
    with pytest.raises(UsageError, match="after it had expired: 40 of the 40"):
        await llm.settle(grant.id, 1)
    await llm.settle(grant.id, 40)


async def test_ids_and_numbers_that_are_none_are_refused(town: Town) -> None:
    llm = await town.open("a")
    for id in ("", "a", "a/", "/7", "a/x", "a/-1", "a/1.5", "a/\u0663"):
        with pytest.raises(UsageError):
            await llm.settle(id, 1)
    grant = await llm.acquire("acme", 10, wait=5.0)
    for used in (-1, 1.5, True, "3", 2**63):
        with pytest.raises(UsageError, match="whole number"):
            await llm.settle(grant.id, used)  # type: ignore[arg-type]
    assert llm.hold_of(grant).used is None
    with pytest.raises(UsageError, match="no grant a/7 is known"):
        await llm.settle("a/7", 1)
    with pytest.raises(UsageError, match="there is no ledger 'nowhere'"):
        await llm.settle("nowhere/7", 1)


async def test_a_node_that_is_away_is_settled_with_later(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    grant = await one.acquire("beta", 40, wait=5.0)
    await town.close("a", cleanly=False)
    with pytest.raises(Unknown, match="settle again later"):
        await two.settle(grant.id, 25)
    one = await town.open("a")
    async with asyncio.timeout(10):
        while True:
            try:
                await two.settle(grant.id, 25)
                break
            except Unknown:
                await asyncio.sleep(0.05)  # it has not found the node's new address yet
    assert await left(one, "beta") == (975, 0, 25)


async def test_a_ledger_that_was_written_off_cannot_be_settled_with(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    grant = await one.acquire("beta", 40, wait=5.0)
    await town.close("a", cleanly=False)
    await town.worlds["b"].store.create(two.courier.layout.fence("a"))
    async with asyncio.timeout(5):
        while "a" not in two.courier.book.fenced:
            await asyncio.sleep(0.01)
    with pytest.raises(Unknown, match="was written off"):
        await two.settle(grant.id, 25)


async def test_what_is_told_as_settled_is_on_disk(town: Town) -> None:
    llm = await town.open("a")
    grant = await llm.acquire("acme", 40, wait=5.0)
    await llm.settle(grant.id, 25)
    ledger = llm.courier.book.ledger
    assert ledger.durable == ledger.written


async def fast(town: Town, **settings: Any) -> Quota:
    return await town.open("a", mode="fast", block=50, **settings)


async def test_fast_mode_stopped_cleanly_keeps_what_is_open_and_what_was_settled(town: Town) -> None:
    llm = await fast(town)
    open_ = await llm.acquire("beta", 5, wait=5.0)
    llm.hand.end("beta")
    over = await llm.acquire("beta", 6, wait=5.0)
    assert open_.id and over.id, "not from a lot"
    over.settle(2)
    await over.release()
    await town.close("a")
    llm = await fast(town)
    assert await left(llm, "beta") == (993, 5, 2)
    await llm.settle(over.id, 2)
    await llm.settle(open_.id, 3)
    assert await left(llm, "beta") == (995, 0, 5)


async def test_fast_mode_crashed_has_charged_what_was_open(town: Town) -> None:
    llm = await fast(town)
    grant = await llm.acquire("beta", 5, wait=5.0)
    await town.close("a", cleanly=False)
    llm = await fast(town)
    with pytest.raises(UsageError, match=r"charged in full when its node crashed"):
        await llm.settle(grant.id, 1)
    _, held, spent = await left(llm, "beta")
    assert held == 0 and 5 <= spent <= 55


@pytest.mark.parametrize("over", ["refuse", "take"])
async def test_what_nobody_can_have_used_is_a_mistake_and_not_counted(town: Town, over: str) -> None:
    llm = await town.open("a", over=over)
    grant = await llm.acquire("beta", 10, wait=5.0)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"10 of the 10 .* taken for a mistake"):
            await llm.settle(grant.id, 2**62)
    await llm.settle(grant.id, 10)
    row = llm.decider.statistics().tenants["beta"]
    assert (row.spent, row.held, row.unpaid, row.unspent) == (10, 0, 0, 990)


async def test_who_settles_for_what_was_charged_after_more_was_said_is_told(town: Town) -> None:
    llm = await town.open("a")
    grant = await llm.acquire("beta", 10, wait=5.0)
    with pytest.raises(UsageError, match="the 2 beyond"):
        await llm.settle(grant.id, 12)
    with pytest.raises(UsageError, match="after it had ended"):
        await llm.settle(grant.id, 10)
