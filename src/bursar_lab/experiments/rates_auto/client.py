"""A process of the experiment: `python -m ...client ADDRESS RATE WORKERS WATCH_S` runs the course with a
server of its own, asking the daemon at that address, or (a policy's path) itself, and prints what it
found as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

import bursar
from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_auto.backend import Backend
from bursar_lab.experiments.rates_auto.course import Course, Found, Time


async def sleep(duration_ns: int) -> None:
    await asyncio.sleep(duration_ns / SECOND_NS)


def tell(found: Found) -> None:
    met = "" if found.met is None else f", reservations met to {found.met:.1%}"
    seen = f"taken for {found.estimate:.0f}/s of {found.truth:.0f}{met}, {found.used:.1%} used"
    print(f"    after {found.change}: {seen}", file=sys.stderr, flush=True)


async def run(address: str, rate: float, workers: int, watch_s: float) -> list[dict[str, Any]]:
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.create_task(work, name=name))

    async with await bursar.connect(address) as b:

        async def read() -> float:
            part = (await b.statistics("api")).part
            servers = part["servers"] if isinstance(part, dict) else part.servers
            server = servers["a"]
            return float(server["capacity"] if isinstance(server, dict) else server.capacity)

        clock = Time(time.monotonic_ns, sleep, spawn)
        backend = Backend(rate, workers, clock.now, clock.sleep)
        course = Course(clock, b.resource("api"), backend, read, int(watch_s * SECOND_NS), tell)
        found = await course.run()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [{**asdict(each), "error": each.error} for each in found]


if __name__ == "__main__":
    address, rate, workers, watch_s = sys.argv[1:]
    print(json.dumps(asyncio.run(run(address, float(rate), int(workers), float(watch_s)))))
