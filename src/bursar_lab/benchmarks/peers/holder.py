"""A process that has a name to itself for a while: python -m bursar_lab.benchmarks.peers.holder SYSTEM URL
REGISTER NAME

It checks that it still is the owner as its system lets it, works for a moment, and writes to the register:
again and again, until it is no owner any more or has written WRITES times. A pause in the moment between is
what no check can see: for that it says `working` in one of them. Prints `have` when it became the owner.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing

TTL_S = 2
WORK_S = 0.05
WRITES = 60
PAUSED_AT = 5

Write = Callable[[], None]
NAME = "vm-7"


def open_register(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS writes (number INTEGER PRIMARY KEY, who TEXT)")
    return connection


def say_working(number: int) -> None:
    if number == PAUSED_AT:
        print("working", flush=True)


def _work(is_owner: Callable[[], bool], write: Write) -> None:
    print("have", flush=True)
    for number in range(WRITES):
        if not is_owner():
            print("lost", flush=True)
            return
        say_working(number)
        time.sleep(WORK_S)
        write()


def hold_redis(url: str, write: Write) -> None:
    import redis

    lock = redis.Redis.from_url(url).lock(NAME, timeout=TTL_S, sleep=0.02)
    lock.acquire()

    def extend() -> bool:
        try:
            return bool(lock.reacquire())
        except redis.exceptions.LockError:
            return False

    _work(extend, write)


def hold_kazoo(hosts: str, write: Write) -> None:
    from kazoo.client import KazooClient, KazooState

    client = KazooClient(hosts=hosts, timeout=TTL_S)
    client.start()
    lock = client.Lock(f"/locks/{NAME}")
    lock.acquire()
    _work(lambda: bool(client.state == KazooState.CONNECTED and lock.is_acquired), write)


def hold_postgresql(dsn: str, who: str) -> None:
    """The register is in the same database: the lock and the write are one transaction, and the server ends
    one that says nothing for as long as the others' time to live."""
    asyncio.run(_hold_row(dsn, who))


async def _hold_row(dsn: str, who: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    await connection.execute(f"SET idle_in_transaction_session_timeout = '{TTL_S}s'")
    await connection.execute("CREATE TABLE IF NOT EXISTS writes (number BIGSERIAL, who TEXT)")
    await connection.execute("BEGIN")
    await connection.execute("SELECT pg_advisory_xact_lock(7)")
    print("have", flush=True)
    try:
        for number in range(WRITES):
            say_working(number)
            await asyncio.sleep(WORK_S)
            await connection.execute("INSERT INTO writes (who) VALUES ($1)", who)
        await connection.execute("COMMIT")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        print("lost", flush=True)


async def hold_bursar(url: str, register: sqlite3.Connection, who: str) -> None:
    """Every write shows the fence, in the transaction that writes."""
    import bursar
    from bursar.claims.fences import StaleFence
    from bursar.integrations.guards import SqlGuard

    guard = SqlGuard(sqlite3.paramstyle)
    guard.create(register)
    async with await bursar.connect(url) as b, b.claim(f"{NAME}:E", tenant="ops", wait=60) as grant:
        print("have", flush=True)
        for number in range(WRITES):
            say_working(number)
            await asyncio.sleep(WORK_S)
            register.execute("BEGIN IMMEDIATE")
            try:
                guard.check(register, NAME, grant.fence[NAME])
            except StaleFence:
                register.execute("ROLLBACK")
                print("lost", flush=True)
                return
            register.execute("INSERT INTO writes (who) VALUES (?)", (who,))
            register.execute("COMMIT")


def main() -> None:
    system, url, path, who = sys.argv[1:]
    if system == "postgresql":
        hold_postgresql(url, who)
        return
    with closing(open_register(path)) as register:

        def write() -> None:
            register.execute("INSERT INTO writes (who) VALUES (?)", (who,))

        if system == "bursar":
            asyncio.run(hold_bursar(url, register, who))
        else:
            {"redis": hold_redis, "kazoo": hold_kazoo}[system](url, write)


if __name__ == "__main__":
    main()
