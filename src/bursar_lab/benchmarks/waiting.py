"""What a task costs while others wait: processor time a task with few and with many waiting, young and aged.

Every round has the same work: so many tasks of two names each are done by one worker, while `waiting` others,
which need a name that is never given back, wait beside them. `aged`: those who wait have passed `aging`, and
reserve their names. Two instances run, so that reservations are told to the store; it is in memory, so that
what is measured is bursar's own time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bursar.claims.courier import Instance, new_task
from bursar.claims.requirements import parse
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.runtime.world import open_world

DONE = 1_000
GROUPS = 100
"""Names that those who wait need, beside the one that is held."""

RATIO_MAX = 2.0
AGING_NS = 1_000_000


def run(quick: bool) -> dict[str, Any]:
    """`bursar bench claims-waiting`."""
    sizes = (100, 2_000) if quick else (100, 10_000, 100_000)
    rows = [
        asyncio.run(_measure(waiting, aged, DONE // 4 if quick else DONE))
        for waiting in sizes
        for aged in (False, True)
    ]
    costs = [row["processor ms a task"] for row in rows]
    ratio = max(costs) / costs[0]
    return {"table": rows, "most_over_least_waiting": ratio, "ok": ratio <= RATIO_MAX}


async def _measure(waiting: int, aged: bool, tasks: int) -> dict[str, Any]:
    url = f"memory://bench-waiting-{waiting}-{aged}"
    done = asyncio.Semaphore(0)

    async def work(dispatch: Dispatch) -> bytes:
        if dispatch.id == "holder":
            await asyncio.Event().wait()
        done.release()
        return b""

    worlds = [await open_world(name, store=url) for name in ("one", "two")]
    aging_ns = AGING_NS if aged else 3600 * 10**9
    instances = [
        Instance(world, "bench", aging_ns=aging_ns, tracker=InProcessTracker(work)) for world in worlds
    ]
    for instance in instances:
        await instance.start()
    one = instances[0]
    await _submit(one, "holder", "held:E")
    for number in range(waiting):
        await _submit(one, f"w{number}", f"held:E, w{number % GROUPS}:E")
    await asyncio.sleep(1.0)
    cpu, wall = time.process_time(), time.monotonic()
    for number in range(tasks):
        await _submit(one, f"t{number}", f"a{number % 7}:E, b{number % 11}:S")
    for _ in range(tasks):
        await done.acquire()
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    for instance, world in zip(instances, worlds, strict=True):
        instance.member.is_stopping = True
        await world.close()
    return {
        "waiting": waiting,
        "aged": aged,
        "processor ms a task": cpu / tasks * 1e3,
        "tasks/s": tasks / wall,
    }


async def _submit(instance: Instance, id: str, names: str) -> None:
    task = new_task(id=id, tenant="bench", needs=parse(names), submitted=time.time_ns(), kept=True)
    await instance.submit(task)
