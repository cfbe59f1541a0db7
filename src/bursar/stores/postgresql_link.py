"""Connections to the PostgreSQL server that leads, of the hosts of an address.

Which server that is, is asked at each connecting, of all hosts at once: one that recovers is a standby,
and of two that do not the one on the higher timeline was promoted later. What this process (or, by its
`SessionRecord`, an earlier life of it) has once seen is the least that it takes: a server on a lower
timeline is an old leader that came back, and takes writes that nobody else will ever see.

Refused as long as the address does not say `lossy=yes`: a server that has standbys and commits without
            "failover loses what was acknowledged; set it to 'ANY 1 (*)' and reload, or accept that with "
            "?lossy=yes"

A commit whose wait for the standby was cancelled is done here and maybe nowhere else. PostgreSQL says so
in a warning beside the answer, found by the place in its source, for the words are translated.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import asyncpg

from bursar.errors import StoreError, StoreUnknownError
from bursar.stores.addresses import Address
from bursar.world import MILLISECOND_NS, SECOND_NS

CONNECT_MAX_S = 2.0
RETRY_MIN_S, RETRY_MAX_S = 0.05, 0.5
PROOF_MAX_S = 2.0
CANCELLED_WAIT = "SyncRepWaitForLSN"
WEAK_COMMITS = ("off", "local", "remote_write")

Value = TypeVar("Value")
ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

_FACTS = """
SELECT pg_is_in_recovery() AS recovers,
    CASE WHEN pg_is_in_recovery() THEN 0
         ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END AS timeline,
    current_setting('server_version_num')::int AS version,
    current_setting('synchronous_standby_names') AS standbys,
    current_setting('synchronous_commit') AS commits,
    current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
    (SELECT count(*) FROM pg_stat_replication r WHERE coalesce(r.state, '') <> 'backup' AND NOT EXISTS (
        SELECT 1 FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
    ) AS followers,
    (SELECT system_identifier::text FROM pg_control_system()) AS system
"""


class UnfitError(StoreError):
    """A server that answers, and cannot be the store: asking again would not help."""


class Facts(NamedTuple):
    """What a server says of itself."""

    recovers: bool
    timeline: int
    version: int
    standbys: str
    commits: str
    fsync: str
    full_page_writes: str
    followers: int
    system: str

    @property
    def replicated(self) -> bool:
        """Whether a commit waits for another server, so that one that was deposed commits nothing."""
        return bool(self.standbys.strip())


@dataclass(slots=True)
class Seen:
    """How far the history of this store went: which cluster, and its highest timeline."""

    system: str = ""
    timeline: int = 0

    @classmethod
    def read(cls, text: str) -> Seen:
        system, _, timeline = text.partition(" ")
        return cls(system, int(timeline)) if timeline.isdecimal() else cls()

    def __str__(self) -> str:
        return f"{self.system} {self.timeline}"


class Servers:
    """Where the servers are, and what was seen of them."""

    def __init__(self, address: Address, database: str, tls: ssl.SSLContext | None, lossy: bool) -> None:
        self.address = address
        self.seen = Seen()
        self.facts: Facts | None = None
        self._database = database
        self._tls = tls
        self.lossy = lossy

    async def connect(self, limit_s: float) -> Connection:
        """To the one that leads. Raises UnfitError, or StoreError where there is none at the moment."""
        hosts = self.address.hosts
        limit_s = min(limit_s, CONNECT_MAX_S)
        answers = await asyncio.gather(
            *(self.connect_to(*host, limit_s) for host in hosts), return_exceptions=True
        )
        leading = [
            answer for answer in answers if isinstance(answer, Connection) and not answer.facts.recovers
        ]
        leading.sort(key=lambda connection: connection.facts.timeline)
        best = leading.pop() if leading else None
        for answer in answers:
            if isinstance(answer, Connection) and answer is not best:
                answer.drop()
        if best is None:
            raise _explain(answers, str(self.address))
        try:
            self._accept(best.facts)
        except BaseException:
            best.drop()
            raise
        return best

    async def connect_to(self, host: str, port: int, limit_s: float) -> Connection:
        async with asyncio.timeout(limit_s):
            raw = await asyncpg.connect(
                host=host,
                port=port,
                user=self.address.user or None,
                password=self.address.password or None,
                database=self._database or None,
                ssl=self._tls if self._tls is not None else "prefer",
                timeout=limit_s,
            )
            try:
                return Connection(raw, (host, port), Facts(*await raw.fetchrow(_FACTS)))
            except BaseException:
                raw.terminate()
                raise

    def _accept(self, facts: Facts) -> None:
        seen = self.seen
        if seen.system == facts.system and facts.timeline < seen.timeline:
            raise UnfitError(
                f"PostgreSQL at {self.address} is on timeline {facts.timeline}, and {seen.timeline} was "
                "seen: an old primary came back; stop it, or make it a standby of the new one"
            )
        if not self.lossy:
            check_lossless(facts, str(self.address))
        self.facts = facts
        self.seen = Seen(facts.system, facts.timeline)


def check_lossless(facts: Facts, where: str) -> None:
    """Raises UnfitError for a server that would lose what it acknowledged."""
    for setting in ("fsync", "full_page_writes"):
        if getattr(facts, setting) != "on":
            raise UnfitError(
                f"PostgreSQL at {where} has {setting} off: what it acknowledged is lost with the power; turn "
                "it on, or accept that with ?lossy=yes"
            )
    if facts.followers and not facts.replicated:
        raise UnfitError(
            f"PostgreSQL at {where} has {facts.followers} standby and no synchronous_standby_names: a "
            "failover loses what was acknowledged; set it to 'ANY 1 (*)' and reload, or accept that with "
            "?lossy=yes"
        )


def _explain(answers: list[Connection | BaseException], where: str) -> StoreError:
    """Why nobody leads."""
    for answer in answers:
        if isinstance(answer, asyncpg.InvalidAuthorizationSpecificationError):
            return UnfitError(f"PostgreSQL at {where} refuses the user: {answer}")
        if isinstance(answer, asyncpg.InvalidCatalogNameError | asyncpg.InsufficientPrivilegeError):
            return UnfitError(f"PostgreSQL at {where}: {answer}: create the database, or correct the address")
        if isinstance(answer, ssl.SSLError):
            return UnfitError(f"PostgreSQL at {where}: TLS: {answer}")
        if isinstance(answer, BaseException) and not isinstance(answer, Exception):
            raise answer
    words = "; ".join(
        str(answer) or "no answer in time" if isinstance(answer, BaseException) else "a standby"
        for answer in answers
    )
    return StoreError(
        f"no PostgreSQL server leads at {where} ({words}): is it running, and is this the address?"
    )


class Connection:
    """One connection. A command that takes longer than its limit costs the connection, for then nobody
    knows whether it was done."""

    def __init__(self, raw: Any, host: tuple[str, int], facts: Facts) -> None:
        self.raw = raw
        self.host = host
        self.facts = facts
        self._cancelled_waits = 0
        raw.add_log_listener(self._hear)

    async def set_up(self, limit_ns: int) -> None:
        """What the store's promises need, whatever the server's or the user's settings are."""
        wanted = {
            "default_transaction_isolation": "read committed",
            "statement_timeout": str(limit_ns // MILLISECOND_NS),
            "idle_in_transaction_session_timeout": str(limit_ns // MILLISECOND_NS),
        }
        if self.facts.commits in WEAK_COMMITS:
            wanted["synchronous_commit"] = "on"
        for name, value in wanted.items():
            await self.raw.execute("SELECT set_config($1, $2, false)", name, value)

    async def listen(self, channel: str, hear: Callable[[str], None], servers: Servers) -> None:
        """Hear what is told there. That it is heard is proved, by a notice through another connection: a
        pooler takes LISTEN, and gives the server's connection to somebody else."""
        proof, heard = f"proof {secrets.token_hex(8)}", asyncio.Event()

        def listen(raw: Any, pid: int, name: str, payload: str) -> None:
            if payload == proof:
                heard.set()
            elif not payload.startswith("proof "):
                hear(payload)

        await self.raw.add_listener(channel, listen)
        other = await servers.connect_to(*self.host, CONNECT_MAX_S)
        await other.raw.execute("SELECT pg_notify($1, $2)", channel, proof)
        other.drop()
        try:
            async with asyncio.timeout(PROOF_MAX_S):
                await heard.wait()
        except TimeoutError:
            raise UnfitError(
                f"PostgreSQL at {servers.address} does not deliver notices: is there a pooler "
                "in transaction mode? Give bursar the server's own address, or a pool in session mode"
            ) from None

    async def within(self, limit_ns: int, work: Coroutine[Any, Any, Value]) -> Value:
        """Raises StoreUnknownError where nobody knows whether it was done."""
        before = self._cancelled_waits
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=limit_ns / SECOND_NS)
            if not task.done():
                raise StoreUnknownError("PostgreSQL did not answer in time: it may have happened, read back")
            result = task.result()
        except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError) as error:
            raise StoreUnknownError(
                f"the connection was lost ({error}): it may have happened, read back"
            ) from error
        except asyncpg.PostgresError as error:
            if self.raw.is_closed():
                raise StoreUnknownError(
                    f"the server hung up ({error}): it may have happened, read back"
                ) from error
            raise
        finally:
            if not task.done():
                self.drop()
                task.add_done_callback(_forget)
        if self._cancelled_waits != before:
            raise StoreUnknownError("the wait for the standby was cancelled: it may be lost, read back")
        return result

    def _hear(self, raw: Any, message: Any) -> None:
        if getattr(message, "server_source_function", "") == CANCELLED_WAIT:
            self._cancelled_waits += 1

    @property
    def is_lost(self) -> bool:
        return bool(self.raw.is_closed())

    def drop(self) -> None:
        self.raw.terminate()


def _forget(task: asyncio.Future[Any]) -> None:
    """Its connection was dropped, so how it ends says nothing."""
    if not task.cancelled():
        task.exception()


class Lane:
    """One connection, which carries work one piece after another, and is made anew when it breaks.

    `prepare(connection)` runs on each new one. Work waits while there is none, at most `patience_ns`."""

    def __init__(
        self, servers: Servers, prepare: Callable[[Connection], Awaitable[None]], patience_ns: int
    ) -> None:
        self.lock = asyncio.Lock()
        self._servers = servers
        self._prepare = prepare
        self._patience_ns = patience_ns
        self._connection: Connection | None = None

    async def open(self) -> Connection:
        """The connection, made if need be: one try. Raises StoreError."""
        if self._connection is not None and not self._connection.is_lost:
            return self._connection
        connection = await self._servers.connect(self._patience_ns / SECOND_NS / 2)
        try:
            await connection.within(self._patience_ns, connection.set_up(self._patience_ns))
            await self._prepare(connection)
        except BaseException as error:
            connection.drop()
            if isinstance(error, ERRORS):
                raise StoreError(f"PostgreSQL at {self._servers.address}: {error}") from error
            raise
        self._connection = connection
        return connection

    async def open_until(self, until_ns: int, now: Callable[[], int]) -> Connection:
        """The same, again and again where trying again may help."""
        while True:
            try:
                return await self.open()
            except UnfitError:
                raise
            except StoreError:
                if now() >= until_ns:
                    raise
            await asyncio.sleep(RETRY_MAX_S)

    async def reach(self, until_ns: int, now: Callable[[], int]) -> Connection:
        """The connection, as soon as there is one. Raises StoreUnknownError when the time is up."""
        pause_s = RETRY_MIN_S
        while True:
            try:
                return await self.open()
            except StoreError as error:
                problem = error
            if now() >= until_ns:
                raise StoreUnknownError(str(problem)) from problem
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()
