"""A budget that must not be exceeded: a counter in Redis, a row in PostgreSQL, bursar's quota.

One client takes one unit at a time until it is refused, and counts what it was told. On the way the counter's
server is killed and started again; or, of 25 answers, one is lost after what was asked was done, and
the client asks again, as clients do (bursar's with the same key). Told above the budget was handed out twice;
charged above told is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import bursar
from bursar_lab.benchmarks.peers.servers import Line, Server, serve_bursar, serve_redis
from bursar_lab.benchmarks.quotas import SCRIPT, TAKE
from bursar_lab.postgresql_server import PostgresqlServers

BUDGET = 500
HARM_AT = 250
CUT_AT = 150
LOSE = 25
ASKED_AGAIN_MAX = 200

Take = Callable[[], Awaitable[bool]]
"""True: granted. False: refused. ConnectionError: nobody knows."""

REDIS = {
    "Redis, as it comes (snapshots)": (),
    "Redis, everysec": ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
    "Redis, always": ("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
}
QUOTA = f"""
[resource.budget]
kind = "quota"
[resource.budget.tenant]
acme = {{ limit = {BUDGET} }}
"""


def try_all(folder: Path) -> list[dict[str, Any]]:
    rows = [
        asyncio.run(_kill_redis(folder / f"redis-{number}", name, options))
        for number, (name, options) in enumerate(REDIS.items())
    ]
    rows.append(asyncio.run(_promote_replica(folder)))
    rows.append(asyncio.run(_lose_redis_answers(folder)))
    with PostgresqlServers(1) as servers:
        rows.append(asyncio.run(_kill_postgresql(servers)))
        rows.append(asyncio.run(_lose_postgresql_answers(servers)))
    rows.append(asyncio.run(_kill_bursar(folder)))
    rows.append(asyncio.run(_lose_bursar_answers(folder)))
    return rows


async def _spend(take: Take, harm: dict[int, Callable[[], None]]) -> int:
    """Until it is refused; how much was told. What harms is done when so much was told."""
    told, failures = 0, 0
    while failures < ASKED_AGAIN_MAX:
        if (act := harm.pop(told, None)) is not None:
            await asyncio.to_thread(act)
        try:
            if not await take():
                return told
            told, failures = told + 1, 0
        except (ConnectionError, OSError):
            failures += 1
            await asyncio.sleep(0.05)
    raise RuntimeError("the counter did not come back")


def _restart(server: Server) -> Callable[[], None]:
    def act() -> None:
        server.kill()
        server.start()

    return act


def _row(pick: str, fault: str, told: int, charged: int | None = None) -> dict[str, Any]:
    lost = 0 if charged is None else max(0, charged - told)
    came = f"{max(0, told - BUDGET)} handed out twice" + (f", {lost} charged and told nobody" if lost else "")
    return {"for": "budget", "pick": pick, "fault": fault, "limit": BUDGET, "told": told, "what came": came}


KILL = "server killed (-9), started again"
LOST = f"one answer of {LOSE} lost, asked again"


# -- Redis


async def _open_redis(port: int) -> tuple[Any, Take]:
    import redis.asyncio

    client = redis.asyncio.Redis(port=port)
    script = client.register_script(SCRIPT)

    async def take() -> bool:
        try:
            return int(await script(keys=["t"], args=[1, BUDGET])) > 0
        except redis.exceptions.RedisError as error:
            raise ConnectionError(str(error)) from error

    return client, take


async def _kill_redis(folder: Path, name: str, options: tuple[str, ...]) -> dict[str, Any]:
    with serve_redis(folder, *options) as server:
        client, take = await _open_redis(server.port)
        told = await _spend(take, {HARM_AT: _restart(server)})
        await client.aclose()
    return _row(name, KILL, told)


async def _promote_replica(folder: Path) -> dict[str, Any]:
    """The network between the two is cut, then the first dies, and the other takes its place: what Sentinel
    does. Each is synced at every write."""
    options = REDIS["Redis, always"]
    with serve_redis(folder / "first", *options) as first, serve_redis(folder / "second", *options) as second:
        line = Line(first.port)
        there, other = await _open_redis(second.port)
        await there.execute_command("REPLICAOF", "127.0.0.1", line.port)
        while (await there.info("replication"))["master_link_status"] != "up":
            await asyncio.sleep(0.05)
        client, take = await _open_redis(first.port)
        places = [take]

        def fail_over() -> None:
            first.kill()
            places[0] = other

        async def anywhere() -> bool:
            if places[0] is other and (await there.info("replication"))["role"] != "master":
                await there.execute_command("REPLICAOF", "NO", "ONE")
            return await places[0]()

        told = await _spend(anywhere, {CUT_AT: line.cut, HARM_AT: fail_over})
        await client.aclose()
        await there.aclose()
        line.close()
    return _row("Redis, always, and a replica", "replica cut off, then promoted", told)


async def _lose_redis_answers(folder: Path) -> dict[str, Any]:
    with serve_redis(folder / "lossy", *REDIS["Redis, always"]) as server:
        line = Line(server.port, lose=LOSE)
        client, take = await _open_redis(line.port)
        told = await _spend(take, {})
        await client.aclose()
        line.close()
    return _row("Redis, always", LOST, told, BUDGET)


# -- PostgreSQL


async def _open_postgresql(dsn: str) -> tuple[Any, Take]:
    import asyncpg

    held: list[Any] = []

    async def take() -> bool:
        try:
            if not held:
                held.append(await asyncpg.connect(dsn))
            return bool(await held[0].execute(TAKE.format(1, BUDGET)) == "UPDATE 1")
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            held.clear()
            raise ConnectionError(str(error)) from error
        except OSError:
            held.clear()
            raise

    async def close() -> None:
        for each in held:
            await each.close()

    return close, take


async def _prepare(dsn: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    await connection.execute("DROP TABLE IF EXISTS quota; CREATE TABLE quota (used BIGINT)")
    await connection.execute("INSERT INTO quota VALUES (0)")
    await connection.close()


async def _kill_postgresql(servers: PostgresqlServers) -> dict[str, Any]:
    dsn = servers.url().partition("?")[0]
    await _prepare(dsn)

    def restart() -> None:
        servers.kill(0)
        servers.start(0)

    close, take = await _open_postgresql(dsn)
    told = await _spend(take, {HARM_AT: restart})
    await close()
    return _row("PostgreSQL, one UPDATE", KILL, told)


async def _lose_postgresql_answers(servers: PostgresqlServers) -> dict[str, Any]:
    dsn = servers.url().partition("?")[0]
    await _prepare(dsn)
    line = Line(servers.ports[0], lose=LOSE)
    close, take = await _open_postgresql(dsn.replace(f":{servers.ports[0]}", f":{line.port}"))
    told = await _spend(take, {})
    await close()
    line.close()
    return _row("PostgreSQL, one UPDATE", LOST, told, BUDGET)


# -- bursar


def _taking(b: bursar.Bursar) -> Take:
    """Each unit with a key, and the same key again until it is decided."""
    numbers = [0]

    async def take() -> bool:
        try:
            async with b.resource("budget").acquire("acme", key=f"k{numbers[0]}", wait=2):
                numbers[0] += 1
                return True
        except bursar.Refused:
            return False
        except (bursar.Unknown, bursar.NetworkError) as error:
            raise ConnectionError(str(error)) from error

    return take


async def _kill_bursar(folder: Path) -> dict[str, Any]:
    with serve_bursar(folder / "killed", QUOTA) as server:
        async with await bursar.connect(f"bursar://127.0.0.1:{server.port}") as b:
            told = await _spend(_taking(b), {HARM_AT: _restart(server)})
            charged = await _read_spent(b)
    return _row("bursar", KILL, told, charged)


async def _lose_bursar_answers(folder: Path) -> dict[str, Any]:
    with serve_bursar(folder / "lossy-bursar", QUOTA) as server:
        line = Line(server.port, lose=LOSE)
        async with await bursar.connect(f"bursar://127.0.0.1:{line.port}") as b:
            told = await _spend(_taking(b), {})
        line.close()
        async with await bursar.connect(f"bursar://127.0.0.1:{server.port}") as b:
            charged = await _read_spent(b)
    return _row("bursar, with a key", LOST, told, charged)


async def _read_spent(b: bursar.Bursar) -> int:
    (whole,) = (await b.resource("budget").verb("survey"))["rows"]
    return int(whole["spent"])
