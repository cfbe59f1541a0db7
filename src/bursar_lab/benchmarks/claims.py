"""Grants a second on a real ZooKeeper: bursar's claims beside kazoo's locks, in one run.

The same work for both: so many workers, each of which takes its own set of names exclusively and
gives it back, again and again. bursar takes a set in one transaction; kazoo's `Lock` (and the write
lock of its `ReadLock`/`WriteLock`) is taken name by name in order, as lock servers are used, and a
set that is not complete at the end counts for the part that is. Rounds of both follow each other on
the same servers. Workers of one instance share its session.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import bursar
from bursar.policy import parse
from bursar_lab.zookeeper_server import ZookeeperServers

POLICY = """
store = "{store}"
[resource.bench]
kind = "claim"
[daemon]
name = "bench-{number}"
state = "{folder}/{number}"
http = "off"
"""

WORKERS = 8
"""Claims in flight of one instance, and threads of one kazoo client."""

RATIO_MIN = 5.0
RESOURCES_OF_TARGET = 10


def run(quick: bool) -> dict[str, Any]:
    """`bursar bench claims`."""
    seconds = 1.5 if quick else 5.0
    rows: list[dict[str, Any]] = []
    for count in (1, 3):
        with ZookeeperServers(count) as servers:
            for resources in (1, 10) if quick else (1, 10, 100):
                for instances in (1, 3) if quick else (1, 3, 5):
                    rows.append(compare(servers, resources, instances, seconds))
    ratios = [row["over Lock"] or 0.0 for row in rows if row["resources"] == RESOURCES_OF_TARGET]
    return {"table": rows, "ratio_at_10_resources": min(ratios), "ok": min(ratios) >= RATIO_MIN}


def compare(servers: ZookeeperServers, resources: int, instances: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bursar-claims-") as folder:
        ours = asyncio.run(_run_bursar(servers, folder, resources, instances, seconds))
    lock = _run_kazoo(servers, resources, instances, seconds, lambda client, path: client.Lock(path))
    write = _run_kazoo(servers, resources, instances, seconds, lambda client, path: client.WriteLock(path))
    return {
        "servers": servers.count,
        "resources": resources,
        "instances": instances,
        "bursar/s": ours,
        "kazoo Lock/s": lock,
        "kazoo WriteLock/s": write,
        "over Lock": ours / lock if lock else None,
    }


async def _run_bursar(
    servers: ZookeeperServers, folder: str, resources: int, instances: int, seconds: float
) -> float:
    policies = [
        parse(POLICY.format(store=servers.url("/bursar"), folder=folder, number=number), "bench.toml")
        for number in range(instances)
    ]
    opened = [await bursar.connect(policy) for policy in policies]
    deadline = time.monotonic() + seconds
    counts = await asyncio.gather(
        *(
            _claim(b, f"{number}-{worker}", resources, deadline)
            for number, b in enumerate(opened)
            for worker in range(WORKERS)
        )
    )
    elapsed = time.monotonic() - deadline + seconds
    for b in opened:
        await b.close()
    return sum(counts) / elapsed


async def _claim(b: bursar.Bursar, worker: str, resources: int, deadline: float) -> int:
    names = [f"{resources}-{worker}-{number}:E" for number in range(resources)]
    done = 0
    while time.monotonic() < deadline:
        async with b.claim(*names, tenant="bench", wait=60):
            done += 1
    return done


def _run_kazoo(
    servers: ZookeeperServers,
    resources: int,
    instances: int,
    seconds: float,
    make: Callable[[Any, str], Any],
) -> float:
    from kazoo.client import KazooClient

    clients = [KazooClient(hosts=servers.hosts, timeout=30) for _ in range(instances)]
    for client in clients:
        client.start()
    deadline = time.monotonic() + seconds
    counts: list[float] = []

    def take(client: Any, worker: str) -> None:
        locks = [make(client, f"/kazoo/{resources}-{worker}-{number}") for number in range(resources)]
        taken = 0
        while time.monotonic() < deadline:
            for lock in locks:
                lock.acquire()
                taken += time.monotonic() < deadline
            for lock in reversed(locks):
                lock.release()
        counts.append(taken / resources)

    threads = [
        threading.Thread(target=take, args=(client, f"{number}-{worker}"))
        for number, client in enumerate(clients)
        for worker in range(WORKERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.stop()
        client.close()
    return sum(counts) / seconds
