"""Sections 5.2 and 5.3 on three real ZooKeeper servers: bursar through its public door, at default
settings, beside a lock server, five sets each with their confidence intervals.

The lock server is kazoo's: a task takes its locks one by one in the order of their names, waits in line
at each, and keeps what it has (section 5.1.1, with a first-come line, as the recipe has it). A second of
the benchmark takes a tenth of a second here, so that what a claim itself takes weighs ten times as much
as it did there.
"""

from __future__ import annotations

import asyncio
import statistics as averages
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bursar
from bursar.claims.requirements import Mode
from bursar.policy import parse
from bursar_lab.experiments.claims import figures
from bursar_lab.experiments.claims.simulation import run_fifo_locks
from bursar_lab.experiments.claims.statistics import half_width
from bursar_lab.experiments.claims.workloads import Job, draw_hierarchy, draw_rectangles
from bursar_lab.zookeeper_server import ZookeeperServers

Row = dict[str, Any]
Run = Callable[[Sequence[Job], ZookeeperServers, str], float]

SETS = 5
SERVERS = 3
SCALE = 0.1
WAIT_S = 3600.0
POLICY = """
store = "{store}"
[daemon]
name = "tasks"
state = "{folder}"
http = "off"
[resource.work]
kind = "claim"
"""


def on_servers(out: Path, quick: bool) -> dict[str, Any]:
    """`bursar experiment claims-servers`."""
    sets = 2 if quick else SETS
    rows: list[Row] = []
    with ZookeeperServers(SERVERS) as servers:
        for size in (1,) if quick else (1, 3, 10):
            for seed in range(sets):
                jobs, optimal = draw_rectangles(seed, size)
                rows += _compare(jobs, servers, {"work": "rectangles", "size": size, "set": seed}, optimal)
        for size in (100,) if quick else (100, 300):
            for seed in range(sets):
                jobs = draw_hierarchy(seed, size)
                ideal = run_fifo_locks(jobs)
                rows += _compare(jobs, servers, {"work": "hierarchy", "size": size, "set": seed}, ideal)
    table = _make_table(rows)
    if not quick:
        figures.draw_on_servers(out, table)
    ok = all(line["lock/bursar"] > 1 for line in table)
    return {"table": table, "rows": rows, "scale": SCALE, "ok": ok}


def _compare(jobs: Sequence[Job], servers: ZookeeperServers, common: Row, unit: float) -> list[Row]:
    """`unit`: the optimum of rectangles; for a hierarchy, which has none that is known, the time that a lock
    server would take if its locks cost nothing."""
    rows = []
    for design, run in DESIGNS.items():
        seconds = run(jobs, servers, f"{common['work']}-{common['size']}-{common['set']}")
        row = {**common, "tasks": len(jobs), "design": design, "seconds": seconds, "ratio": seconds / unit}
        print(f"  {row['work']} {row['size']}, set {row['set']}: {design} {row['seconds']:.1f} s", flush=True)
        rows.append(row)
    return rows


def _make_table(rows: list[Row]) -> list[Row]:
    table = []
    for work, size in dict.fromkeys((row["work"], row["size"]) for row in rows):
        line: Row = {"work": work, "size": size}
        for design in DESIGNS:
            found = [r["ratio"] for r in rows if (r["work"], r["size"], r["design"]) == (work, size, design)]
            line[design] = averages.mean(found)
            line[f"{design} +-"] = half_width(found)
        line["lock/bursar"] = line["lock"] / line["bursar"]
        table.append(line)
    return table


def run_bursar(jobs: Sequence[Job], servers: ZookeeperServers, name: str) -> float:
    """Completion time in the benchmark's seconds, with one node."""
    with tempfile.TemporaryDirectory(prefix="bursar-claims-") as folder:
        policy = parse(POLICY.format(store=servers.url(f"/bursar-{name}"), folder=folder), "work.toml")
        return asyncio.run(_claim_all(policy, jobs)) / SCALE


async def _claim_all(policy: Any, jobs: Sequence[Job]) -> float:
    async with await bursar.connect(policy) as b:
        began = time.monotonic()

        async def do(job: Job) -> None:
            await asyncio.sleep(max(0.0, began + job.released * SCALE - time.monotonic()))
            async with b.claim(*_names(job), tenant="tasks", wait=WAIT_S):
                await asyncio.sleep(job.duration * SCALE)

        await asyncio.gather(*(do(job) for job in jobs))
        return time.monotonic() - began


def _names(job: Job) -> list[str]:
    return [f"{name}:{'E' if mode is Mode.EXCLUSIVE else 'S'}" for name, mode in job.needs]


def run_locks(jobs: Sequence[Job], servers: ZookeeperServers, name: str) -> float:
    """The same with kazoo's locks and a thread for each task."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=servers.hosts, timeout=30)
    client.start()
    began = time.monotonic()

    def do(job: Job) -> None:
        time.sleep(max(0.0, began + job.released * SCALE - time.monotonic()))
        locks = [
            (client.WriteLock if mode is Mode.EXCLUSIVE else client.ReadLock)(f"/locks-{name}/{each}")
            for each, mode in job.needs
        ]
        for lock in locks:
            lock.acquire()
        time.sleep(job.duration * SCALE)
        for lock in reversed(locks):
            lock.release()

    threads = [threading.Thread(target=do, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    client.stop()
    client.close()
    return elapsed / SCALE


DESIGNS: dict[str, Run] = {"bursar": run_bursar, "lock": run_locks}
