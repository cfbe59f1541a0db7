"""The same key is one acquisition, wherever it is asked; a key that was given back is free again."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from quota_town import Quota, Town, left

from bursar.errors import Refused, Unknown, UsageError
from bursar.quotas import homes, keys
from bursar.quotas.balances import Hold
from bursar.quotas.keys import KEY_MEMORY_NS, Home, Keys
from bursar.quotas.layout import HomeRecord, Layout, digest
from bursar.resource import Ticket, wire
from bursar.resource.clients import Clients
from bursar.resource.grants import Grant
from bursar.world import CHILDREN_MAX, MILLISECOND_NS, SECOND_NS

MODES = pytest.mark.parametrize("mode", ["exact", "fast"])


async def acquire(llm: Quota, key: str, amount: int = 10, tenant: str = "acme") -> Grant:
    return await llm.acquire(tenant, amount, key=key, wait=5.0)


async def end(grant: Grant, used: int) -> None:
    grant.settle(used)
    await grant.release()


async def until_freed(llm: Quota, key: str) -> None:
    async with asyncio.timeout(5):
        while llm.courier.book.keys.find(key) is not None:
            await asyncio.sleep(0.01)


@MODES
async def test_a_repeat_is_told_of_the_first_and_what_was_used_of_it(town: Town, mode: str) -> None:
    llm = await town.open("a", mode=mode)
    first, second = await asyncio.gather(acquire(llm, "k"), acquire(llm, "k"))
    assert [first.replayed, second.replayed].count(True) == 1 and first.id == second.id
    await end(first, 7)
    third = await acquire(llm, "k")
    assert third.replayed and third.closed and (third.used, third.id) == (7, first.id)
    second.settle(9)
    with pytest.raises(UsageError, match="7 of the 10 that were acquired were charged already"):
        await second.release()
    assert await left(llm) == (93, 0, 7)


@MODES
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_who_gives_up_does_not_take_from_whoever_was_told_of_it_again(
    town: Town, mode: str, elsewhere: bool
) -> None:
    """The first answer comes too late for its caller, who asks again with the key and goes on with that."""
    one = await town.open("a", mode=mode)
    other = await town.open("b", mode=mode) if elsewhere else one
    first = await acquire(one, "k")
    again = await acquire(other, "k")
    assert again.replayed and again.used is None
    await one.undo("acme", first._source)
    await end(again, 7)
    third = await acquire(one, "k")
    assert third.replayed and third.used == 7


async def test_a_client_that_gives_up_as_its_answer_comes_does_not_take_from_who_was_told_of_it_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is given, and before it is sent the client says that it waits no longer."""
    llm = await town.open("a")
    clients = Clients(town.worlds["a"], {"llm": llm})
    for client in ("one", "two"):
        await clients._answer(client, wire.Open())
    take = wire.Take(1, "llm", "acme", 10, wait_ns=5 * SECOND_NS, key="k")
    first, again = (asyncio.ensure_future(clients._answer(client, take)) for client in ("one", "two"))
    given = Ticket.give

    def give(ticket: Ticket, answer: Any) -> None:
        given(ticket, answer)
        if ticket.held_by == "one":
            clients._sessions["one"].note_returned(1)

    monkeypatch.setattr(Ticket, "give", give)
    assert isinstance(await first, wire.Given)
    told = await again
    assert isinstance(told, wire.Given) and told.replayed and told.used is None
    third = await acquire(llm, "k")
    assert third.replayed and third.id == told.id


@MODES
async def test_a_grant_that_nobody_was_told_of_leaves_nothing_held(town: Town, mode: str) -> None:
    llm = await town.open("a", mode=mode)
    first = await acquire(llm, "k")
    await llm.undo("acme", first._source)
    await until_freed(llm, "k")
    assert await left(llm) == (100, 0, 0)


@MODES
async def test_the_same_key_at_two_nodes_is_charged_once(town: Town, mode: str) -> None:
    one, two = await town.open("a", mode=mode), await town.open("b", mode=mode)
    first, second = await acquire(one, "k", 40, "beta"), await acquire(two, "k", 40, "beta")
    assert (second.replayed, second.used, second.id) == (True, None, first.id)
    await end(second, 25)  # whoever retries may settle
    third = await acquire(one, "k", 40, "beta")
    assert third.replayed and third.used == 25
    assert await left(one, "beta") == (975, 0, 25)


async def test_both_nodes_asked_at_once_charge_once(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    for number in range(20):
        grants = await asyncio.gather(
            *(acquire(llm, f"k{number}", 10, "beta") for llm in (one, two, one, two))
        )
        assert len({grant.id for grant in grants}) == 1
        assert [grant.replayed for grant in grants].count(False) == 1
        await end(grants[0], 10)
    async with asyncio.timeout(10):  # what the other node had reserved for the same key is on its way back
        while await left(one, "beta") != (800, 0, 200):
            await asyncio.sleep(0.01)


@MODES
async def test_work_that_failed_is_no_free_pass(town: Town, mode: str) -> None:
    """Told 5,000 of 1,000 and charged nothing, before keys that were given back were free again."""
    one, two = await town.open("a", mode=mode), await town.open("b", mode=mode)
    told = 0
    for attempt in range(5):
        with pytest.raises(RuntimeError):
            async with one.acquire("beta", 400, key="k", wait=5.0):
                raise RuntimeError("the model is down")
        async with (one, two)[attempt % 2].acquire("beta", 400, key="k", wait=5.0) as grant:
            assert not grant.replayed
            told += 400
            grant.settle(0 if attempt < 4 else 400)
            told -= 400 if attempt < 4 else 0
    assert told == 400
    assert await left(one, "beta") == (600, 0, 400)


async def test_a_key_that_was_given_back_may_be_used_for_something_else(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    await end(await acquire(one, "k", 10, "beta"), 0)
    await until_freed(one, "k")
    grant = await acquire(two, "k", 11, "acme")
    assert not grant.replayed and grant.amount == 11


async def test_another_amount_or_tenant_is_refused_wherever_it_is_asked(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    await acquire(one, "k", 10, "beta")
    for llm in (one, two):
        for amount, tenant in ((11, "beta"), (10, "acme")):
            with pytest.raises(UsageError, match="use another key"):
                await acquire(llm, "k", amount, tenant)
    assert await left(one, "beta") == (990, 10, 0)


@MODES
@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "crashed"])
async def test_keys_outlast_a_restart(town: Town, mode: str, cleanly: bool) -> None:
    llm = await town.open("a", mode=mode)
    over, open_ = await acquire(llm, "over"), await acquire(llm, "open", 20)
    await end(over, 4)
    await town.close("a", cleanly=cleanly)
    llm = await town.open("a", mode=mode)
    retry = await acquire(llm, "over")
    assert retry.replayed and retry.used == 4
    retry.settle(4)  # a retry may say again what was used, and nothing else
    with pytest.raises(UsageError, match="released already"):
        retry.settle(5)
    again = await acquire(llm, "open", 20)
    assert again.replayed and again.id == open_.id
    await end(again, 1)
    async with asyncio.timeout(5):
        while (await left(llm))[1]:
            await asyncio.sleep(0.01)
    assert llm.hold_of(over).used == 4 and llm.hold_of(open_).used == 1


async def test_a_repeat_is_not_refused_because_the_budget_is_used_up(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    await end(await acquire(one, "k", 100), 100)
    with pytest.raises(Refused):
        await acquire(two, "another", 1)
    retry = await acquire(two, "k", 100)
    assert retry.replayed and retry.used == 100


async def test_before_a_key_is_refused_it_is_looked_for_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waited for units, the same key took the last of them at another node."""
    one, two = await town.open("a"), await town.open("b")
    await end(await acquire(one, "k", 100), 100)
    looks, read = [0], homes.read

    async def read_late(*arguments: Any) -> HomeRecord | None:
        looks[0] += 1
        return None if looks[0] == 1 else await read(*arguments)

    monkeypatch.setattr(homes, "read", read_late)
    assert (await acquire(two, "k", 100)).replayed and looks[0] > 1


async def test_while_a_keys_home_is_away_nobody_else_charges_for_it(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    await acquire(one, "k", 10, "beta")
    await town.close("a", cleanly=False)
    with pytest.raises(Unknown, match="used at a, which does not answer"):
        await two.acquire("beta", 10, key="k")
    with pytest.raises(UsageError, match="another tenant or amount"):
        await two.acquire("beta", 11, key="k")
    assert await left_here(two, "beta") == 0


async def left_here(llm: Quota, account: str) -> int:
    """What is held or spent at this node."""
    return llm.courier.book.ledger.account(account).used


async def test_keys_of_a_ledger_that_was_written_off_are_forgotten_and_stay_the_others(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    await acquire(two, "warm", 30, "beta")
    await two.acquire("beta", 100)
    await end(await acquire(one, "settled", 10, "beta"), 4)
    await end(await acquire(one, "kept", 10, "beta"), 6)
    await acquire(one, "open", 10, "beta")
    await town.close("a", cleanly=False)
    await _fence_a(town, two)
    for key in ("settled", "open"):
        anew = await acquire(two, key, 10, "beta")
        assert not anew.replayed, "what was used of it nobody knows: it is charged again"
        await end(anew, 7)
    assert two.decider.statistics().keys_forgotten == 2
    one = await town.open("a")
    async with asyncio.timeout(10):
        while one.courier.book.ledger.holds:
            await asyncio.sleep(0.01)  # what was held for a key that is another's is given back
        for key, used in (("settled", 7), ("open", 7), ("kept", 6)):
            for llm in (one, two):
                again = await acquire(llm, key, 10, "beta")
                assert (again.replayed, again.used) == (True, used), key


async def test_a_key_is_forgotten_only_while_its_ledger_is_written_off(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    await acquire(one, "k", 10, "beta")
    store, layout = town.worlds["b"].store, two.courier.layout
    await homes.forget(store, layout, "k", "a")
    await homes.forget(store, layout, "k", "b")
    record = await homes.read(store, layout, "k")
    assert record is not None and record.ledger == "a"


async def _fence_a(town: Town, two: Quota) -> None:
    await town.worlds["b"].store.create(two.courier.layout.fence("a"))
    async with asyncio.timeout(5):
        while "a" not in two.courier.book.fenced:
            await asyncio.sleep(0.01)


async def test_keys_that_nobody_asks_for_again_are_swept_with_their_ledger(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    await acquire(one, "k", 10, "beta")
    await town.close("a", cleanly=False)
    store, layout = town.worlds["b"].store, two.courier.layout
    await _fence_a(town, two)
    record = await homes.read(store, layout, "k")
    assert record is not None and record.until_s > town.worlds["b"].clock.wall() // 10**9 + 24 * 3600
    assert await homes.sweep(store, layout, frozenset("a"), record.until_s) == 0
    assert await homes.sweep(store, layout, frozenset(), record.until_s + 1) == 0
    assert await homes.sweep(store, layout, frozenset("a"), record.until_s + 1) == 1
    assert await homes.read(store, layout, "k") is None


async def test_a_cancelled_acquisition_leaves_its_key_free(town: Town) -> None:
    llm = await town.open("a")
    await acquire(llm, "warm", 1, "beta")
    for number in range(60):
        asking = asyncio.ensure_future(acquire(llm, f"k{number}", 10, "beta"))
        for _ in range(number % 12):
            await asyncio.sleep(0)
        if number % 3 == 0:
            await asyncio.sleep(0.0005 * (number % 7))
        asking.cancel()
        try:
            grant = await asking
            await end(grant, 0)
        except asyncio.CancelledError:
            pass
    async with asyncio.timeout(10):
        while (await left(llm, "beta"))[1] != 1 or len(llm.courier.book.keys) > 1:
            await asyncio.sleep(0.02)
    for number in range(60):
        assert not (await acquire(llm, f"k{number}", 11, "beta")).replayed


class Paused:
    """A store that does not take keys for a while."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, path: str, data: bytes = b"", **how: Any) -> str:
        if "/keys/" in path:
            await self.go.wait()
        made: str = await self._store.create(path, data, **how)
        return made


async def test_nothing_is_told_before_the_key_has_its_home_here(town: Town) -> None:
    llm = await town.open("a")
    await acquire(llm, "warm", 1)
    paused = Paused(llm.courier.world.store)
    object.__setattr__(llm.courier.world, "store", paused)
    with pytest.raises(Unknown):
        await llm.acquire("acme", 10, key="k")
    assert await left(llm) == (89, 11, 0), "held, until it is known whose the key is"
    paused.go.set()
    await until_freed(llm, "k")
    assert await left(llm) == (99, 1, 0), "what nobody waited for any more went back"


async def test_a_hold_whose_key_may_be_another_ledgers_does_not_expire(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = await town.open("a")
    grant = await acquire(llm, "k")
    await town.close("a", cleanly=False)
    answered, take = asyncio.Event(), homes.take

    async def take_late(*arguments: Any) -> bool:
        await answered.wait()
        return await take(*arguments)

    monkeypatch.setattr(homes, "take", take_late)
    llm = await town.open("a", hold_expiry_ns=MILLISECOND_NS)
    await asyncio.sleep(1.2)
    assert llm.hold_of(grant).used is None
    answered.set()
    async with asyncio.timeout(5):
        while llm.hold_of(grant).used != 10:
            await asyncio.sleep(0.02)


async def test_more_than_there_ever_is_says_so_and_not_what_is_left(town: Town) -> None:
    llm = await town.open("a")
    await end(await acquire(llm, "all", 100), 100)
    with pytest.raises(Refused, match="100 is all that there ever is: ask for less") as refused:
        await acquire(llm, "k", 101)
    assert (refused.value.limit, refused.value.remaining, refused.value.retry_after) == (100, None, None)


async def test_a_hold_whose_key_another_ledger_took_is_given_back(town: Town) -> None:
    """A crash left units held for a key; before the node came back another one used the key."""
    one, two = await town.open("a"), await town.open("b")
    await end(await two.acquire("beta", 100, wait=5.0), 0)  # has some units from now on
    grant = await acquire(one, "k", 10, "beta")
    store, layout = town.worlds["b"].store, two.courier.layout
    await town.close("a", cleanly=False)
    await store.delete(layout.key("k"))  # as if it had not been taken yet
    second = await acquire(two, "k", 10, "beta")
    one = await town.open("a")
    async with asyncio.timeout(10):
        while one.hold_of(grant).used != 0:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        while True:
            try:
                retry = await acquire(one, "k", 10, "beta")
                break
            except Unknown:
                await asyncio.sleep(0.05)
    assert retry.replayed and retry.id == second.id


async def test_a_record_that_came_late_does_not_block_its_key(town: Town) -> None:
    """It names a hold that was given back; whoever asks, the home sees to it."""
    one, two = await town.open("a"), await town.open("b")
    grant = await acquire(one, "k", 10, "beta")
    await end(grant, 0)
    await until_freed(one, "k")
    store, layout = town.worlds["b"].store, two.courier.layout
    stray = HomeRecord("a", one.hold_of(grant).number, digest("beta", 10), 0)
    assert await homes.take(store, layout, "k", stray)
    assert not (await acquire(two, "k", 10, "beta")).replayed


def test_no_folder_of_keys_has_more_children_than_a_store_can_list() -> None:
    layout = Layout("llm")
    folders = Counter(layout.key(str(number)).rpartition("/")[0] for number in range(400_000))
    assert len(folders) == 4_096 < CHILDREN_MAX
    assert max(folders.values()) * 35 * keys.KEYS_MAX < 400_000 * CHILDREN_MAX * 1.3, "evenly"


# -- how long a key is remembered


def remember(table: Keys, now: int, key: str, number: int, account: str = "acme") -> Hold:
    hold = Hold(number, "acme", (account,), 5, key, written=True)
    table.add(hold)
    table.win(key, number)
    hold.used = 3
    table.close(hold)
    table.settle(now, hold)
    return hold


def test_a_key_is_remembered_for_a_day_after_its_settlement() -> None:
    table = Keys()
    remember(table, 100, "k", 1)
    table.sweep(100 + KEY_MEMORY_NS - 1)
    assert not table.freeing
    table.sweep(100 + KEY_MEMORY_NS)
    assert table.freeing == {"k": 1}
    assert table.end("k", 1) and len(table) == 0


def test_too_many_keys_forget_the_oldest_that_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_MAX", 3)
    table = Keys()
    table.add(Hold(1, "acme", ("acme",), 5, "open", written=True))
    table.win("open", 1)
    for number in range(2, 7):
        remember(table, number, f"k{number}", number)
    table.sweep(10)
    assert table.freeing == {"k2": 2, "k3": 3, "k4": 4}
    table.sweep(10)
    assert len(table.freeing) == 3


def test_a_key_goes_with_its_window() -> None:
    table = Keys()
    remember(table, 0, "old", 1, "acme@2026-10-01..2026-11-01")
    remember(table, 0, "new", 2, "acme@2026-11-01..2026-12-01")
    table.forget_windows(1_793_491_200)  # the first of November
    assert table.freeing == {"old": 1}


def test_a_key_that_is_given_back_is_told_to_nobody_from_that_moment_on() -> None:
    table = Keys()
    hold = Hold(1, "acme", ("acme",), 5, "k", written=True)
    table.add(hold)
    table.win("k", 1)
    hold.used = 0
    table.close(hold)
    entry = table.find("k")
    assert entry is not None and entry.home is Home.FREEING and not table.freeing, "not durable yet"
    table.settle(0, hold)
    assert table.freeing == {"k": 1}
