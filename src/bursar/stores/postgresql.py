"""`postgresql://user@a:5432,b:5432/db?schema=bursar`: a tree in a PostgreSQL database, version 13 or later.

One connection carries the changes, another reads, heartbeats and notices. Changes that wait while a commit
is under way share the next one (`postgresql_schema`); reads that wait share a statement. A change whose
connection broke before its answer is unknown; a read is asked again.

Sessions rest on no wall clock. A session is a count of beats in a row. Every store looks at all the counts
and, on its own boot clock, at how long it has seen one unchanged, from the *answer* to the look that first
showed it to the *sending* of one that still does; past the timeout it ends that session, in a transaction
that checks the count. A store that could not look for a while begins anew: then the server was stopped,
and nobody could beat. Trust is two thirds of the timeout from the sending of the last answered beat.

Watches stand on notices (`LISTEN`), which name the revisions that they tell of; a gap is read from the
table of changes, and a look at the revision every second stands behind it all.

Failover: a commit that was answered is on the standby that `synchronous_standby_names` asks for, beats
too. `sync` commits where there are standbys, so a primary that was deposed cannot answer it. The client is
asyncpg: it speaks the protocol on the event loop itself, in binary, hands notices over as they come, and
needs no libpq.

Address: `auth`, `ca`, `cert`, `key` as in `addresses`; `schema`, "bursar" unless told; `lossy=yes` accepts
servers that lose what they acknowledged.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult

import asyncpg

from bursar.errors import SessionExpiredError, StoreError, StoreUnknownError, UsageError
from bursar.stores.addresses import make_tls, read_address
from bursar.stores.bounds import check_operations, check_path, check_timeout, name_of
from bursar.stores.credentials import PASSWORD_BYTES, Credentials, SessionRecord
from bursar.stores.draft import Result
from bursar.stores.postgresql_changes import Change, pack, settle
from bursar.stores.postgresql_link import ERRORS, Connection, Facts, Lane, Seen, Servers, UnfitError
from bursar.stores.postgresql_schema import Statements, channel_of, prepare
from bursar.stores.shorthand import Shorthand
from bursar.stores.watches import FlagWatch, Watches
from bursar.world import MILLISECOND_NS, OPERATIONS_MAX, SECOND_NS, Clock, Operation, Stat

PORT = 5432
OPTIONS = ("schema", "lossy")
FORM = "postgresql://user@host:port,host:port/database?schema=bursar"
SCHEMA = "bursar"
HEARTBEATS_PER_TIMEOUT = 6
SWEEPS_PER_TIMEOUT = 8
SWEEP_MAX_NS = SECOND_NS
OPEN_MAX_NS = 15 * SECOND_NS
GROUP_MAX = 64
"""Changes of one commit: PostgreSQL keeps the numbers of 64 savepoints at hand."""

GROUP_OPERATIONS = 2048
READS_MAX = 256
SYNC, GET, CHILDREN, EXISTS = 0, 1, 2, 3


class Read:
    """One read, from its making to its answer."""

    __slots__ = ("kind", "made_ns", "path", "reply", "session")

    def __init__(self, kind: int, path: str, session: int, made_ns: int, reply: asyncio.Future[Any]) -> None:
        self.kind = kind
        self.path = path
        self.session = session
        self.made_ns = made_ns
        self.reply = reply


class PostgresqlStore(Shorthand):
    """Implements `bursar.world.Store`. See the module's docstring."""

    def __init__(
        self,
        servers: Servers,
        schema: str,
        clock: Clock,
        timeout_ns: int,
        name: str,
        record: SessionRecord | None,
    ) -> None:
        """Use `open`."""
        self._servers = servers
        self._schema = schema
        self._sql = Statements(schema)
        self._clock = clock
        self._timeout_ns = timeout_ns
        self._name = name
        self._record = record
        self._password = b""
        self._session = 0
        self._over = False
        self._closed = False
        self._trusted_until_ns = 0
        self._renewing = asyncio.Lock()
        limit_ns = max(timeout_ns // 2, SECOND_NS)
        self._limit_ns = limit_ns
        self._writer = Lane(servers, self._greet_writer, limit_ns)
        self._reader = Lane(servers, self._greet_reader, limit_ns)
        self._changes: deque[Change] = deque()
        self._reads: deque[Read] = deque()
        self._changes_wanted, self._reads_wanted = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watches = Watches()
        self._revision = 0
        self._counts: dict[int, tuple[int, int]] = {}
        self._beat_due_ns = self._sweep_due_ns = self._looked_ns = 0
        self._interval_ns = min(timeout_ns // SWEEPS_PER_TIMEOUT, SWEEP_MAX_NS)

    @classmethod
    async def open(
        cls,
        parts: SplitResult,
        clock: Clock,
        *,
        timeout_ns: int,
        name: str = "",
        record: SessionRecord | None = None,
    ) -> PostgresqlStore:
        """Open a session, laying out the schema if need be. Raises UsageError or StoreError."""
        check_timeout(timeout_ns)
        servers, schema = read_servers(parts)
        former = record.former() if record is not None else None
        if record is not None:
            servers.seen = Seen.read(record.seen())
        store = cls(servers, schema, clock, timeout_ns, name, record)
        try:
            await store._set_up()
            await store._begin(former)
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
    def server_facts(self) -> Facts:
        """What the server that leads said of itself at the last connecting."""
        assert self._servers.facts is not None, "the store is open"
        return self._servers.facts

    def trusted_until(self) -> int:
        return self._trusted_until_ns

    async def renew(self) -> int:
        """Whoever finds the session over at the same time gets the same new one."""
        before = self._session
        async with self._renewing:
            if self._session == before:
                await self._begin(None)
            return self._session

    async def close(self) -> None:
        if self._closed:
            return
        session, self._closed = self._session, True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if session and not self._over:
            with suppress(StoreError, *ERRORS):  # else the others end it, when its timeout is over
                await self._end(await self._writer.open(), Credentials(session, self._password))
        self._expire(session)
        self._fail_waiting(StoreError(f"{self._servers.address}: this store was closed: open another"))
        self._writer.close()
        self._reader.close()

    # The session

    async def _set_up(self) -> None:
        until_ns = self._clock.now() + OPEN_MAX_NS
        connection = await self._writer.open_until(until_ns, self._clock.now)
        try:
            await connection.within(OPEN_MAX_NS, prepare(connection.raw, self._schema))
        except asyncpg.PostgresError as error:
            raise StoreError(f"PostgreSQL at {self._servers.address}: {error}") from error
        await self._reader.open_until(until_ns, self._clock.now)
        loop = asyncio.get_running_loop()
        for work in (self._carry_changes, self._carry_reads):
            self._tasks.append(loop.create_task(work(), name=f"postgresql.{work.__name__}"))

    async def _begin(self, former: Credentials | None) -> None:
        """A new session; the one before it ends first."""
        if self._closed:
            raise StoreError(f"{self._servers.address}: this store was closed: open another")
        until_ns = self._clock.now() + self._timeout_ns
        old = Credentials(self._session, self._password) if self._session else former
        password = secrets.token_bytes(PASSWORD_BYTES)
        async with self._writer.lock:
            connection = await self._writer.reach(until_ns, self._clock.now)
            sent_ns = self._clock.now()
            try:
                if old is not None:
                    await self._end(connection, old)
                timeout_ms = self._timeout_ns // MILLISECOND_NS
                opening = connection.raw.fetchval(self._sql.open, self._name, password, timeout_ms)
                session: int = await connection.within(self._limit_ns, opening)
            except asyncpg.PostgresError as error:
                raise StoreUnknownError(f"the session was not opened: {error}") from error
        if self._session:
            self._expire(self._session)
        self._session, self._password, self._over = session, password, False
        self._trusted_until_ns = sent_ns + self._timeout_ns * 2 // 3
        await self._keep()

    async def _keep(self) -> None:
        if self._record is not None and self._session:
            mine = Credentials(self._session, self._password, str(self._servers.seen))
            await asyncio.to_thread(self._record.keep, mine)

    async def _end(self, connection: Connection, which: Credentials) -> None:
        ending = connection.raw.fetchval(self._sql.end, which.session, which.password, None)
        await connection.within(self._limit_ns, ending)

    def _expire(self, session: int) -> None:
        """It is over, as far as this store knows."""
        if session != self._session:
            return
        self._over = True
        self._trusted_until_ns = 0
        self._watches.expire(session)

    def _check(self) -> int:
        if self._closed:
            raise StoreError(f"{self._servers.address}: this store was closed: open another")
        if self._over:
            raise _over(self._session)
        return self._session

    # Changes

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        check_operations(operations)
        session = self._check()
        if not operations:
            await self._ask(SYNC, "/")
            return []
        reply: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._changes.append(Change(tuple(operations), session, self._clock.now(), reply))
        self._changes_wanted.set()
        return await reply

    async def _carry_changes(self) -> None:
        while True:
            await self._changes_wanted.wait()
            async with self._writer.lock:
                await self._carry_group()
            if not self._changes:
                self._changes_wanted.clear()

    async def _carry_group(self) -> None:
        if not self._changes:
            return
        try:
            connection = await self._writer.reach(
                self._changes[0].made_ns + self._timeout_ns, self._clock.now
            )
        except StoreUnknownError as error:
            self._fail_old(self._changes, error)
            return
        group = self._cut_group()
        try:
            applying = connection.raw.fetch(self._sql.apply, group[0].session, *pack(group))
            rows = await connection.within(self._limit_ns, applying)
            alive = settle(group, rows)
        except StoreError as error:
            _fail(group, error)
        except asyncpg.PostgresError as error:
            _fail(group, _explain(error, connection))
        else:
            if not alive:
                _fail(group, _over(group[0].session))
                self._expire(group[0].session)

    def _cut_group(self) -> list[Change]:
        """Of one session; the first goes however large it is."""
        group = [self._changes.popleft()]
        size = len(group[0].operations)
        while self._changes and len(group) < GROUP_MAX and self._changes[0].session == group[0].session:
            size += len(self._changes[0].operations)
            if size > GROUP_OPERATIONS:
                break
            group.append(self._changes.popleft())
        return group

    # Reads

    async def get(self, path: str) -> tuple[bytes, Stat]:
        check_path(path)
        row = await self._ask(GET, path)
        return row["data"], _stat(row, path)

    async def exists(self, path: str) -> Stat | None:
        check_path(path)
        row = await self._ask(EXISTS, path)
        return None if row["version"] is None else _stat(row, path)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        row = await self._ask(CHILDREN, path)
        _stat(row, path)
        return [name_of(found) for found in row["names"]]

    async def sync(self) -> int:
        revision: int = (await self._ask(SYNC, "/"))["revision"]
        return revision

    async def _ask(self, kind: int, path: str) -> Any:
        session = self._check()
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._reads.append(Read(kind, path, session, self._clock.now(), reply))
        self._reads_wanted.set()
        return await reply

    async def _carry_reads(self) -> None:
        """Reads, and beside them heartbeats and looks at others' when they are due."""
        while True:
            wait_ns = min(self._beat_due_ns, self._sweep_due_ns) - self._clock.now()
            if wait_ns > 0 and not self._reads:
                self._reads_wanted.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_ns / SECOND_NS):
                        await self._reads_wanted.wait()
            made_ns = self._reads[0].made_ns if self._reads else self._clock.now()
            try:
                connection = await self._reader.reach(made_ns + self._timeout_ns, self._clock.now)
                await self._tend(connection)
                await self._read_batch(connection)
            except StoreUnknownError as error:
                self._fail_old(self._reads, error)
            except asyncpg.PostgresError as error:
                self._fail_old(self._reads, _explain(error, connection))

    async def _read_batch(self, connection: Connection) -> None:
        batch = [self._reads.popleft() for _ in range(min(len(self._reads), READS_MAX))]
        batch = [read for read in batch if not read.reply.done()]
        if not batch:
            return
        try:
            if connection.facts.replicated and any(read.kind == SYNC for read in batch):
                await self._beat(connection)  # a primary that was deposed cannot commit
            paths, kinds = [read.path for read in batch], [read.kind for read in batch]
            session = self._session
            reading = connection.raw.fetch(self._sql.read, session, paths, kinds)
            rows = await connection.within(self._limit_ns, reading)
        except BaseException:
            self._reads.extendleft(reversed(batch))
            raise
        if not rows[0]["alive"]:
            self._expire(session)
        for read, row in zip(batch, rows, strict=True):
            if read.reply.done():
                continue
            if row["alive"] and read.session == session:
                read.reply.set_result(row)
            else:
                read.reply.set_exception(_over(read.session))

    # Time

    async def _tend(self, connection: Connection) -> None:
        now_ns = self._clock.now()
        if now_ns >= self._beat_due_ns and self._session and not self._over:
            await self._beat(connection)
        self._beat_due_ns = max(self._beat_due_ns, now_ns + 1)
        if now_ns >= self._sweep_due_ns:
            await self._sweep(connection)
            self._sweep_due_ns = self._clock.now() + self._interval_ns

    async def _beat(self, connection: Connection) -> None:
        session, sent_ns = self._session, self._clock.now()
        self._beat_due_ns = sent_ns + self._timeout_ns // HEARTBEATS_PER_TIMEOUT
        done = await connection.within(self._limit_ns, connection.raw.execute(self._sql.beat, session))
        if session != self._session or self._over:
            return
        if done.endswith(" 0"):
            self._expire(session)
        else:
            self._trusted_until_ns = sent_ns + self._timeout_ns * 2 // 3

    async def _sweep(self, connection: Connection) -> None:
        """End the sessions whose counts stood still for their timeouts. See the module's docstring."""
        sent_ns = self._clock.now()
        rows = await connection.within(self._limit_ns, connection.raw.fetch(self._sql.sweep))
        told_ns = self._clock.now()
        stopped = sent_ns - self._looked_ns > 3 * self._interval_ns or told_ns - sent_ns > self._interval_ns
        self._looked_ns = told_ns
        counts, due = {}, []
        for row in rows:
            if row["id"] is None:
                continue
            beats, since_ns = self._counts.get(row["id"], (-1, 0))
            if beats != row["beats"] or stopped:
                counts[row["id"]] = row["beats"], told_ns
                continue
            counts[row["id"]] = beats, since_ns
            if sent_ns - since_ns >= row["timeout_ms"] * MILLISECOND_NS:
                due.append((row["id"], beats))
        self._counts = counts
        for session, beats in due:
            ending = connection.raw.fetchval(self._sql.end, session, None, beats)
            await connection.within(self._limit_ns, ending)
        await self._catch_up(connection, rows[0]["revision"])

    # Watches

    async def watch(self, path: str) -> FlagWatch:
        check_path(path)
        watch = self._watches.open(path, self._check())
        try:
            await self._ask(EXISTS, path)
        except BaseException:
            watch.close()
            raise
        return watch

    def _hear(self, notice: str) -> None:
        """What was committed: "AFTER REVISION ENDED", and the paths if they are few."""
        head, line, paths = notice.partition("\n")
        after, revision, ended = map(int, head.split())
        if ended == self._session:
            self._expire(ended)
        if after == self._revision and (line or after == revision):
            self._revision = revision
            self._watches.fire(paths.split("\n") if paths else ())
        elif revision > self._revision:
            self._sweep_due_ns = 0  # something is missing: read it
            self._reads_wanted.set()

    async def _catch_up(self, connection: Connection, revision: int) -> None:
        """Fire the watches of what no notice told."""
        before = self._revision
        if revision <= before:
            return
        rows = await connection.within(self._limit_ns, connection.raw.fetch(self._sql.changes, before))
        whole = bool(rows) and rows[0]["after"] <= before
        self._revision = max(self._revision, rows[-1]["revision"] if rows else revision)
        self._watches.fire([path for row in rows for path in row["paths"].split("\n")] if whole else None)

    # Connections

    async def _greet_writer(self, connection: Connection) -> None:
        return

    async def _greet_reader(self, connection: Connection) -> None:
        """Notices are heard before it is read what was missed."""
        await connection.listen(channel_of(self._schema), self._hear, self._servers)
        rows = await connection.within(self._limit_ns, connection.raw.fetch(self._sql.sweep))
        revision = rows[0]["revision"]
        if revision < self._revision and not self._servers.lossy:
            raise UnfitError(
                f"PostgreSQL at {self._servers.address} is at revision {revision}, and {self._revision} was "
                "seen: it lost changes; go on with the server that has them, or `bursar store adopt` this one"
            )
        self._looked_ns = 0  # whoever was here before may have been stopped: count anew
        if self._revision == 0:
            self._revision = revision
        await self._catch_up(connection, revision)
        await self._keep()

    # Failing

    def _fail_old(self, waiting: deque[Any], error: StoreError) -> None:
        """Those that waited a whole timeout are told so."""
        before_ns = self._clock.now() - self._timeout_ns
        while waiting and waiting[0].made_ns <= before_ns:
            _fail([waiting.popleft()], error)

    def _fail_waiting(self, error: StoreError) -> None:
        _fail([*self._changes, *self._reads], error)
        self._changes.clear()
        self._reads.clear()


def _fail(waiting: Sequence[Any], error: StoreError) -> None:
    for each in waiting:
        if not each.reply.done():
            each.reply.set_exception(type(error)(str(error)))


def _over(session: int) -> SessionExpiredError:
    return SessionExpiredError(
        f"session {session} is over, its ephemeral nodes are gone: renew() opens a new one"
    )


def _explain(error: asyncpg.PostgresError, connection: Connection) -> StoreError:
    """Nothing was done. A server that cannot now, as while another client holds the lock, or since it became
    a standby, is like one that does not answer: nodes wait for it."""
    passing = (
        asyncpg.QueryCanceledError, asyncpg.ReadOnlySQLTransactionError, asyncpg.OperatorInterventionError,
        asyncpg.DeadlockDetectedError, asyncpg.InsufficientResourcesError,
    )  # fmt: skip
    if isinstance(error, passing):
        connection.drop()
        return StoreUnknownError(f"PostgreSQL cannot do it now: {error}")
    return StoreError(f"PostgreSQL: {error}")


def _stat(row: Any, path: str) -> Stat:
    from bursar.errors import NodeMissingError

    if row["version"] is None:
        raise NodeMissingError(f"{path}: no such node")
    return Stat(row["version"], row["created"], row["modified"], row["owner"], row["children"])


def read_servers(parts: SplitResult) -> tuple[Servers, str]:
    """Raises UsageError, without repeating a password."""
    address = read_address(parts, PORT, FORM, OPTIONS)
    database = address.path.lstrip("/")
    if not database or "/" in database:
        raise UsageError(f"store: name one database, {FORM}")
    schema = address.options.get("schema", SCHEMA)
    if not schema.isidentifier() or not schema.isascii() or len(schema) > 48:
        raise UsageError(f"store: schema={schema!r}: use letters, digits and '_', at most 48")
    lossy = address.options.get("lossy", "no")
    if lossy not in ("yes", "no"):
        raise UsageError("store: lossy is yes or no")
    return Servers(address, database, make_tls(address.tls), lossy == "yes"), schema
