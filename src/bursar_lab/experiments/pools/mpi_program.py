"""One rank of `pools-live-mpi`: `mpiexec -n 4 python -m bursar_lab.experiments.pools.mpi_program OUT S`.

Rank 0 is the data node: it holds the words and sleeps. The others are one tenant each, with a monitor
that leads or stands by, as in any program. What each was granted, by period, is written to OUT."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

from bursar.errors import Refused, Unknown
from bursar.policy import PoolPolicy, PoolTenant
from bursar.pools.layout import Names
from bursar.pools.resource import open_resource
from bursar.resource.door import Resource
from bursar.runtime.world import open_world
from bursar.units import Rate
from bursar_lab.mpi_words import MpiWords

CAPACITY = 20_000
RESERVATIONS = {"acme": 8_000, "globex": 4_000, "greedy": 0}
"""A second."""

AMOUNT = 50
CALLERS = 6
TIMED = 20_000


def list_words() -> list[str]:
    names = Names("records")
    words = [names.ceiling, names.taken, names.asked, names.left]
    for tenant in RESERVATIONS:
        words += [names.tokens(tenant), names.report(tenant, 0), names.report(tenant, 1)]
    return [*words, "count"]


def make_policy() -> PoolPolicy:
    tenants = {name: PoolTenant(reservation=Rate.of(rate)) for name, rate in RESERVATIONS.items()}
    return PoolPolicy(name="records", capacity=Rate.of(CAPACITY), tenants=tenants)


async def _call(records: Resource, tenant: str, granted: dict[int, int]) -> None:
    while True:
        with contextlib.suppress(Refused, Unknown):  # there is nobody else to say so
            grant = await records.acquire(tenant, AMOUNT, wait=2)
            granted[grant.period] = granted.get(grant.period, 0) + AMOUNT


async def work(words: MpiWords, tenant: str, seconds: float) -> dict[int, int]:
    granted: dict[int, int] = {}
    world = await open_world(tenant)
    records = open_resource(replace(world, words=words), "records", make_policy())
    await records.start()
    tasks = [asyncio.ensure_future(_call(records, tenant, granted)) for _ in range(CALLERS)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await records.stop()
    await world.close()
    return granted


def count(words: MpiWords) -> float:
    """Microseconds of an addition, while all add to one word."""
    began = time.perf_counter()
    for _ in range(TIMED):
        words.fetch_add("count", 1)
    return (time.perf_counter() - began) / TIMED * 1e6


def main(out: str, seconds: float) -> None:
    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    words = MpiWords(comm, list_words())
    found: dict[str, Any] = {}
    if rank:
        found["addition_us"] = count(words)
        comm.Barrier()
        tenant = list(RESERVATIONS)[rank - 1]
        found |= {"tenant": tenant, "granted": asyncio.run(work(words, tenant, seconds))}
        found["added"] = words.read("count")
        Path(out, f"{rank}.json").write_text(json.dumps(found))
    else:
        comm.Barrier()
        time.sleep(seconds)  # its processor takes no part
    comm.Barrier()
    words.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
