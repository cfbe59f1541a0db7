"""Every engine in one run: what the store does, beside the engine's own client doing the same change.

The floor of an engine is the least that makes the same change durable, gives it a revision and tells others
of it: SQLite in full sync with a row for the revision; PostgreSQL an UPDATE, a revision row and a NOTIFY in
one statement (asyncpg); ZooKeeper and etcd count revisions and tell by themselves, so a set, and for etcd a
put that compares the version, by a bare client (kazoo's, grpc's). No sessions, no checks of parents, no
children counted. Rounds of both alternate, so that what else the machine does meets both.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bursar.runtime.clock import BootClock
from bursar.runtime.loops import new_event_loop
from bursar.stores import open_store
from bursar.world import SECOND_NS, Create, Set, Store
from bursar_lab.benchmarks.store_floors import FLOORS
from bursar_lab.etcd_server import EtcdServers
from bursar_lab.postgresql_server import PostgresqlServers
from bursar_lab.zookeeper_server import ZookeeperServers

RATIO_MAX = 1.5
DATA = b"x" * 100
NODES = 64
TOGETHER = 32
MANY = 30
ENGINES = ("memory", "sqlite", "zookeeper", "postgresql", "etcd")

Work = Callable[[int], Awaitable[object]]


class Ours:
    """The work through the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._created = 0

    async def prepare(self) -> None:
        for number in range(NODES):
            await self._store.create(f"/{number}", DATA)
        await self._store.create("/new")

    async def set(self, count: int) -> None:
        for number in range(count):
            await self._store.set(f"/{number % NODES}", DATA)

    async def set_together(self, count: int) -> None:
        async def lane(first: int) -> None:
            for number in range(first, count, TOGETHER):
                await self._store.set(f"/{number % NODES}", DATA)

        await asyncio.gather(*map(lane, range(TOGETHER)))

    async def create(self, count: int) -> None:
        for _ in range(count):
            self._created += 1
            await self._store.create(f"/new/{self._created:010d}", DATA)

    async def transact(self, count: int) -> None:
        for _ in range(count):
            await self._store.transact([Set(f"/{number}", DATA) for number in range(MANY)])

    async def claim(self, count: int) -> None:
        """An ephemeral node made beside a check, and removed: the least that a claim takes, in many lanes."""

        async def lane(first: int) -> None:
            for number in range(first, count, TOGETHER):
                await self._store.transact(
                    [Create(f"/new/c{number}", ephemeral=True), Set(f"/{first}", DATA)]
                )
                await self._store.delete(f"/new/c{number}")

        await asyncio.gather(*map(lane, range(TOGETHER)))

    async def hear(self, count: int) -> None:
        """A change and its notice, one after the other."""
        watch = await self._store.watch("/0")
        for _ in range(count):
            waiting = asyncio.ensure_future(watch.changed())
            await asyncio.sleep(0)
            await self._store.set("/0", DATA)
            await waiting
        watch.close()


def run(quick: bool) -> dict[str, Any]:
    """Measure, print tables, return the figures: microseconds an operation, and the ratios."""
    rows: list[dict[str, Any]] = []
    for engine in ENGINES:
        with open_engine(engine) as url, asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = runner.run(_measure(engine, url, 3 if quick else 7, 1 if quick else 3))
        _print(engine, found)
        rows += found
    met = all(row["ratio"] is None or row["ratio"] <= RATIO_MAX for row in rows)
    return {"rows": rows, "ratio_max": RATIO_MAX, "met": met}


@contextmanager
def open_engine(engine: str) -> Iterator[str]:
    with ExitStack() as stack:
        if engine == "memory":
            yield "memory://"
        elif engine == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bursar-bench-"))
            yield f"sqlite://{Path(folder)}/store.db"
        elif engine == "zookeeper":
            yield stack.enter_context(ZookeeperServers(1)).url("/bench")
        elif engine == "postgresql":
            yield stack.enter_context(PostgresqlServers(1)).url()
        else:
            yield stack.enter_context(EtcdServers(1)).url("/bench")


async def _measure(engine: str, url: str, rounds: int, scale: int) -> list[dict[str, Any]]:
    store = await open_store(url, clock=BootClock(), timeout_ns=30 * SECOND_NS)
    ours = Ours(store)
    await ours.prepare()
    floor = FLOORS[engine](url) if engine in FLOORS else None
    if floor is not None:
        await floor.prepare(NODES, DATA)
    works: list[tuple[str, int, Work, Work | None]] = [
        ("set, one after another", 50 * scale, ours.set, floor and floor.set),
        ("create, one after another", 50 * scale, ours.create, floor and floor.create),
        (f"transaction of {MANY} sets", 20 * scale, ours.transact, floor and floor.transact),
        (f"set, {TOGETHER} in flight", 320 * scale, ours.set_together, floor and floor.set_together),
        ("set, and its notice", 50 * scale, ours.hear, None),
        (f"take and give back a name, {TOGETHER} in flight", 160 * scale, ours.claim, None),
    ]
    await ours.set(200)
    if floor is not None:
        await floor.set(200)
    rows = [{"engine": engine, **await _compare(*work, rounds=rounds)} for work in works]
    if floor is not None:
        await floor.close()
    await store.close()
    return rows


async def _compare(name: str, count: int, ours: Work, floor: Work | None, *, rounds: int) -> dict[str, Any]:
    ours_us, floor_us = [], []
    for _ in range(rounds):
        if floor is not None:
            floor_us.append(await _time(floor, count))
        ours_us.append(await _time(ours, count))
    ratios = [mine / least for mine, least in zip(ours_us, floor_us, strict=False)]
    return {
        "name": name,
        "bursar_us": statistics.median(ours_us),
        "floor_us": statistics.median(floor_us) if floor_us else None,
        "ratio": statistics.median(ratios) if ratios else None,
    }


async def _time(work: Work, count: int) -> float:
    began = time.perf_counter_ns()
    await work(count)
    return (time.perf_counter_ns() - began) / count / 1000


def _print(engine: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"{engine}, medians")
    for column in ("work", "its own client, us", "bursar, us", "bursar a second", f"ratio (<= {RATIO_MAX})"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        ratio, least = "", ""
        if row["ratio"] is not None:
            colour = "green" if row["ratio"] <= RATIO_MAX else "red"
            ratio, least = f"[{colour}]{row['ratio']:.2f}[/]", f"{row['floor_us']:.0f}"
        per_second = f"{1e6 / row['bursar_us']:,.0f}"
        table.add_row(row["name"], least, f"{row['bursar_us']:.0f}", per_second, ratio)
    Console().print(table)
