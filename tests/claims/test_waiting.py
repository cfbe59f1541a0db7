"""Nobody waits for what is free."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bursar.claims.courier import Instance, new_task
from bursar.claims.model import State, Task
from bursar.claims.requirements import parse
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.errors import Refused
from bursar.resource import Ticket
from bursar.runtime.world import open_world

numbers = itertools.count()


class Worker:
    """An instance whose tasks end when `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun: list[str] = []
        self.instance: Instance

    async def work(self, dispatch: Dispatch) -> bytes:
        self.begun.append(dispatch.id)
        await self.go.wait()
        return b""


@asynccontextmanager
async def workers(count: int, **options: object) -> AsyncIterator[list[Worker]]:
    url, found, worlds = f"memory://waiting-{next(numbers)}", [], []
    for number in range(count):
        worker = Worker()
        world = await open_world(f"w{number}", store=url)
        tracker = InProcessTracker(worker.work)
        worker.instance = Instance(world, "things", tracker=tracker, **options)  # type: ignore[arg-type]
        await worker.instance.start()
        found.append(worker)
        worlds.append(world)
    yield found
    for worker, world in zip(found, worlds, strict=True):
        await worker.instance.stop()
        await world.close()


def a_task(id: str, *names: str, **fields: object) -> Task:
    return new_task(id=id, tenant="t", needs=parse(names), submitted=time.time_ns(), kept=True, **fields)


async def until(holds: object, seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_a_task_does_not_wait_for_itself() -> None:
    """One saw that the task holds the name; the task lost it, waits again, and comes to that one."""
    async with workers(2) as (one, two):
        await two.instance.submit(a_task("t1", "a:E"))
        await until(lambda: two.begun)
        claim = new_task(id="c1", tenant="t", needs=parse("a:E"), submitted=0, is_claim=True)
        ticket = Ticket("t", 1, names=("a:E",), wait_ns=0)
        one.instance.claims.ask(claim, ticket)
        assert isinstance(await ticket.wait(), Refused)
        two.instance.stop_taking()
        assert await two.instance.remove_holder("t1", requeue=True)
        await until(lambda: one.begun == ["t1"])
        found = await one.instance.reader.read_task("t1")
        assert found is not None and found[0].state is State.RUNNING and found[0].attempt == 2


async def test_order_comes_from_the_store_and_not_from_submitters_clocks() -> None:
    async with workers(1, running_max=1) as (one,):
        await one.instance.submit(a_task("t1", "a:E"))
        await until(lambda: one.begun == ["t1"])
        early = new_task(id="t2", tenant="t", needs=parse("a:E"), submitted=0, kept=True)
        await one.instance.submit(early)  # its clock is fifty years behind
        await one.instance.submit(a_task("t3", "a:E", priority=10))
        one.go.set()
        await until(lambda: len(one.begun) == 3)
        assert one.begun == ["t1", "t3", "t2"]


async def test_a_task_that_was_submitted_elsewhere_is_found_without_listing_what_waits() -> None:
    async with workers(2) as (one, two):
        submitter = Instance(await open_world("s", store=f"memory://waiting-{next(numbers) - 1}"), "things")
        await submitter.start()
        await asyncio.sleep(0.3)
        listed: list[str] = []
        for worker in (one, two):
            store = worker.instance.world.store

            async def children(path: str, ask: object = store.children) -> list[str]:
                listed.append(path)
                return await ask(path)  # type: ignore[operator, no-any-return]

            store.children = children  # type: ignore[method-assign]
        for number in range(10):
            await submitter.submit(a_task(f"t{number}", f"n{number}:E"))
        await until(lambda: len(one.begun) + len(two.begun) == 10)
        assert listed and not [path for path in listed if "/tasks/" in path or "/busy/" in path]
        await submitter.stop()


async def test_tasks_that_aged_wait_without_reading() -> None:
    async with workers(2, aging_ns=1_000_000, running_max=1) as (one, two):
        for number in range(60):
            await (one, two)[number % 2].instance.submit(a_task(f"t{number}", "a:E", "b:E"))
        await until(lambda: len(one.begun) + len(two.begun) == 1)
        await asyncio.sleep(1)  # who reserves what is settled
        reads: list[str] = []
        for worker in (one, two):
            store = worker.instance.world.store

            async def get(path: str, ask: object = store.get) -> object:
                reads.append(path)
                return await ask(path)  # type: ignore[operator]

            store.get = get  # type: ignore[method-assign, assignment]
        await asyncio.sleep(1)
        assert len(reads) < 20, len(reads)
        one.go.set()
        two.go.set()
        await until(lambda: len(one.begun) + len(two.begun) == 60, 20)


async def test_a_reservation_ends_with_the_task_that_another_process_takes_back() -> None:
    """It aged, reserves a free name, and waits for another; whoever needs the free one goes on."""
    async with workers(2, aging_ns=1_000_000) as (one, two):
        await one.instance.submit(a_task("t1", "held:E"))
        await until(lambda: one.begun == ["t1"])
        await one.instance.submit(a_task("t2", "held:E", "free:E"))
        store, path = one.instance.world.store, one.instance.layout.name("free")

        async def is_reserved() -> bool:
            stat = await store.exists(path)
            return stat is not None and b"t2" in (await store.get(path))[0]

        async with asyncio.timeout(5):
            while not await is_reserved():
                await asyncio.sleep(0.01)
        assert await two.instance.withdraw_stored("t2", "cancelled")
        await two.instance.submit(a_task("t3", "free:E"))
        await until(lambda: two.begun == ["t3"], 12)
