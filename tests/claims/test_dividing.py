"""Workers share what waits: by a hash, and whoever has nothing left asks those who have too much."""

from __future__ import annotations

import asyncio
import itertools

from bursar.claims.courier import Instance, new_task
from bursar.claims.layout import divide
from bursar.claims.requirements import parse
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.runtime.world import LiveWorld, open_world

TASKS = 40
numbers = itertools.count()


class Worker:
    def __init__(self, world: LiveWorld, task_s: float) -> None:
        self.done: list[str] = []
        self._task_s = task_s
        self.instance = Instance(world, "things", tracker=InProcessTracker(self._work), running_max=2)

    async def _work(self, dispatch: Dispatch) -> bytes:
        await asyncio.sleep(self._task_s)
        self.done.append(dispatch.id)
        return b""


async def test_who_comes_later_takes_over_from_who_is_slow() -> None:
    url = f"memory://dividing-{next(numbers)}"
    worlds = [await open_world(name, store=url) for name in ("slow", "quick")]
    slow, quick = Worker(worlds[0], 0.4), Worker(worlds[1], 0.01)
    await slow.instance.start()
    for number in range(TASKS):
        task = new_task(id=f"t{number}", tenant="t", needs=parse([f"n{number}:E"]), submitted=number)
        await slow.instance.submit(task)
    await quick.instance.start()
    async with asyncio.timeout(20):
        while len(slow.done) + len(quick.done) < TASKS:
            await asyncio.sleep(0.02)
    assert sorted(slow.done + quick.done) == sorted(f"t{number}" for number in range(TASKS))
    assert len(slow.done) <= TASKS // 2  # it took all forty at first: eight seconds' work
    for worker, world in zip((slow, quick), worlds, strict=True):
        await worker.instance.stop()
        await world.close()


def test_only_what_falls_to_whoever_comes_or_goes_moves() -> None:
    three, four = ["a", "b", "c"], ["a", "b", "c", "d"]
    before = {str(number): divide(str(number), three) for number in range(3000)}
    after = {id: divide(id, four) for id in before}
    moved = [id for id in before if before[id] != after[id]]
    assert {after[id] for id in moved} == {"d"}
    assert all(900 < list(before.values()).count(worker) < 1100 for worker in three)
    assert 650 < len(moved) < 850
