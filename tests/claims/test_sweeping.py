"""Names that nobody uses are removed from the store, and nothing is forgotten with them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.claims.stage import Stage, play

from bursar.claims.book import ClaimBook, Floor, Idle
from bursar.claims.courier import Instance, new_task
from bursar.claims.layout import Layout
from bursar.claims.model import Task
from bursar.claims.requirements import parse
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.errors import NotEmptyError, VersionError
from bursar.resource import Granted, Ticket
from bursar.runtime.world import open_world
from bursar.world import SECOND_NS, Store

numbers = itertools.count()


@asynccontextmanager
async def two_instances(**options: object) -> AsyncIterator[tuple[Instance, Instance]]:
    url = f"memory://sweeping-{next(numbers)}"
    worlds = [await open_world(name, store=url) for name in ("one", "two")]
    one, two = (Instance(world, "things", **options) for world in worlds)  # type: ignore[arg-type]
    await one.start()
    await two.start()
    yield one, two
    for instance, world in zip((one, two), worlds, strict=True):
        await instance.stop()
        await world.close()


async def hold(instance: Instance, *names: str) -> Task:
    task = new_task(
        id=f"c{next(numbers)}", tenant="t", needs=parse(names), submitted=next(numbers), is_claim=True
    )
    ticket = Ticket("t", len(names), names=names, wait_ns=5 * SECOND_NS)
    instance.claims.ask(task, ticket)
    granted = await asyncio.wait_for(ticket.wait(), 5)
    assert isinstance(granted, Granted)
    return granted.data.task


async def sweep(instance: Instance) -> None:
    """Twice: what did not change from one to the next goes."""
    await instance.sweeping.sweep_names()
    await instance.sweeping.sweep_names()


async def is_there(store: Store, name: str) -> bool:
    return await store.exists(Layout("things").name(name)) is not None


async def test_unused_names_are_removed_and_used_ones_stay() -> None:
    async with two_instances() as (one, two):
        owned, shared = await hold(one, "owned:E"), await hold(two, "shared:S")
        for names in ("gone:E", "left:S"):
            await one.release((await hold(two, names)).id)
        await sweep(one)
        found = [await is_there(one.world.store, name) for name in ("owned", "shared", "gone", "left")]
        assert found == [True, True, False, False]
        assert await one.release(owned.id) and await two.release(shared.id)
        await sweep(two)
        assert not await is_there(one.world.store, "owned")


async def test_an_offer_without_a_task_is_removed() -> None:
    url = f"memory://sweeping-{next(numbers)}"
    world = await open_world("worker", store=url)
    path = Layout("things").offered("ghost")
    await world.store.ensure(path.rpartition("/")[0])
    await world.store.create(path)
    instance = Instance(world, "things", tracker=InProcessTracker(nothing))
    await instance.start()
    async with asyncio.timeout(10):
        while await world.store.exists(path) is not None:
            await asyncio.sleep(0.01)
    await instance.stop()
    await world.close()


async def nothing(dispatch: Dispatch) -> bytes:
    return b""


@pytest.mark.parametrize("kind", ["released", "dead"])
async def test_what_cannot_be_read_of_what_is_over_is_named_and_kept(kind: str) -> None:
    async with two_instances() as (one, _):
        path = getattr(Layout("things"), kind)("odd")
        await one.world.store.ensure(path.rpartition("/")[0])
        await one.world.store.create(path, b"\xc1 no task")
        for _ in range(256):
            await one.sweeping.sweep_tasks()
        assert one.member.problem is not None and "odd" in one.member.problem
        assert await one.world.store.exists(path) is not None


async def test_a_name_that_changed_since_the_last_sweep_stays() -> None:
    async with two_instances() as (one, two):
        await one.release((await hold(one, "a:E")).id)
        await one.sweeping.sweep_names()
        await two.release((await hold(two, "a:E")).id)
        await one.sweeping.sweep_names()
        assert await is_there(one.world.store, "a")


async def test_a_name_that_comes_back_has_a_later_fence() -> None:
    async with two_instances() as (one, two):
        for _ in range(3):
            last = await hold(one, "a:E")
            await one.release(last.id)
        await sweep(two)
        assert not await is_there(one.world.store, "a")
        for names in ("a:E", "new:S"):
            again = await hold(one, names)
            assert again.phases[0] > last.phases[0]


async def test_a_version_seen_before_a_removal_is_not_taken_for_one_of_a_later_node() -> None:
    """One remembers that nobody owns version 1 of `a`; by now that is another node, and owned."""
    async with two_instances() as (one, two):
        store, path = one.world.store, Layout("things").name("a")
        await one.release((await hold(one, "a:E")).id)
        assert (one.book.plans.views["a"].version, one.book.plans.views["a"].holding.owner) == (1, "")
        stale = new_task(id="cstale", tenant="t", needs=parse(["a:E"]), submitted=0, is_claim=True)
        plan = one.book.plans.grant(stale, None, one.book.plans.draft())
        assert plan is not None
        await sweep(two)
        held = await hold(two, "a:E")
        await store.set(path, (await store.get(path))[0])
        assert (await store.get(path))[1].version == 1
        with pytest.raises(VersionError) as refused:
            await store.transact(one.book.plans.join([plan]))
        assert refused.value.position == 0
        waiting = asyncio.ensure_future(hold(one, "a:E"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert await two.release(held.id)
        assert (await waiting).phases[0] > held.phases[0]


async def test_a_sharer_that_came_meanwhile_keeps_the_name() -> None:
    async with two_instances() as (one, two):
        await one.release((await hold(one, "a:S")).id)
        idle = list((await one.sweeping._find_idle()).values())
        held = await hold(two, "a:S")
        operations, _ = one.book.plans.remove(idle, await one.reader.read_floor())
        with pytest.raises((VersionError, NotEmptyError)):
            await one.world.store.transact(operations)
        assert await two.release(held.id)


async def test_claims_go_on_while_names_are_swept() -> None:
    async with two_instances() as (one, two):
        done = 0
        phases: dict[str, int] = {}

        async def work(instance: Instance, name: str) -> None:
            nonlocal done
            for pause in range(30):
                for _ in range(pause):
                    await asyncio.sleep(0)  # sometimes the name is left alone from one sweep to the next
                held = await hold(instance, f"{name}:E")
                assert held.phases[0] > phases.get(name, 0)
                phases[name] = held.phases[0]
                assert await instance.release(held.id)
                done += 1

        workers = [asyncio.ensure_future(work(one, "a")), asyncio.ensure_future(work(two, "b"))]
        while not all(worker.done() for worker in workers):
            await sweep(two)
            await asyncio.sleep(0)
        for worker in workers:
            await worker
        assert done == 60 and two.book.counts["swept"] >= 1


def test_the_floor_only_rises() -> None:
    book = ClaimBook(Layout("things"), "me")
    low, high = (Idle(f"/{phase}", 0, 0, phase, False) for phase in (2, 9))
    for removed, floor, after in (([low], 5, 5), ([low, high], 5, 9), ([high, low], 0, 9)):
        assert book.remove(removed, Floor(3, floor))[1] == Floor(4, after)


async def test_names_that_were_read_while_others_were_removed_are_read_again() -> None:
    """What is read then is older than the removal; whoever waits for it would wait for ever."""
    async with two_instances() as (one, two):
        await hold(two, "a:E")
        read, floors = one.reader.read_names, []

        async def read_late(names: object) -> object:
            views = await read(names)  # type: ignore[arg-type]
            floors.append(one.book.plans.floor)
            if len(floors) == 1:
                await two.release((await hold(two, "gone:E")).id)
                await sweep(two)
                one.book.plans.stand_on(await one.reader.read_floor())
            return views

        one.reader.read_names = read_late  # type: ignore[method-assign, assignment]
        await one.names.refresh(["a"])
        assert len(floors) == 2 and floors[0] != floors[1] == one.book.plans.floor
        assert one.book.plans.views["a"].holding.owner


def test_every_task_that_was_over_long_ago_is_removed() -> None:
    async def act(stage: Stage) -> None:
        verb = stage.resources["n1"].verb
        ids = [await verb("submit", tenant="x", names=f"n{number}:E") for number in range(60)]
        await stage.sleep(120)
        assert [id for id in ids if await verb("read", id=id) is not None] == []

    play(act, works=True, history_ns=SECOND_NS)


def test_no_more_tasks_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bursar.claims.sweeping.HISTORY_MAX", 256)

    async def act(stage: Stage) -> None:
        verb = stage.resources["n1"].verb
        for number in range(600):
            await verb("submit", tenant="x", names=f"n{number}:E")
        await stage.sleep(120)
        assert 0 < len(await verb("history", most=1000)) <= 256

    play(act, works=True)
