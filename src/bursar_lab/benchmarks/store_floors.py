"""Each engine's own client, doing the least that makes the same changes: durable, with a revision, told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import asyncpg
import grpc
from kazoo.client import KazooClient

from bursar.stores import etcd_wire as wire

TOGETHER = 32
MANY = 30


class Floor(Protocol):
    async def prepare(self, nodes: int, data: bytes) -> None: ...

    async def set(self, count: int) -> None: ...

    async def set_together(self, count: int) -> None: ...

    async def create(self, count: int) -> None: ...

    async def transact(self, count: int) -> None: ...

    async def close(self) -> None: ...


class SqliteFloor:
    """One connection, which blocks its caller; in flight there is never more than one."""

    def __init__(self, url: str) -> None:
        path = urlsplit(url).path + ".floor"
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._execute = self._connection.execute
        self._created = 0

    async def prepare(self, nodes: int, data: bytes) -> None:
        self._nodes, self._data = nodes, data
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE nodes (path TEXT PRIMARY KEY, data BLOB, version INTEGER) WITHOUT ROWID",
            "CREATE TABLE store (revision INTEGER)",
            "INSERT INTO store VALUES (1)",
        ):
            self._execute(statement)
        rows = [(f"/{number}", data) for number in range(nodes)]
        self._connection.executemany("INSERT INTO nodes VALUES (?, ?, 0)", rows)

    async def set(self, count: int, at_once: int = 1) -> None:
        for number in range(count):
            self._execute("BEGIN IMMEDIATE")
            for offset in range(at_once):
                self._execute(
                    "UPDATE nodes SET data = ?, version = version + 1 WHERE path = ?",
                    (self._data, f"/{(number + offset) % self._nodes}"),
                )
            self._commit()

    async def set_together(self, count: int) -> None:
        await self.set(count)

    async def create(self, count: int) -> None:
        for _ in range(count):
            self._created += 1
            self._execute("BEGIN IMMEDIATE")
            self._execute("INSERT INTO nodes VALUES (?, ?, 0)", (f"/new-{self._created}", self._data))
            self._commit()

    async def transact(self, count: int) -> None:
        await self.set(count, MANY)

    async def close(self) -> None:
        self._connection.close()

    def _commit(self) -> None:
        self._execute("UPDATE store SET revision = revision + 1")
        self._execute("COMMIT")


class PostgresqlFloor:
    """asyncpg: one statement a change, with a revision row and a notice; 32 connections for 32 in flight."""

    SET = """
    WITH r AS (UPDATE floor.store SET revision = revision + 1 RETURNING revision),
         n AS (UPDATE floor.nodes SET data = $2, version = version + 1, revision = (SELECT revision FROM r)
               WHERE path = ANY($1) RETURNING version)
    SELECT pg_notify('floor', $3), (SELECT revision FROM r), (SELECT count(*) FROM n)
    """
    CREATE = """
    WITH r AS (UPDATE floor.store SET revision = revision + 1 RETURNING revision),
         n AS (INSERT INTO floor.nodes SELECT $1, $2, 0, revision FROM r RETURNING version)
    SELECT pg_notify('floor', $1), (SELECT count(*) FROM n)
    """

    def __init__(self, url: str) -> None:
        self._url = url.partition("?")[0]
        self._created = 0

    async def prepare(self, nodes: int, data: bytes) -> None:
        self._nodes, self._data = nodes, data
        self._lanes = [await asyncpg.connect(self._url) for _ in range(TOGETHER)]
        await self._lanes[0].execute(
            "CREATE SCHEMA floor; CREATE TABLE floor.store (revision bigint);"
            "INSERT INTO floor.store VALUES (1);"
            "CREATE TABLE floor.nodes (path text PRIMARY KEY, data bytea, version bigint, revision bigint)"
        )
        rows = [(f"/{number}", data, 0, 1) for number in range(nodes)]
        await self._lanes[0].executemany("INSERT INTO floor.nodes VALUES ($1, $2, $3, $4)", rows)

    async def _set(self, lane: int, numbers: range, at_once: int = 1) -> None:
        for number in numbers:
            paths = [f"/{(number + offset) % self._nodes}" for offset in range(at_once)]
            await self._lanes[lane].fetchrow(self.SET, paths, self._data, paths[0])

    async def set(self, count: int) -> None:
        await self._set(0, range(count))

    async def set_together(self, count: int) -> None:
        await asyncio.gather(*(self._set(lane, range(lane, count, TOGETHER)) for lane in range(TOGETHER)))

    async def create(self, count: int) -> None:
        for _ in range(count):
            self._created += 1
            await self._lanes[0].fetchrow(self.CREATE, f"/new-{self._created}", self._data)

    async def transact(self, count: int) -> None:
        await self._set(0, range(count), MANY)

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()


class ZookeeperFloor:
    """kazoo, the usual client for Python: its own thread, and its transactions."""

    def __init__(self, url: str) -> None:
        self._client = KazooClient(urlsplit(url).netloc)
        self._created = 0

    async def prepare(self, nodes: int, data: bytes) -> None:
        self._nodes, self._data = nodes, data
        await asyncio.to_thread(self._client.start)
        await asyncio.to_thread(self._client.ensure_path, "/floor")
        for number in range(nodes):
            self._client.create(f"/floor/{number}", data)

    async def set(self, count: int) -> None:
        for number in range(count):
            self._client.set(f"/floor/{number % self._nodes}", self._data)

    async def set_together(self, count: int) -> None:
        paths = [f"/floor/{number % self._nodes}" for number in range(count)]
        for first in range(0, count, TOGETHER):
            waiting = [self._client.set_async(path, self._data) for path in paths[first : first + TOGETHER]]
            for each in waiting:
                each.get()

    async def create(self, count: int) -> None:
        for _ in range(count):
            self._created += 1
            self._client.create(f"/floor/new-{self._created}", self._data)

    async def transact(self, count: int) -> None:
        for _ in range(count):
            transaction = self._client.transaction()
            for number in range(MANY):
                transaction.set_data(f"/floor/{number}", self._data)
            transaction.commit()

    async def close(self) -> None:
        await asyncio.to_thread(self._client.stop)
        self._client.close()


class EtcdFloor:
    """gRPC as it comes: one put that compares the version seen, in a transaction."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.aio.insecure_channel(urlsplit(url).netloc)
        self._txn = wire.methods(self._channel)["KV/Txn"]
        self._created = 0

    async def prepare(self, nodes: int, data: bytes) -> None:
        self._nodes, self._data = nodes, data
        self._versions = [0] * nodes
        for number in range(nodes):
            await self._put([number])

    async def _put(self, numbers: list[int]) -> None:
        compares = [
            wire.Compare(target=wire.VERSION, result=wire.EQUAL, key=self._key(n), version=self._versions[n])
            for n in numbers
        ]
        puts = [
            wire.RequestOp(request_put=wire.PutRequest(key=self._key(n), value=self._data)) for n in numbers
        ]
        answer = await self._txn(wire.TxnRequest(compare=compares, success=puts))
        assert answer.succeeded, "nobody else writes them"
        for number in numbers:
            self._versions[number] += 1

    def _key(self, number: int) -> bytes:
        return b"/floor/%d" % number

    async def set(self, count: int) -> None:
        for number in range(count):
            await self._put([number % self._nodes])

    async def set_together(self, count: int) -> None:
        async def lane(first: int) -> None:
            for _ in range(first, count, TOGETHER):
                await self._put([first])

        await asyncio.gather(*map(lane, range(TOGETHER)))

    async def create(self, count: int) -> None:
        for _ in range(count):
            self._created += 1
            key = b"/floor/new-%d" % self._created
            absent = wire.Compare(target=wire.VERSION, result=wire.EQUAL, key=key)
            put = wire.RequestOp(request_put=wire.PutRequest(key=key, value=self._data))
            await self._txn(wire.TxnRequest(compare=[absent], success=[put]))

    async def transact(self, count: int) -> None:
        for _ in range(count):
            await self._put(list(range(MANY)))

    async def close(self) -> None:
        with suppress(asyncio.CancelledError):
            await self._channel.close()


FLOORS: dict[str, Callable[[str], Any]] = {
    "sqlite": SqliteFloor,
    "postgresql": PostgresqlFloor,
    "zookeeper": ZookeeperFloor,
    "etcd": EtcdFloor,
}
