"""Tasks a second, and how soon one begins: bursar beside what people build for the same, in one run.

The same work for all: tasks that each need a set of names to themselves (of GROUPS sets, so that some wait
for others), submitted by one process and done by two worker processes, eight at a time each; a task only
notes when it began. First all at once, then one by one at a rate that every system can take.

    bursar      on PostgreSQL, and on ZooKeeper: a queue, all names in one transaction, ends recorded once
    kazoo       a Lock for each name, in order. It has no queue here: tasks are written to the workers' inputs
    celery      a queue in Redis (not on disk), a redis-py Lock for each name, in order
    postgresql  a table with FOR UPDATE SKIP LOCKED as the queue, a row for each name, locked in order

What is not the same is what is left when a worker dies in the middle: bursar and PostgreSQL do the task
again, Celery (as most use it) and kazoo lose it; only bursar has a fence against the one that was thought
dead.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from bursar.claims.resource import open_resource
from bursar.policy.values import ClaimPolicy
from bursar.runtime.world import open_world
from bursar_lab.benchmarks.task_worker import RESOURCE, make_celery, names_of
from bursar_lab.postgresql_server import PostgresqlServers
from bursar_lab.processes import run_redis
from bursar_lab.zookeeper_server import ZookeeperServers

SIZES = (1, 10, 100)
GROUPS = 32
WORKERS = 2
RATE = 20.0
"""Tasks a second, where it is measured how soon one begins."""

AT_ONCE = {1: 1000, 10: 400, 100: 100}
ONE_BY_ONE = 200
START_S = 60.0
DONE_S = 120.0

Measure = Callable[[int, tuple[int, int]], Coroutine[Any, Any, dict[str, Any]]]
Submit = Callable[[str, list[str]], Awaitable[None]]


class Workers:
    """Two of them, and what they noted."""

    def __init__(self, system: str, url: str, folder: Path, **environment: str) -> None:
        module = "bursar_lab.benchmarks.task_worker"
        self._files = [folder / f"{system}-{number}" for number in range(WORKERS)]
        self._children = [
            subprocess.Popen(
                [sys.executable, "-m", module, system, url, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
            for file in self._files
        ]
        for child in self._children:
            assert child.stdout is not None
            if not any(line.strip() == "ready" for line in child.stdout):  # Celery says more before that
                self.stop()
                raise RuntimeError(f"a worker of {system} did not begin")

    async def write(self, task: str, names: list[str]) -> None:
        child = self._children[int(task.split()[0]) % WORKERS]
        assert child.stdin is not None
        print(task, file=child.stdin, flush=True)

    def read(self) -> dict[int, float]:
        """When each task began, the first time."""
        began: dict[int, float] = {}
        for file in self._files:
            for line in file.read_text().splitlines() if file.exists() else ():
                number, _, at = line.partition(" ")
                began[int(number)] = min(float(at), began.get(int(number), float("inf")))
        return began

    def list_begun(self) -> list[int]:
        """Numbers, as often as they were begun."""
        return [int(line.split()[0]) for file in self._files for line in file.read_text().splitlines()]

    def list_ended(self) -> list[int]:
        """The same of those that came to an end, where they work for some time."""
        ended = [file.with_name(f"{file.name}.ended") for file in self._files]
        return [int(line) for file in ended if file.exists() for line in file.read_text().splitlines()]

    def kill(self, number: int) -> None:
        self._children[number].kill()
        self._children[number].wait()

    def stop(self) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()


@contextmanager
def working(system: str, url: str, **environment: str) -> Iterator[Workers]:
    with tempfile.TemporaryDirectory(prefix="bursar-tasks-") as folder:
        workers = Workers(system, url, Path(folder), **environment)
        try:
            yield workers
        finally:
            workers.stop()


def run(quick: bool) -> dict[str, Any]:
    """`bursar bench tasks`."""
    with PostgresqlServers(1) as postgresql, ZookeeperServers(1) as zookeeper:
        rows = [row for size in SIZES for row in compare(postgresql, zookeeper, size, quick)]
    return {"table": rows, "ok": all(row["lost"] == 0 for row in rows)}


def compare(
    postgresql: PostgresqlServers, zookeeper: ZookeeperServers, size: int, quick: bool
) -> list[dict[str, Any]]:
    """Every system, with tasks of so many names."""
    shorter = 8 if quick else 1
    counts = AT_ONCE[size] // shorter, ONE_BY_ONE // shorter
    systems: tuple[tuple[str, Measure], ...] = (
        ("bursar, PostgreSQL", lambda s, c: _measure_bursar(postgresql.url(f"b{s}"), s, c)),
        ("bursar, ZooKeeper", lambda s, c: _measure_bursar(zookeeper.url(f"/b{s}"), s, c)),
        ("kazoo Lock", lambda s, c: _measure_kazoo(zookeeper, s, c)),
        ("Celery, Redis lock", lambda s, c: _measure_celery(s, c)),
        ("SKIP LOCKED", lambda s, c: _measure_postgresql(postgresql.url("bursar"), s, c)),
    )
    return [
        {"names": size, "system": name, **asyncio.run(measure(size, counts))} for name, measure in systems
    ]


async def _measure(workers: Workers, submit: Submit, size: int, counts: tuple[int, int]) -> dict[str, Any]:
    at_once, one_by_one = counts
    began = time.time()
    await asyncio.gather(*(submit(*_make(number, size)) for number in range(at_once)))
    seen = await _await_all(workers, at_once)
    a_second = len(seen) / (max(seen.values()) - began)
    submitted: dict[int, float] = {}
    for number in range(at_once, at_once + one_by_one):
        due = began_at = time.time()
        submitted[number] = began_at
        await submit(*_make(number, size))
        await asyncio.sleep(max(0.0, due + 1 / RATE - time.time()))
    seen = await _await_all(workers, at_once + one_by_one)
    waits = sorted(1000 * (seen[number] - at) for number, at in submitted.items() if number in seen)
    return {
        "tasks/s": a_second,
        "start p50 ms": statistics.median(waits),
        "start p99 ms": waits[int(0.99 * (len(waits) - 1))],
        "lost": at_once + one_by_one - len(seen),
    }


def _make(number: int, size: int) -> tuple[str, list[str]]:
    group = number % GROUPS
    return f"{number} {group} {size}", names_of(group, size)


async def _await_all(workers: Workers, count: int) -> dict[int, float]:
    until = time.monotonic() + DONE_S
    while len(seen := workers.read()) < count and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return seen


@asynccontextmanager
async def submitting_to_bursar(url: str) -> AsyncIterator[Submit]:
    world = await open_world("submitter", store=url)
    door = open_resource(world, RESOURCE, ClaimPolicy(name=RESOURCE))
    await door.start()
    room = asyncio.Semaphore(64)

    async def submit(task: str, names: list[str]) -> None:
        async with room:
            await door.verb("submit", tenant="bench", names=[f"{n}:E" for n in names], payload=task.encode())

    yield submit
    await door.stop()
    await world.close()


async def _measure_bursar(url: str, size: int, counts: tuple[int, int]) -> dict[str, Any]:
    async with submitting_to_bursar(url) as submit:
        with working("bursar", url) as workers:
            return await _measure(workers, submit, size, counts)


async def _measure_kazoo(servers: ZookeeperServers, size: int, counts: tuple[int, int]) -> dict[str, Any]:
    with working("kazoo", servers.hosts) as workers:
        return await _measure(workers, workers.write, size, counts)


async def _measure_celery(size: int, counts: tuple[int, int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, run_redis(folder) as url:
        app = make_celery(url)

        async def submit(task: str, names: list[str]) -> None:
            app.send_task("take", args=[task])

        with working("celery", url) as workers:
            return await _measure(workers, submit, size, counts)


@asynccontextmanager
async def submitting_to_postgresql(dsn: str, size: int) -> AsyncIterator[Submit]:
    import asyncpg

    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=8)
    await pool.execute("DROP TABLE IF EXISTS bench_tasks, bench_names")
    await pool.execute("CREATE TABLE bench_tasks (id bigserial PRIMARY KEY, task text)")
    await pool.execute("CREATE TABLE bench_names (name text PRIMARY KEY)")
    every = [(name,) for group in range(GROUPS) for name in names_of(group, size)]
    await pool.executemany("INSERT INTO bench_names VALUES ($1)", every)

    async def submit(task: str, names: list[str]) -> None:
        await pool.execute("INSERT INTO bench_tasks (task) VALUES ($1)", task)

    yield submit
    await pool.close()


async def _measure_postgresql(url: str, size: int, counts: tuple[int, int]) -> dict[str, Any]:
    dsn = url.partition("?")[0]
    async with submitting_to_postgresql(dsn, size) as submit:
        with working("postgresql", dsn) as workers:
            return await _measure(workers, submit, size, counts)
