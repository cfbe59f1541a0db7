"""`bursar bench quotas`: grants a second out of a budget, beside Redis, PostgreSQL and SQLite.

All do the same work: a budget that is not exceeded, `AMOUNT` units taken from it for each request, and the
answer known; `settled`: then it is said that `USED` of them were used, and that is durable too (where the
grant is). bursar runs at its default settings. They differ in what a crash leaves:

    bursar exact       every grant is in a journal, synced, before it is told (group commit)
    bursar fast        a block of units is charged and synced ahead; a crash loses at most a block
    redis always       a Lua script checks and adds; each command's effect is synced before the answer
    redis everysec     the same; a crash of the machine hands up to a second of grants out again
    postgresql         one UPDATE ... WHERE used + n <= quota, committed as it is by default (synced)
    sqlite full        the same, committed with full sync

One asks with one request under way at a time, many with as many as stated. bursar and SQLite answer
within the process, the others over loopback; that is how they are used.
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
from bursar.quotas.blocks import LEAST
from bursar.quotas.resource import open_resource
from bursar.resource.door import Resource
from bursar.runtime.loops import new_event_loop
from bursar_lab.postgresql_server import PostgresqlServers
from bursar_lab.processes import run_redis

QUOTA = 2**62
AMOUNT, USED = 3, 1
TOGETHER = (1, 16, 128)
CONNECTIONS = 64
"""To PostgreSQL: beyond what it has processors for, more of them make it slower."""

ROUNDS = 5
LOCAL_GRANT_MAX_US = 5.0

SCRIPT = """
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
if used + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return -1 end
return redis.call('INCRBY', KEYS[1], ARGV[1])
"""
BLOCK = LEAST
REDIS_QUOTA = 2**52
"""Lua's numbers are doubles."""

Ask = Callable[[], Awaitable[None]]
Asks = tuple[Ask, Ask]
"""One that is granted, and one that is granted and settled."""

Rates = dict[tuple[str, str, int], float]
WORKS = ("granted", "settled")


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


async def _measure(folder: Path, seconds: float) -> tuple[Rates, tuple[float, float]]:
    async with AsyncExitStack() as stack:
        enter, enter_async = stack.enter_context, stack.enter_async_context
        exact = await enter_async(_open_bursar(folder / "exact", "exact"))
        fast = await enter_async(_open_bursar(folder / "fast", "fast"))
        always = enter(run_redis(str(_make(folder / "always")), *_append("always")))
        everysec = enter(run_redis(str(_make(folder / "everysec")), *_append("everysec")))
        servers = enter(PostgresqlServers(1))
        budgets: dict[str, Asks] = {
            "bursar exact": _asking(exact),
            "bursar fast": _asking(fast),
            "redis always": await enter_async(_open_redis(always)),
            "redis everysec": await enter_async(_open_redis(everysec)),
            "postgresql": await enter_async(_open_postgresql(servers.url().partition("?")[0])),
            "sqlite full": _open_sqlite(folder / "row.db"),
        }
        rates = await _race(budgets, seconds)
        return rates, await _time_local_grants(fast, int(100_000 * seconds))


def _make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _append(how: str) -> tuple[str, ...]:
    return ("--appendonly", "yes", "--appendfsync", how)


async def _race(budgets: dict[str, Asks], seconds: float) -> Rates:
    """Grants a second, by budget, work and how many ask at once."""
    best: Rates = {}
    for _ in range(ROUNDS):  # in turn, so that a busy moment hits all alike
        for together in TOGETHER:
            for place, work in enumerate(WORKS):
                for name, asks in budgets.items():
                    rate = await _count(asks[place], together, seconds / ROUNDS)
                    best[name, work, together] = max(best.get((name, work, together), 0.0), rate)
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
    policy = QuotaPolicy(name="bench", tenants={"t": QuotaTenant(limit=QUOTA)}, mode=mode)  # type: ignore[arg-type]
    resource = open_resource(world, "bench", policy)
    try:
        await resource.start()
        await (await resource.acquire("t", AMOUNT, wait=5.0)).release()
        yield resource
    finally:
        await resource.stop()
        await world.close()


def _asking(resource: Resource) -> Asks:
    async def ask() -> None:
        await (await resource.acquire("t", AMOUNT, wait=5.0)).release()

    async def settle() -> None:
        grant = await resource.acquire("t", AMOUNT, wait=5.0)
        grant.settle(USED)
        await grant.release()

    return ask, settle


@asynccontextmanager
async def _open_redis(url: str) -> AsyncIterator[Asks]:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(url, max_connections=TOGETHER[-1])
    take = client.register_script(SCRIPT)

    async def ask() -> None:
        if await take(keys=["t"], args=[AMOUNT, REDIS_QUOTA]) < 0:
            raise BursarError("the counter in Redis is used up: nothing to measure")

    async def settle() -> None:
        await ask()
        await client.decrby("t", AMOUNT - USED)

    try:
        await settle()
        yield ask, settle
    finally:
        await client.aclose()


TAKE = "UPDATE quota SET used = used + {0} WHERE used + {0} <= {1}"
RETURN = "UPDATE quota SET used = used - {0}"


@asynccontextmanager
async def _open_postgresql(url: str) -> AsyncIterator[Asks]:
    import asyncpg

    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        await pool.execute("CREATE TABLE quota (used BIGINT)")
        await pool.execute("INSERT INTO quota VALUES (0)")

        async def ask() -> None:
            if await pool.execute(TAKE.format(AMOUNT, QUOTA)) != "UPDATE 1":
                raise BursarError("the row in PostgreSQL is used up: nothing to measure")

        async def settle() -> None:
            await ask()
            await pool.execute(RETURN.format(AMOUNT - USED))

        yield ask, settle


def _open_sqlite(path: Path) -> Asks:
    database = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE quota (used)"):
        database.execute(statement)
    database.execute("INSERT INTO quota VALUES (0)")

    async def ask() -> None:
        if database.execute(TAKE.format(AMOUNT, QUOTA)).rowcount != 1:
            raise BursarError("the row is used up: nothing to measure")
        await asyncio.sleep(0)

    async def settle() -> None:
        await ask()
        database.execute(RETURN.format(AMOUNT - USED))

    return ask, settle


async def _time_local_grants(resource: Resource, count: int) -> tuple[float, float]:
    """`try_acquire` of `fast` mode, in bursts of what a block holds half of: microseconds for one that is
    granted, and which part of them was, when they come faster than any block is fetched."""
    best, burst, granted, asked = 1e9, BLOCK // 2 // AMOUNT, 0, 0
    for _ in range(max(ROUNDS, count // burst)):
        await _wait_until_ready(resource)
        began = time.perf_counter_ns()
        grants = [resource.try_acquire("t", AMOUNT) for _ in range(burst)]
        took_us = (time.perf_counter_ns() - began) / 1000
        got = [grant for grant in grants if grant is not None]
        asked, granted = asked + burst, granted + len(got)
        if len(got) == burst:
            best = min(best, took_us / burst)
        for grant in got:
            await grant.release()
    return best, granted / asked


async def _wait_until_ready(resource: Resource) -> None:
    async with asyncio.timeout(5):
        while (grant := resource.try_acquire("t", AMOUNT)) is None:
            await asyncio.sleep(0.01)
        await grant.release()


def _conclude(rates: Rates, local: tuple[float, float]) -> dict[str, Any]:
    local_us, share = local
    rows = [
        {
            "work": work,
            "requests at once": together,
            "budget": name,
            "a second": round(rate),
            "bursar exact is x times": round(rates["bursar exact", work, together] / rate, 2),
            "bursar fast is x times": round(rates["bursar fast", work, together] / rate, 2),
        }
        for (name, work, together), rate in sorted(
            rates.items(), key=lambda item: (WORKS.index(item[0][1]), item[0][2], -item[1])
        )
    ]
    bar = f"a local grant in fast mode takes at most {LOCAL_GRANT_MAX_US:g} us"
    met = local_us <= LOCAL_GRANT_MAX_US
    burst = {"budget": "bursar fast, try_acquire in bursts", "us a grant": round(local_us, 3)}
    return {
        "local_grant_us": round(local_us, 3),
        "granted_in_bursts": round(share, 3),
        "rows": rows,
        "semantics": __doc__,
        "bars": [{"bar": bar, "found": round(local_us, 3), "met": met}],
        "table": [*rows, {**burst, "% granted at once": round(100 * share, 1)}],
        "ok": met,
    }
