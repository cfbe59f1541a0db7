"""`sqlite:///path`: a tree in one file, shared by the processes of one host, durable.

Changes run on a thread of the store's own, for a commit waits for the disk; those that queue up
while one commit is under way share the next. The thread also sends the heartbeats, so a busy
event loop does not cost the session, and ends the overdue sessions of others. Reads run on the
event loop, on a connection of their own: they wait for no writer and for no disk, and see every
change that was committed. That connection never writes, so any change, this store's too, moves
its `data_version`; watches poll that.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bursar.errors import SessionExpiredError, StoreError
from bursar.stores.bounds import check_operations, check_path, check_timeout
from bursar.stores.credentials import PASSWORD_BYTES, Credentials, SessionRecord
from bursar.stores.database import Database
from bursar.stores.draft import Result
from bursar.stores.schema import explain, prepare
from bursar.stores.shorthand import Shorthand
from bursar.stores.watches import FlagWatch
from bursar.stores.writer import Writer
from bursar.world import MILLISECOND_NS, OPERATIONS_MAX, SECOND_NS, Clock, Operation, Stat

HEARTBEATS_PER_TIMEOUT = 4
WATCH_POLL_NS = 5 * MILLISECOND_NS
READ_PATIENCE_NS = SECOND_NS
"""A reader waits only for the recovery of the log after a process died in the midst of a commit."""

Value = TypeVar("Value")


class SqliteStore(Shorthand):
    """One session on the file. `open` makes it, in the event loop that will use it."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        reader: Database,
        *,
        timeout_ns: int,
        name: str,
        record: SessionRecord | None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._reader = reader
        self._timeout_ns = timeout_ns
        self._name = name
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._session = 0
        self._renewing = asyncio.Lock()
        self._trusted_until_ns = 0
        self._closed = False
        self._watches: dict[str, dict[FlagWatch, None]] = {}
        self._poll_timer: asyncio.TimerHandle | None = None
        self._data_version = 0
        self._seen_revision = 0
        self._writer = Writer(path, timeout_ns // HEARTBEATS_PER_TIMEOUT, clock.now, self._note_heartbeat)

    @classmethod
    async def open(
        cls,
        path: str,
        clock: Clock,
        *,
        timeout_ns: int,
        name: str = "",
        record: SessionRecord | None = None,
    ) -> SqliteStore:
        """Open the file, creating it if need be, and a session. Raises StoreError."""
        check_timeout(timeout_ns)
        reader = await asyncio.to_thread(_open_reader, path)
        store = cls(path, clock, reader, timeout_ns=timeout_ns, name=name, record=record)
        try:
            await store._begin(record.former() if record is not None else None)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session(self) -> int:
        return self._session

    @property
    def operations_max(self) -> int:
        return OPERATIONS_MAX

    @property
    def path(self) -> str:
        return self._path

    def trusted_until(self) -> int:
        return self._trusted_until_ns

    async def renew(self) -> int:
        """Whoever finds the session over at the same time gets the same new one."""
        before = self._session
        async with self._renewing:
            return self._session if self._session != before else await self._begin(None)

    async def _begin(self, former: Credentials | None) -> int:
        """A new session; the one before it ends in the same transaction."""
        sent_ns = self._clock.now()
        old = self._session
        password = secrets.token_bytes(PASSWORD_BYTES)

        def replace_session(database: Database) -> int:
            if former is not None:
                database.end_former(former)
            if old:
                database.end_session(old)
            return database.open_session(self._name, self._timeout_ns, password)

        session: int = await self._write(replace_session)
        self._expire(old)
        self._session = session
        self._writer.keep_alive(session)
        self._trusted_until_ns = sent_ns + self._timeout_ns * 2 // 3
        if self._record is not None:
            await asyncio.to_thread(self._record.keep, Credentials(session, password))
        return session

    async def get(self, path: str) -> tuple[bytes, Stat]:
        check_path(path)
        node = self._read(lambda database: database.get(path))
        return node.data, node.stat()

    async def exists(self, path: str) -> Stat | None:
        check_path(path)
        node = self._read(lambda database: database.read(path))
        return None if node is None else node.stat()

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return self._read(lambda database: database.children(path))

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        check_operations(operations)
        session, fixed = self._session, tuple(operations)
        results: list[Result] = await self._write(lambda database: database.transact(session, fixed))
        return results

    async def watch(self, path: str) -> FlagWatch:
        check_path(path)
        revision = self._read(lambda database: database.revision())
        if not self._watches:
            self._seen_revision = revision
            self._data_version = 0
        watch = FlagWatch(path, self._session)
        watch.on_close = lambda: self._forget(watch)
        self._watches.setdefault(path, {})[watch] = None
        if self._poll_timer is None:
            self._schedule_poll()
        return watch

    async def sync(self) -> int:
        return self._read(lambda database: database.revision())

    async def close(self) -> None:
        if self._closed:
            return
        session = self._session
        try:
            if session:
                await self._write(lambda database: database.end_session(session))
        finally:
            self._closed = True
            self._expire(session)
            await self._writer.stop()
            await asyncio.to_thread(self._reader.close)

    # Between the event loop and the file

    async def _write(self, work: Callable[[Database], Any]) -> Any:
        self._check_open()
        session = self._session
        future: asyncio.Future[Any] = self._loop.create_future()
        self._writer.submit(work, future)
        try:
            return await future
        except SessionExpiredError:
            self._expire(session)
            raise
        finally:
            self._poll()

    def _read(self, work: Callable[[Database], Value]) -> Value:
        """`work` on one state of the tree in which the session was alive."""
        self._check_open()
        try:
            self._reader.begin_reading()
            self._reader.check_session(self._session)
            return work(self._reader)
        except sqlite3.Error as error:
            raise explain(error, self._path) from error
        except SessionExpiredError:
            self._expire(self._session)
            raise
        finally:
            self._reader.rollback()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._path}: this store was closed: open another")

    def _note_heartbeat(self, session: int, alive: bool, sent_ns: int) -> None:
        if not alive:
            self._expire(session)
        elif session == self._session:
            self._trusted_until_ns = sent_ns + self._timeout_ns * 2 // 3

    # Watches

    def _expire(self, session: int) -> None:
        if session == self._session:
            self._trusted_until_ns = 0
        for watch in self._all_watches():
            if watch.session == session:
                self._forget(watch)
                watch.expire()

    def _all_watches(self) -> list[FlagWatch]:
        return [watch for watches in self._watches.values() for watch in watches]

    def _forget(self, watch: FlagWatch) -> None:
        watches = self._watches.get(watch.path, {})
        watches.pop(watch, None)
        if not watches:
            self._watches.pop(watch.path, None)
        if not self._watches and self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None

    def _schedule_poll(self) -> None:
        self._poll_timer = self._loop.call_later(WATCH_POLL_NS / SECOND_NS, self._poll_again)

    def _poll_again(self) -> None:
        self._poll_timer = None
        self._poll()
        if self._watches:
            self._schedule_poll()

    def _poll(self) -> None:
        """Fire the watches of what changed since the last time."""
        if not self._watches or self._closed:
            return
        try:
            version = self._reader.data_version()
            if version == self._data_version:
                return
            self._data_version = version
            touched = self._read_changes()
        except SessionExpiredError:
            self._expire(self._session)
        except sqlite3.Error:
            self._fire(None)  # whoever reads again is told what is wrong
        else:
            self._fire(touched)

    def _read_changes(self) -> list[str] | None:
        try:
            self._reader.begin_reading()
            self._seen_revision, touched = self._reader.changes_after(self._seen_revision)
            self._reader.check_session(self._session)
            return touched
        finally:
            self._reader.rollback()

    def _fire(self, touched: list[str] | None) -> None:
        for path in list(self._watches) if touched is None else touched:
            for watch in list(self._watches.get(path, ())):
                watch.fire()


def _open_reader(path: str) -> Database:
    prepare(path)
    try:
        return Database(path, lock_patience_ns=READ_PATIENCE_NS)
    except sqlite3.Error as error:
        raise explain(error, path) from error
