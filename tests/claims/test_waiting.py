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
        found = await one.instance.desk.read_task("t1")
        assert found is not None and found[0].state is State.RUNNING and found[0].attempt == 2
