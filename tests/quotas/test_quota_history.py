"""What was used, by tenant and window: written down at every node, exported, and equal to the ledgers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from quota_town import Quota, Town
from test_quota_changes import go_to, list_stored, month

from bursar.errors import UsageError
from bursar.fleet import audit
from bursar.policy.values import QuotaTenant

TENANTS = {"acme": QuotaTenant(limit=1_000), "beta": QuotaTenant(limit=500, anchor=date(2026, 1, 17))}


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    town = Town(tmp_path)
    yield town
    for name in list(town.resources):
        await town.close(name)


async def open_monthly(town: Town, name: str) -> Quota:
    llm = await town.open(name, window="month", tenants=TENANTS)
    llm.decider.watch.grace_ns = 0
    return llm


async def use(llm: Quota, tenant: str, amount: int, used: int) -> None:
    grant = await llm.acquire(tenant, amount, wait=5.0)
    grant.settle(used)
    await grant.release()


async def go_round(*nodes: Quota) -> None:
    """As the root does, until what is over is known and written down."""
    async with asyncio.timeout(10):
        while not all(node.courier.book.members for node in nodes):
            await asyncio.sleep(0.01)
    for _ in range(3):
        for node in nodes:
            if node.courier.book.parent is None:
                await node.decider.watch.go_round()


async def list_used(llm: Quota, **asked: Any) -> dict[tuple[str, str], tuple[int, bool]]:
    rows = (await llm.verb("usage", **asked))["rows"]
    return {(row["tenant"], row["begin"]): (row["used"], row["final"]) for row in rows}


async def test_usage_is_final_when_a_window_is_over_and_outlives_its_account(town: Town) -> None:
    one, two = await open_monthly(town, "a"), await open_monthly(town, "b")
    for day, number in (("2026-09-15", 9), ("2026-10-15", 10), ("2026-11-15", 11), ("2026-12-15", 12)):
        for node in (one, two):
            go_to(node, day)
            await use(node, "acme", 200, 10 * number)
        await use(one, "beta", 100, number)
        await go_round(one, two)
    expected = {
        ("acme", "2026-09-01"): (180, True),
        ("acme", "2026-10-01"): (200, True),
        ("acme", "2026-11-01"): (220, True),
        ("acme", "2026-12-01"): (240, False),
        ("beta", "2026-08-17"): (9, True),
        ("beta", "2026-09-17"): (10, True),
        ("beta", "2026-10-17"): (11, True),
        ("beta", "2026-11-17"): (12, False),
    }
    assert await list_used(one) == await list_used(two) == expected
    assert month("acme", 9) not in await list_stored(one), "the store has none of it"
    assert await list_used(two, tenant="acme", since="2026-10-01", until="2026-12-01") == {
        ("acme", "2026-10-01"): (200, True),
        ("acme", "2026-11-01"): (220, True),
    }
    page = await one.verb("usage", most=1)
    assert {row["tenant"] for row in page["rows"]} == {"acme"} and page["next"] == 1
    assert (await one.verb("usage", after=1))["next"] is None


async def test_what_was_used_at_one_node_alone_is_exported_and_written_down_by_all(town: Town) -> None:
    one, two = await open_monthly(town, "a"), await open_monthly(town, "b")
    for node in (one, two):
        go_to(node, "2026-08-15")
        await use(node, "acme", 2, 1)  # so little that no node asks another
    expected = {("acme", "2026-08-01"): (2, False)}
    for day, user in (("2026-09-15", one), ("2026-10-15", two)):
        for node in (one, two):
            go_to(node, day)
        await use(user, "acme", 2, 1)
        expected["acme", day[:8] + "01"] = (1, False)
        assert await list_used(one) == await list_used(two) == expected
    for day in ("2026-12-15", "2027-01-15"):
        for node in (one, two):
            go_to(node, day)
        await go_round(one, two)
    over = {key: (used, True) for key, (used, _) in expected.items()}
    assert await list_used(one) == await list_used(two) == over
    assert not await list_stored(one), "the accounts are forgotten"


async def test_a_window_is_not_final_while_anything_of_it_is_held(town: Town) -> None:
    llm = await open_monthly(town, "a")
    go_to(llm, "2026-09-15")
    held = await llm.acquire("acme", 60, wait=5.0)
    go_to(llm, "2026-10-15")
    await go_round(llm)
    (row,) = (await llm.verb("usage"))["rows"]
    assert (row["used"], row["held"], row["final"]) == (0, 60, False)
    await llm.settle(held.id, 7)
    await go_round(llm)
    assert await list_used(llm) == {("acme", "2026-09-01"): (7, True)}


async def test_a_node_that_lost_its_disk_gets_the_history_of_the_others(town: Town) -> None:
    one, two = await open_monthly(town, "a"), await open_monthly(town, "b")
    for day in ("2026-09-15", "2026-10-15"):
        for node in (one, two):
            go_to(node, day)
            await use(node, "acme", 10, 10)
        await go_round(one, two)
    before = await list_used(one, until="2026-10-01")
    assert before == {("acme", "2026-09-01"): (20, True)}
    await town.close("b", cleanly=False)
    shutil.rmtree(town.folder / "b")
    await one.verb("fence", node="b")
    two = await open_monthly(town, "b")
    async with asyncio.timeout(10):
        while not two.decider.history.used:
            await asyncio.sleep(0.02)
    assert await list_used(two, until="2026-10-01") == before


async def test_history_is_read_back_after_a_restart_and_dropped_when_it_is_old(town: Town) -> None:
    llm = await open_monthly(town, "a")
    for day in ("2026-09-15", "2026-10-15"):
        go_to(llm, day)
        await use(llm, "acme", 10, 10)
        await go_round(llm)
    await town.close("a")
    llm = await open_monthly(town, "a")
    go_to(llm, "2026-10-15")
    assert (await list_used(llm))["acme", "2026-09-01"] == (10, True)
    go_to(llm, "2027-12-01")
    await llm.decider.history.forget_old()
    assert "acme" not in llm.decider.history.used
    await town.close("a")
    assert not (await open_monthly(town, "a")).decider.history.used


async def test_a_credit_note_is_on_the_bill_at_every_node_and_in_the_audit(town: Town) -> None:
    one, two = await open_monthly(town, "a"), await open_monthly(town, "b")
    for node in (one, two):
        go_to(node, "2026-09-15")
    await use(one, "acme", 100, 100)
    go_to(one, "2026-10-15")
    go_to(two, "2026-10-15")
    await go_round(one, two)
    said = await two.verb("adjust", account="acme@2026-09-01", amount=-30, reason="outage", by="ops")
    assert (said["adjusted"], said["silent"]) == (-30, [])
    for node in (one, two):
        (row,) = (await node.verb("usage"))["rows"]
        assert (row["used"], row["adjusted"], row["billed"], row["final"]) == (100, -30, 70, True)
    newest = (await audit.list_entries(town.worlds["a"].store))[-1]
    assert (newest.what, newest.by) == ("adjust", "ops") and "outage" in newest.detail
    with pytest.raises(UsageError, match="say why"):
        await one.verb("adjust", account="acme@2026-09-01", amount=1, reason=" ")
    with pytest.raises(UsageError, match="nothing was used of nobody"):
        await one.verb("adjust", account="nobody", amount=1, reason="why")


async def test_a_balance_is_over_all_nodes_and_says_when_one_did_not_answer(town: Town) -> None:
    one, two = await open_monthly(town, "a"), await open_monthly(town, "b")
    for node in (one, two):
        go_to(node, "2026-11-16")
        await use(node, "acme", 100, 50)
    held = await one.acquire("acme", 10, wait=5.0)
    async with asyncio.timeout(10):
        while not (row := (await two.verb("balance", tenant="acme"))["rows"][0])["complete"]:
            await asyncio.sleep(0.05)
    assert (row["limit"], row["used"], row["held"], row["remaining"]) == (1_000, 100, 10, 890)
    assert row["ends_in_s"] == 15 * 86_400 and 100 <= row["forecast"] <= 1_000
    await held.release()
    await town.close("a", cleanly=False)
    (row,) = (await two.verb("balance", tenant="acme"))["rows"]
    assert not row["complete"] and row["used"] == 50


async def test_a_clock_that_ended_a_window_too_soon_leaves_the_bill_right(town: Town) -> None:
    llm = await open_monthly(town, "a")
    go_to(llm, "2026-09-15")
    await use(llm, "acme", 100, 40)
    go_to(llm, "2026-10-15")
    await go_round(llm)
    go_to(llm, "2026-09-20")
    await use(llm, "acme", 100, 60)
    go_to(llm, "2026-10-15")
    await go_round(llm)
    assert (await list_used(llm))["acme", "2026-09-01"] == (100, True)
