"""bursar's SQLite store beside raw sqlite3 transactions of the same durability, in one run.

The floor does the least that makes the same change durable: one connection, write-ahead log, full
sync, `BEGIN IMMEDIATE`, one statement for each node and one for the revision, `COMMIT`; no thread,
no event loop, no sessions, no watches, and it blocks its caller. Rounds of both alternate on the
same disk, so that what else the machine does meets both. The event loop is the daemon's.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bursar.runtime.clock import BootClock
from bursar.runtime.loops import new_event_loop
from bursar.stores.sqlite import SqliteStore
from bursar.world import SECOND_NS, Operation, Set

RATIO_MAX = 1.5
DATA = b"x" * 100
NODES = 64
TOGETHER = 32
WARM_UP = 1200

Floor = Callable[[int], None]
Ours = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One kind of work: `count` operations of it, done by the floor and by bursar."""

    name: str
    count: int
    floor: Floor
    ours: Ours
    target: bool = True


class RawFloor:
    """The same changes in plain sqlite3."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self.execute = self._connection.execute
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE nodes (path TEXT PRIMARY KEY, data BLOB, version INTEGER) WITHOUT ROWID",
            "CREATE TABLE store (revision INTEGER)",
            "INSERT INTO store VALUES (1)",
        ):
            self.execute(statement)
        rows = [(f"/{number}", DATA) for number in range(NODES)]
        self._connection.executemany("INSERT INTO nodes VALUES (?, ?, 0)", rows)
        self._created = 0

    def set(self, count: int, nodes: int = 1) -> None:
        for number in range(count):
            self.execute("BEGIN IMMEDIATE")
            for offset in range(nodes):
                self.execute(
                    "UPDATE nodes SET data = ?, version = version + 1 WHERE path = ?",
                    (DATA, f"/{(number + offset) % NODES}"),
                )
            self._commit()

    def create(self, count: int) -> None:
        for _ in range(count):
            self._created += 1
            self.execute("BEGIN IMMEDIATE")
            self.execute("INSERT INTO nodes VALUES (?, ?, 0)", (f"/new-{self._created:010d}", DATA))
            self._commit()

    def get(self, count: int) -> None:
        for number in range(count):
            self.execute("SELECT data, version FROM nodes WHERE path = ?", (f"/{number % NODES}",)).fetchone()

    def close(self) -> None:
        self._connection.close()

    def _commit(self) -> None:
        self.execute("UPDATE store SET revision = revision + 1")
        self.execute("COMMIT")


class OurStore:
    """The same changes through the store."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._created = 0

    async def prepare(self) -> None:
        await asyncio.gather(*(self._store.create(f"/{number}", DATA) for number in range(NODES)))
        await self._store.create("/new")

    async def set(self, count: int, nodes: int = 1) -> None:
        for number in range(count):
            operations: list[Operation] = [
                Set(f"/{(number + offset) % NODES}", DATA) for offset in range(nodes)
            ]
            await self._store.transact(operations)

    async def set_together(self, count: int) -> None:
        await asyncio.gather(*(self.set(count // TOGETHER) for _ in range(TOGETHER)))

    async def create(self, count: int) -> None:
        for _ in range(count):
            self._created += 1
            await self._store.create(f"/new/{self._created:010d}", DATA)

    async def get(self, count: int) -> None:
        for number in range(count):
            await self._store.get(f"/{number % NODES}")


def run(quick: bool) -> dict[str, Any]:
    """Measure, print a table, return the figures: microseconds an operation, and the ratios."""
    rounds, scale = (7, 1) if quick else (15, 4)
    with (
        tempfile.TemporaryDirectory(prefix="bursar-bench-") as folder,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        rows = runner.run(_measure(Path(folder), rounds, scale))
    _print(rows)
    met = all(row["ratio"] <= RATIO_MAX for row in rows if row["target"])
    return {"rows": rows, "ratio_max": RATIO_MAX, "met": met}


async def _measure(folder: Path, rounds: int, scale: int) -> list[dict[str, Any]]:
    floor = RawFloor(folder / "floor.db")
    store = await SqliteStore.open(str(folder / "store.db"), BootClock(), timeout_ns=10 * SECOND_NS)
    ours = OurStore(store)
    await ours.prepare()
    floor.set(WARM_UP)  # until the logs have their full length: appending to a file costs more
    await ours.set(WARM_UP)
    rows = []
    for comparison in _comparisons(floor, ours, scale):
        rows.append(await _compare(comparison, rounds))
    await store.close()
    floor.close()
    return rows


def _comparisons(floor: RawFloor, ours: OurStore, scale: int) -> list[Comparison]:
    return [
        Comparison("set a node, one after another", 100 * scale, floor.set, ours.set),
        Comparison("create a node, one after another", 100 * scale, floor.create, ours.create),
        Comparison(
            "transaction of 10 sets",
            50 * scale,
            lambda count: floor.set(count, 10),
            lambda count: ours.set(count, 10),
        ),
        Comparison(f"set a node, {TOGETHER} in flight", 320 * scale, floor.set, ours.set_together),
        Comparison("get a node (no commit, no target)", 2000 * scale, floor.get, ours.get, target=False),
    ]


async def _compare(comparison: Comparison, rounds: int) -> dict[str, Any]:
    floor_us, ours_us = [], []
    for _ in range(rounds):
        start_ns = time.perf_counter_ns()
        comparison.floor(comparison.count)
        middle_ns = time.perf_counter_ns()
        await comparison.ours(comparison.count)
        end_ns = time.perf_counter_ns()
        floor_us.append((middle_ns - start_ns) / comparison.count / 1000)
        ours_us.append((end_ns - middle_ns) / comparison.count / 1000)
    return {
        "name": comparison.name,
        "floor_us": statistics.median(floor_us),
        "bursar_us": statistics.median(ours_us),
        "ratio": statistics.median(o / f for o, f in zip(ours_us, floor_us, strict=True)),
        "target": comparison.target,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(title="SQLite store beside raw sqlite3 (full sync), medians")
    for column in ("work", "raw sqlite3, us", "bursar, us", "bursar a second", f"ratio (<= {RATIO_MAX})"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        colour = "green" if row["ratio"] <= RATIO_MAX else "red"
        ratio = f"[{colour}]{row['ratio']:.2f}[/]" if row["target"] else f"{row['ratio']:.2f}"
        per_second = f"{1e6 / row['bursar_us']:,.0f}"
        table.add_row(row["name"], f"{row['floor_us']:.0f}", f"{row['bursar_us']:.0f}", per_second, ratio)
    Console().print(table)
