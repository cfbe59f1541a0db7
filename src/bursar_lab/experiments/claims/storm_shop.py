"""What the tasks of the storm do, in workers that `bursar work` runs. Each writes what it holds through a
guard, at its beginning and at its end; the rows say who wrote, and are judged by others."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time

import bursar
from bursar.integrations.guards import SqlGuard

POLICY, WRITES, BLOCK_S = "policy.toml", "writes.db", float(os.environ.get("STORM_BLOCK_S", "1"))
LARGE_BYTES = 70_000
BUSY_S = 60.0

b = bursar.Bursar(POLICY)


def open_writes() -> sqlite3.Connection:
    connection = sqlite3.connect(WRITES, isolation_level=None, timeout=BUSY_S)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def set_up() -> None:
    connection = open_writes()
    connection.execute("PRAGMA journal_mode = WAL")
    SqlGuard().create(connection)
    connection.execute(
        "CREATE TABLE writes (number INTEGER PRIMARY KEY, name TEXT, mode TEXT, fence INTEGER, key TEXT)"
    )
    connection.close()


def write(needs: list[list[str]], fence: dict[str, int], key: str) -> None:
    """All that it holds, in one transaction; refused as a whole if one fence is old."""
    connection = open_writes()
    try:
        connection.execute("BEGIN IMMEDIATE")
        for name, mode in needs:
            SqlGuard().check(connection, name, fence[name])
            row = (name, mode, fence[name], key)
            connection.execute("INSERT INTO writes (name, mode, fence, key) VALUES (?, ?, ?, ?)", row)
        connection.execute("COMMIT")
    finally:
        connection.close()


@b.task(needs="{needs}")
async def use(needs: list[list[str]], seconds: float, fence: dict[str, int], key: str) -> None:
    await asyncio.to_thread(write, needs, fence, key)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(write, needs, fence, key)


@b.task(needs="{needs}")
async def block(needs: list[list[str]], fence: dict[str, int], key: str) -> None:
    """It stops the loop that it runs on for three session timeouts."""
    write(needs, fence, key)
    time.sleep(BLOCK_S)  # noqa: ASYNC251  which is what is to be survived
    write(needs, fence, key)


@b.task(needs="{needs}")
async def grow(needs: list[list[str]], fence: dict[str, int], key: str) -> str:
    write(needs, fence, key)
    return "x" * LARGE_BYTES


@b.task(needs="{needs}")
async def die(needs: list[list[str]], fence: dict[str, int], key: str) -> None:
    write(needs, fence, key)
    os.kill(os.getpid(), signal.SIGKILL)
