"""Real nodes on this machine: sockets, journals with full syncs, an SQLite store, one process."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

from bursar.errors import Refused, Unknown
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas.resource import QuotaDecider
from bursar.resource.door import Resource
from bursar.world import MILLISECOND_NS, SECOND_NS, Clock

LIMIT_A_NODE = 400
AMOUNT = 4
PAUSE_S = 0.02


def measure_live(nodes: int, seconds: float) -> dict[str, Any]:
    """Zipf-like load until the quota is used or the time is up; does it add up, and how long do
    re-allocations take?"""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), nodes, seconds))


async def _measure(folder: Path, nodes: int, seconds: float) -> dict[str, Any]:
    from bursar.runtime.world import open_world

    names = [f"n{number}" for number in range(nodes)]
    store = f"sqlite://{folder}/store.db"
    worlds = [await open_world(names[0], state=folder / names[0], listen="127.0.0.1:0", store=store)]
    for name in names[1:]:
        worlds.append(await open_world(name, state=folder / name, listen="127.0.0.1:0", store=store))
    for world in worlds:
        for other in worlds:
            if other is not world and other.listening is not None:
                world.sockets.add_route(other.name, other.listening)
    limit = LIMIT_A_NODE * nodes
    policy = QuotaPolicy(name="live", tenants={"t": QuotaTenant(limit=limit)})
    deciders = [QuotaDecider(world, "live", policy) for world in worlds]
    resources = [Resource(world, each, policy) for world, each in zip(worlds, deciders, strict=True)]
    try:
        for resource in resources:
            await resource.start()
        waits: list[int] = []
        clock = worlds[0].clock
        load = [_use(each, clock, rank, waits, seconds) for rank, each in enumerate(resources, start=1)]
        granted = sum(await asyncio.gather(*load))
        total = (await deciders[0].watch.take_survey())["t"]
    finally:
        for resource, world in zip(resources, worlds, strict=True):
            await resource.stop()
            await world.close()
    theta = [
        decider.courier.book.demand(decider.courier.book.ledger.account("t")).theta_ns for decider in deciders
    ]
    return {
        "network": "live",
        "nodes": nodes,
        "algorithm": "bursar, real sockets and journals",
        "re-allocation ms": round(median(theta) / MILLISECOND_NS, 3),
        "units granted": granted,
        "missing in the audit": total.missing,
        "mean grant ms": round(mean(waits) / MILLISECOND_NS, 3) if waits else 0.0,
    }


async def _use(resource: Resource, clock: Clock, rank: int, waits: list[int], seconds: float) -> int:
    """The node of rank r asks 1/r as often as the first."""
    until = clock.now() + int(seconds * SECOND_NS)
    used = 0
    while clock.now() < until:
        began = clock.now()
        try:
            async with resource.acquire("t", AMOUNT, wait=1.0):
                used += AMOUNT
        except (Refused, Unknown):
            await asyncio.sleep(PAUSE_S)
        waits.append(clock.now() - began)
        await asyncio.sleep(PAUSE_S * min(rank, 8) / 8)
    return used
