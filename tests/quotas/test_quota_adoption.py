"""Ledgers of one store: another's are refused, and what a lost store had minted is not minted again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from quota_town import Quota, Town, left

from bursar.errors import JournalError, Refused, Unknown
from bursar.quotas import operations
from bursar.world import StoreName

LIMIT = 100


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    town = Town(tmp_path)
    town.store = StoreName("first")
    yield town
    for name in list(town.worlds):
        await town.close(name)


async def spend(resource: Quota, amount: int, tenant: str = "acme") -> None:
    grant = await resource.acquire(tenant, amount, wait=5)
    await grant.release()


async def spend_all(resource: Quota, tenant: str = "acme") -> int:
    """One by one, until it is refused."""
    told = 0
    while True:
        try:
            await spend(resource, 1, tenant)
        except Refused:
            return told
        told += 1


async def test_a_ledger_of_another_store_is_refused(town: Town) -> None:
    await spend(await town.open("a"), 1)
    await town.close("a")
    town.rebuild_store()
    town.store = StoreName("second")
    with pytest.raises(JournalError, match=r"belongs to the store first, and this is second.*store adopt"):
        await town.open("a")


async def test_a_ledger_that_saw_a_later_epoch_is_refused(town: Town) -> None:
    town.store = StoreName("first", 3)
    await town.open("a")
    await town.close("a")
    town.store = StoreName("first", 2)
    with pytest.raises(JournalError, match=r"has seen epoch 3 of the store, and this is epoch 2"):
        await town.open("a")


async def test_a_ledger_of_another_node_is_refused(town: Town) -> None:
    """A copied state folder beside the live node, under another name: told 1,400 of 1,000 once."""
    await spend(await town.open("a"), 1)
    shutil.copytree(town.folder / "a", town.folder / "c", ignore=shutil.ignore_patterns("lock*"))
    with pytest.raises(JournalError, match=r"is of the node a, not of c"):
        await town.open("c")


@pytest.mark.parametrize("mode", ["exact", "fast"])
async def test_nodes_go_on_with_a_rebuilt_store_where_they_were(town: Town, mode: str) -> None:
    a, b = await town.open("a", mode=mode, block=4), await town.open("b", mode=mode, block=4)
    await spend(a, 30)
    await spend(b, 10)
    for name in ("a", "b"):
        await town.close(name, cleanly=False)
    lost = 8 if mode == "fast" else 0  # what was charged ahead when they were killed
    town.rebuild_store()
    a, b = await town.open("a", mode=mode, block=4), await town.open("b", mode=mode, block=4)
    told = await spend_all(a)
    assert LIMIT - 40 - lost <= told <= LIMIT - 40
    with pytest.raises(Refused):
        await b.acquire("acme", 1, wait=5)
    await left(b)  # the audit adds up


async def test_what_does_not_come_back_counts_as_spent(town: Town) -> None:
    a, b = await town.open("a"), await town.open("b")
    async with asyncio.timeout(10):
        while not a.courier.book.children:
            await asyncio.sleep(0.01)
    await spend(a, 60)  # more than its half: b sent some
    for name in ("a", "b"):
        await town.close(name, cleanly=False)
    town.rebuild_store()
    shutil.rmtree(town.folder / "b")
    a = await town.open("a")
    with pytest.raises(JournalError, match="quota fence b"):
        await town.open("b")
    world = town.worlds["a"]
    with pytest.raises(Unknown):  # b may be back with what it has
        await a.acquire("acme", LIMIT - 59, wait=0.2)
    await operations.fence(world.store, a.courier.layout, "b", by="operator", at_ns=0)
    b = await town.open("b")
    assert b.courier.book.identity == "b~2.1"
    assert await spend_all(b) + await spend_all(a) <= LIMIT - 60


async def test_a_window_that_begins_after_the_adoption_has_its_whole_limit(town: Town) -> None:
    await spend_all(await town.open("a", window="hour"))
    await town.close("a")
    town.rebuild_store()
    town.store = town.store._replace(since_ns=0)  # long ago
    assert await spend_all(await town.open("a", window="hour")) == LIMIT


async def test_a_raised_limit_mints_nothing_for_what_a_lost_store_had_raised_before(town: Town) -> None:
    a = await town.open("a")
    await a.verb("set_limit", tenant="acme", limit=LIMIT + 50)
    await spend(a, 30)
    await town.close("a")
    town.rebuild_store()
    a = await town.open("a")  # by a policy that says 100
    await a.acquire("acme", 1, wait=5)
    await a.verb("set_limit", tenant="acme", limit=LIMIT + 50)
    assert await spend_all(a) == LIMIT + 50 - 30 - 1


async def test_a_life_after_the_adoption_is_read_back(town: Town) -> None:
    """Its lists of mints began anew, once."""
    await spend(await town.open("a"), 30)
    await town.close("a")
    town.rebuild_store()
    a = await town.open("a")
    await spend(a, 10)
    async with asyncio.timeout(10):
        while not a.decider.is_ready():
            await asyncio.sleep(0.01)
    await a.verb("top_up", account="acme", amount=50)
    await spend(a, 10)
    await town.close("a", cleanly=False)
    assert await spend_all(await town.open("a")) == LIMIT


async def test_a_copy_of_a_state_folder_stops_the_live_node(town: Town, tmp_path: Path) -> None:
    """Both had the same units, and told 1,400 of 1,000."""
    a = await town.open("a")
    await spend(a, 10)
    shutil.copytree(
        town.folder / "a", town.folder / "copy", ignore=shutil.ignore_patterns("lock*", "session")
    )
    first = town.worlds.pop("a"), town.resources.pop("a")
    copy = await town.open("a", state="copy")
    async with asyncio.timeout(10):
        while not a.courier.deposed:
            await asyncio.sleep(0.01)
    with pytest.raises(Unknown, match="taken up by another process"):
        await a.acquire("acme", 1, wait=1)
    assert not a.decider.is_ready()
    assert "taken up by another process" in a.decider.statistics().problem
    assert await spend_all(copy) == LIMIT - 10
    await first[1].stop()
    await first[0].close()


async def until_fenced(resource: Quota, account: str = "acme") -> None:
    async with asyncio.timeout(15):
        while account not in resource.courier.book.stopped:
            await asyncio.sleep(0.02)


async def test_an_account_of_which_there_is_too_much_is_fenced_everywhere(town: Town) -> None:
    a, b = await town.open("a", warnings=()), await town.open("b", warnings=())
    await spend(a, 10)
    await b.courier.registry.read("acme")
    account = b.courier.book.ledger.account("acme")
    account.unspent += 500  # as a ledger would that counts twice
    account.endowment += 500
    await until_fenced(a)
    await until_fenced(b)
    for node in (a, b):
        with pytest.raises(Unknown, match=r"finds 500 more than was ever minted.*quota accept acme"):
            await node.acquire("acme", 1, wait=1)
    await spend(a, 1, "beta")  # the others go on
    rows = {row["account"]: row for row in (await a.verb("survey"))["rows"]}
    assert rows["acme"]["fenced"]
    assert await a.verb("accept", account="acme") == {"account": "acme", "accepted": 500}
    async with asyncio.timeout(10):
        while a.courier.book.stopped or b.courier.book.stopped:
            await asyncio.sleep(0.02)
    assert await spend_all(b) == LIMIT + 500 - 10
    await left(a)


async def test_the_audit_adds_up_after_a_fence_with_state_lost(town: Town) -> None:
    """`missing` stayed unknown for ever."""
    a, b = await town.open("a"), await town.open("b")
    async with asyncio.timeout(10):
        while not a.courier.book.children:
            await asyncio.sleep(0.01)
    await spend(a, 10)
    await spend(b, 10)
    layout = b.courier.layout
    await town.close("b", cleanly=False)
    shutil.rmtree(town.folder / "b")
    await operations.fence(town.worlds["a"].store, layout, "b", by="operator", at_ns=0)
    async with asyncio.timeout(10):
        while (total := (await a.decider.watch.take_survey())["acme"]).missing is None:
            await asyncio.sleep(0.05)
    assert total.missing == 0
    assert total.written_off + total.unspent + total.spent == LIMIT
