"""The thread that changes a SQLite store's file: group commits, heartbeats, the end of others."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bursar.errors import StoreError, StoreUnknownError
from bursar.stores.database import Database
from bursar.stores.schema import explain
from bursar.world import MILLISECOND_NS, SECOND_NS

GROUP_MAX = 128
"""The most changes that share a commit, so that one transaction stays bounded in memory."""

SWEEP_INTERVAL_NS = 50 * MILLISECOND_NS
"""How often each process looks for overdue sessions."""

Work = Callable[[Database], Any]
Change = tuple[Work, "asyncio.Future[Any]"]
Outcome = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Writer:
    """Runs changes one group at a time, each group in one transaction.

    Answers go back to the event loop through an eventfd of the store's own, which takes half as
    long as `call_soon_threadsafe`: a commit is short enough for that to show.

    A change that the tree does not allow fails alone: it wrote nothing. What the file or the disk
    does fails the whole group: before the commit nothing happened, during it nobody knows.
    """

    def __init__(
        self,
        path: str,
        heartbeat_interval_ns: int,
        now: Callable[[], int],
        on_heartbeat: Callable[[int, bool, int], None],
    ) -> None:
        """`on_heartbeat(session, alive, sent)` is called on the event loop, `sent` as `now` told
        it before the heartbeat began."""
        self._path = path
        self._heartbeat_interval_ns = heartbeat_interval_ns
        self._now = now
        self._on_heartbeat = on_heartbeat
        self._loop = asyncio.get_running_loop()
        self._calls: deque[Callable[[], None]] = deque()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._wakeup, self._run_calls)
        self._changes: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._group: list[Change] = []
        self._session = 0
        self._beat_due_ns = 0
        self._sweep_due_ns = 0
        self._stopping = False
        self._failure: BaseException | None = None
        # A daemon: a program that ends without closing its store is a crash, which the store
        # survives; it must not hang instead.
        self._thread = threading.Thread(target=self._run, name=f"bursar store {path}", daemon=True)
        self._thread.start()

    def submit(self, work: Work, future: asyncio.Future[Any]) -> None:
        """Run `work` in a transaction; `future` gets its result once that is durable."""
        if self._failure is not None:
            raise StoreError(f"{self._path}: the store's thread failed: {self._failure!r}: open it again")
        self._changes.put((work, future))
        if self._failure is not None:  # it failed between the two, and may not have seen this one
            self._fail_waiting(self._failure)

    def keep_alive(self, session: int) -> None:
        """Send heartbeats for this session from now on."""
        self._session = session

    async def stop(self) -> None:
        """Finish what was submitted and end the thread."""
        self._stopping = True
        self._changes.put(None)
        await asyncio.to_thread(self._thread.join)
        self._loop.remove_reader(self._wakeup)
        os.close(self._wakeup)

    def _run(self) -> None:
        try:
            database = Database(self._path)
            try:
                self._serve(database)
            finally:
                database.close()
        except BaseException as error:
            self._failure = error
            self._fail_waiting(error)
            raise

    def _serve(self, database: Database) -> None:
        while True:
            self._group = self._take_group()
            if self._group:
                self._tell(functools.partial(_settle, self._commit(database, self._group)))
            elif self._stopping:
                return
            self._tend(database)

    def _take_group(self) -> list[Change]:
        """The changes that wait; the first is waited for until something else is due."""
        try:
            change = self._changes.get(timeout=self._pause_s())
        except queue.Empty:
            return []
        group = [] if change is None else [change]
        while len(group) < GROUP_MAX and not self._changes.empty():
            change = self._changes.get_nowait()
            if change is not None:
                group.append(change)
        return group

    def _pause_s(self) -> float:
        due_ns = min(self._beat_due_ns, self._sweep_due_ns)
        return max(due_ns - time.monotonic_ns(), 1) / SECOND_NS

    def _commit(self, database: Database, group: list[Change]) -> list[Outcome]:
        try:
            database.begin()
            database.expire_due()
            outcomes = [_run_change(database, change) for change in group]
        except sqlite3.Error as error:
            _abandon(database)
            return [(future, None, explain(error, self._path)) for _, future in group]
        try:
            database.commit()
        except sqlite3.Error as error:
            _abandon(database)
            unknown = StoreUnknownError(f"{explain(error, self._path)}; read back whether it happened")
            return [(future, None, unknown) for _, future in group]
        return outcomes

    def _tell(self, call: Callable[[], None]) -> None:
        """Run `call` on the event loop. One that closed left its store behind: the thread ends."""
        if self._loop.is_closed():
            self._stopping = True
            return
        self._calls.append(call)
        os.eventfd_write(self._wakeup, 1)

    def _run_calls(self) -> None:
        os.eventfd_read(self._wakeup)
        while self._calls:
            self._calls.popleft()()

    def _tend(self, database: Database) -> None:
        """Heartbeat and sweep when they are due. What the file does not allow now is tried again
        when next due: until then the session is trusted less and less."""
        now_ns = time.monotonic_ns()
        try:
            if now_ns >= self._beat_due_ns:
                self._beat_due_ns = now_ns + self._heartbeat_interval_ns
                self._beat(database)
            if now_ns >= self._sweep_due_ns:
                self._sweep_due_ns = now_ns + SWEEP_INTERVAL_NS
                self._sweep(database)
        except sqlite3.Error:
            _abandon(database)

    def _beat(self, database: Database) -> None:
        session = self._session
        if session:
            sent_ns = self._now()
            alive = database.beat(session)
            self._tell(functools.partial(self._on_heartbeat, session, alive, sent_ns))

    def _sweep(self, database: Database) -> None:
        database.begin_reading()
        due = database.due()
        database.rollback()
        if due:
            database.begin()
            database.expire_due()
            database.commit()

    def _fail_waiting(self, error: BaseException) -> None:
        words = explain(error, self._path) if isinstance(error, sqlite3.Error) else None
        failure = words or StoreError(f"{self._path}: the store's thread failed: {error!r}")
        waiting: list[Outcome] = [(future, None, failure) for _, future in self._group]
        while not self._changes.empty():
            change = self._changes.get_nowait()
            if change is not None:
                waiting.append((change[1], None, failure))
        self._tell(functools.partial(_settle, waiting))


def _run_change(database: Database, change: Change) -> Outcome:
    work, future = change
    try:
        return future, work(database), None
    except StoreError as error:
        return future, None, error


def _settle(outcomes: list[Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue  # the caller was cancelled: the change stands
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _abandon(database: Database) -> None:
    """Leave a transaction that failed; SQLite may have left it already."""
    try:
        database.rollback()
    except sqlite3.Error:
        return  # the connection is in no transaction, or the next begin says what is wrong
