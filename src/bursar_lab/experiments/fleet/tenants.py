"""100,000 tenants, set through the API of a running daemon in batches; then any of them acquires, as
quickly as the one tenant of a resource that has no other. Then a thousand that come by first use under
"*", and are forgotten when idle."""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import bursar
from bursar_lab.experiments.fleet.processes import Fleet

SEED = 7
COUNT = 100_000
QUICK_COUNT = 10_000
BATCH = 5_000
SET_MAX_S = 60.0
PROBES = 400
GUESTS = 1_000
SLOWER_MAX = 1.5

POLICY = """
[resource.many]
kind = "rate"
servers = { a = "1M/s" }
[resource.guests]
kind = "rate"
servers = { a = "1M/s" }
[resource.guests.tenant]
"*" = { limit = "50/s" }
[resource.one]
kind = "rate"
servers = { a = "1M/s" }
[resource.one.tenant]
acme = { limit = "100k/s" }
"""


def tenants(out: Path, quick: bool) -> dict[str, Any]:
    count = QUICK_COUNT if quick else COUNT
    with tempfile.TemporaryDirectory(prefix="bursar-tenants-") as folder:
        fleet = Fleet(Path(folder), f"sqlite://{folder}/store.db")
        try:
            fleet.start("a")
            fleet.apply(POLICY)
            return asyncio.run(_measure(fleet, count))
        finally:
            fleet.stop()


async def _measure(fleet: Fleet, count: int) -> dict[str, Any]:
    names = [f"user-{number}" for number in range(count)]
    async with await bursar.connect(fleet.url("a"), timeout=20) as b:
        await _probe(b, "one", ["acme"] * PROBES)
        before = fleet.nodes["a"].memory_bytes()
        began = time.monotonic()
        for at in range(0, count, BATCH):
            await b.set_tenants("many", {name: {"limit": "100/s"} for name in names[at : at + BATCH]})
            print(f"  {at + BATCH:,} of {count:,} set after {time.monotonic() - began:.1f} s", flush=True)
        set_s = time.monotonic() - began
        memory = (fleet.nodes["a"].memory_bytes() - before) / count
        chosen = random.Random(SEED).sample(names, PROBES)
        one = await _probe(b, "one", ["acme"] * PROBES)
        many = await _probe(b, "many", chosen)
        again = await _probe(b, "many", chosen)
        guests = await _probe(b, "guests", [f"guest-{number}" for number in range(GUESTS)])
        known = len((await b.statistics("guests")).tenants)
        await asyncio.sleep(5)
        forgotten = known - len([n for n in (await b.statistics("guests")).tenants if n != "*"])
    bars = [
        {
            "bar": f"seconds to set {count:,}, at most {SET_MAX_S:g}",
            "found": round(set_s, 1),
            "met": set_s <= SET_MAX_S,
        },
        {
            "bar": f"acquire of any beside a sole tenant's, at most {SLOWER_MAX}",
            "found": round(again / one, 3),
            "met": again <= SLOWER_MAX * one,
        },
        {
            "bar": f"of {GUESTS} guests forgotten when idle, all",
            "found": forgotten,
            "met": forgotten >= GUESTS,
        },
    ]
    return {
        "seed": SEED,
        "tenants": count,
        "bytes a tenant at the daemon": round(memory),
        "median acquire, us": {
            "the sole tenant": round(one),
            "any of many, first": round(many),
            "any of many, again": round(again),
            "guests, first": round(guests),
        },
        "bars": bars,
        "ok": all(bar["met"] for bar in bars),
    }


async def _probe(b: bursar.Bursar, resource: str, names: list[str]) -> float:
    """The median time of an acquire, in microseconds."""
    taken: list[float] = []
    door = b.resource(resource)
    for name in names:
        began = time.perf_counter()
        async with door.acquire(name, wait=2):
            taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken)
