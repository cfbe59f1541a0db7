"""`bursar bench quotas`: grants a second out of a budget, beside a Redis counter and an SQLite row.

All do the same work: a budget that is not exceeded, `amount` units taken from it for each request,
and the answer known. They differ in what a crash leaves:

    bursar exact       every grant is in a journal, synced, before it is told (group commit)
    bursar fast        a block of units is charged and synced ahead; a crash loses at most a block
    redis always       a Lua script checks and adds; each command's effect is synced before the answer
    redis everysec     the same; a crash of the machine hands up to a second of grants out again
    sqlite full        one UPDATE ... WHERE used + n <= quota, committed with full sync

One asks with one request under way at a time, many with as many as stated. bursar and SQLite answer
within the process, Redis over loopback; that is how they are used.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bursar.errors import BursarError
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas.resource import open_resource
from bursar.resource.door import Resource
from bursar.runtime.loops import new_event_loop
from bursar_lab.processes import run_redis

QUOTA = 2**62
AMOUNT = 3
TOGETHER = 128
ROUNDS = 5
LOCAL_GRANT_MAX_US = 5.0
BLOCK = 10_000_000

SCRIPT = """
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
if used + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return -1 end
return redis.call('INCRBY', KEYS[1], ARGV[1])
"""
REDIS_QUOTA = 2**52
"""Lua's numbers are doubles."""

Ask = Callable[[], Awaitable[None]]


def run(quick: bool) -> dict[str, Any]:
    """Every budget in turn, several rounds, the best of each; then the ratios."""
    seconds = 0.2 if quick else 1.0
    with (
        tempfile.TemporaryDirectory(prefix="bursar-quotas-", dir=_disk()) as folder,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        rates, local_us = runner.run(_measure(Path(folder), seconds))
    return _conclude(rates, local_us)


def _disk() -> str | None:
    """Where /tmp is memory a sync costs nothing: measure where files last."""
    return "/var/tmp" if Path("/var/tmp").is_dir() else None


async def _measure(folder: Path, seconds: float) -> tuple[dict[tuple[str, int], float], float]:
    async with AsyncExitStack() as stack:
        enter, enter_async = stack.enter_context, stack.enter_async_context
        exact = await enter_async(_open_bursar(folder / "exact", "exact"))
        fast = await enter_async(_open_bursar(folder / "fast", "fast"))
        always = enter(run_redis(str(_make(folder / "always")), *_append("always")))
        everysec = enter(run_redis(str(_make(folder / "everysec")), *_append("everysec")))
        budgets: dict[str, Ask] = {
            "bursar exact": _asking(exact),
            "bursar fast": _asking(fast),
            "redis always": await enter_async(_open_redis(always)),
            "redis everysec": await enter_async(_open_redis(everysec)),
            "sqlite full": _open_sqlite(folder / "row.db"),
        }
        rates = await _race(budgets, seconds)
        return rates, await _time_local_grant(fast, int(100_000 * seconds))


def _make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _append(how: str) -> tuple[str, ...]:
    return ("--appendonly", "yes", "--appendfsync", how)


async def _race(budgets: dict[str, Ask], seconds: float) -> dict[tuple[str, int], float]:
    """Grants a second, by budget and how many ask at once."""
    best: dict[tuple[str, int], float] = {}
    for _ in range(ROUNDS):  # in turn, so that a busy moment hits all alike
        for together in (1, TOGETHER):
            for name, ask in budgets.items():
                rate = await _count(ask, together, seconds / ROUNDS)
                best[name, together] = max(best.get((name, together), 0.0), rate)
    return best


async def _count(ask: Ask, together: int, seconds: float) -> float:
    began = time.perf_counter()
    until = began + seconds

    async def work() -> int:
        count = 0
        while time.perf_counter() < until:
            await ask()
            count += 1
        return count

    counts = await asyncio.gather(*(work() for _ in range(together)))
    return sum(counts) / (time.perf_counter() - began)


@asynccontextmanager
async def _open_bursar(state: Path, mode: str) -> AsyncIterator[Resource]:
    from bursar.runtime.world import open_world

    world = await open_world(mode, state=state)
    policy = QuotaPolicy(name="bench", tenants={"t": QuotaTenant(limit=QUOTA)}, mode=mode, block=BLOCK)  # type: ignore[arg-type]
    resource = open_resource(world, "bench", policy)
    try:
        await resource.start()
        await (await resource.acquire("t", AMOUNT, wait=5.0)).release()
        yield resource
    finally:
        await resource.stop()
        await world.close()


def _asking(resource: Resource) -> Ask:
    async def ask() -> None:
        grant = await resource.acquire("t", AMOUNT, wait=5.0)
        await grant.release()

    return ask


@asynccontextmanager
async def _open_redis(url: str) -> AsyncIterator[Ask]:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(url, max_connections=TOGETHER)
    take = client.register_script(SCRIPT)

    async def ask() -> None:
        if await take(keys=["t"], args=[AMOUNT, REDIS_QUOTA]) < 0:
            raise BursarError("the counter in Redis is used up: nothing to measure")

    try:
        await ask()
        yield ask
    finally:
        await client.aclose()


def _open_sqlite(path: Path) -> Ask:
    database = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE quota (used)"):
        database.execute(statement)
    database.execute("INSERT INTO quota VALUES (0)")

    async def ask() -> None:
        done = database.execute(
            "UPDATE quota SET used = used + ? WHERE used + ? <= ?", (AMOUNT, AMOUNT, QUOTA)
        )
        if done.rowcount != 1:
            raise BursarError("the row is used up: nothing to measure")
        await asyncio.sleep(0)

    return ask


async def _time_local_grant(resource: Resource, count: int) -> float:
    """Microseconds for `try_acquire` of `fast` mode, and giving back what was taken."""
    best = 1e9
    for _ in range(ROUNDS):
        await _wait_until_ready(resource)
        grants = []
        began = time.perf_counter_ns()
        for _ in range(count // ROUNDS):
            grants.append(resource.try_acquire("t", AMOUNT))
        best = min(best, (time.perf_counter_ns() - began) / 1000 / (count // ROUNDS))
        if None in grants:
            raise BursarError("a grant was not local: the block is too small for this measurement")
        for grant in grants:
            assert grant is not None, "checked above"
            await grant.release()
    return best


async def _wait_until_ready(resource: Resource) -> None:
    async with asyncio.timeout(5):
        while (grant := resource.try_acquire("t", AMOUNT)) is None:
            await asyncio.sleep(0.01)
        await grant.release()


def _conclude(rates: dict[tuple[str, int], float], local_us: float) -> dict[str, Any]:
    rows = [
        {
            "budget": name,
            "requests at once": together,
            "grants a second": round(rate),
            "bursar exact is x times": round(rates["bursar exact", together] / rate, 2),
            "bursar fast is x times": round(rates["bursar fast", together] / rate, 2),
        }
        for (name, together), rate in sorted(rates.items(), key=lambda item: (item[0][1], -item[1]))
    ]
    bar = f"a local grant in fast mode takes at most {LOCAL_GRANT_MAX_US:g} us"
    met = local_us <= LOCAL_GRANT_MAX_US
    return {
        "local_grant_us": round(local_us, 3),
        "rows": rows,
        "semantics": __doc__,
        "bars": [{"bar": bar, "found": round(local_us, 3), "met": met}],
        "table": [*rows, {"budget": "bursar fast, try_acquire", "us a grant": round(local_us, 3)}],
        "ok": met,
    }
