"""`zookeeper://a:2181,b:2181,c:2181/chroot`: a tree shared by several hosts. ZooKeeper 3.6 or later.

What is asked here is what ZooKeeper does; the differences that the contract hides:
- every change is a transaction, so a lost reply is one error (`StoreUnknownError`), never a retry;
- watches are persistent ones and need no re-arming; after a reconnect they are set again and then
  every one of them fires, because changes may have been missed;
- "absent" is checked by creating and deleting the node in the transaction;
- a session is trusted for two thirds of its timeout from the sending of what was last answered.

**Why a client of our own.** kazoo (2.11) runs threads of its own beside the event loop, has no persistent
watches and no check of absence in a transaction, and does not say until when a session can be trusted;
without the last a holder cannot know when to stop. What bursar asks of ZooKeeper is a dozen requests.

**What it supports**: transactions, persistent watches, pipelining, reconnecting to another server within a
session, TLS with certificates, users by digest. **What it does not**: SASL (Kerberos, DIGEST-MD5), so not
servers that are set to refuse sessions without it (`sessionRequireClientSASLAuth`): let bursar in by its
certificate or by a digest instead; containers and nodes with a time to live; reconfiguration (the address
lists the servers, and a balancer or a name with several addresses is one of them).

Address: as in `addresses`. With a user, nodes are created for that user alone (digest). `?buffer=BYTES` is
the servers' `jute.maxbuffer`, where it is not the one that they come with: a server breaks the connection
of whoever sends more, so more is never sent. It is compared with what is sent, chroot and access lists
included.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha1
from typing import Any
from urllib.parse import SplitResult

from bursar.errors import (
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
    StoreError,
    TooLargeError,
    UsageError,
)
from bursar.stores import zookeeper_wire as wire
from bursar.stores.addresses import make_tls, read_address
from bursar.stores.bounds import check_operations, check_path, check_timeout
from bursar.stores.credentials import SessionRecord
from bursar.stores.draft import Result
from bursar.stores.shorthand import Shorthand
from bursar.stores.watches import FlagWatch
from bursar.stores.zookeeper_link import BUFFER_BYTES, Ensemble, Link
from bursar.world import OPERATIONS_MAX, Clock, Create, Operation, Stat

PORT = 2181
FORM = "zookeeper://host:port,host:port/chroot"
BUFFER_MIN_BYTES = 1024


class ZookeeperStore(Shorthand):
    """Implements `bursar.world.Store`. See the module's docstring."""

    def __init__(
        self,
        ensemble: Ensemble,
        chroot: str,
        clock: Clock,
        timeout_ns: int,
        record: SessionRecord | None = None,
    ) -> None:
        """Use `open`."""
        self._ensemble = ensemble
        self._chroot = chroot
        self._clock = clock
        self._timeout_ns = timeout_ns
        self._record = record
        self._acl = _make_access(ensemble.auth)
        self._link = Link(ensemble, clock, timeout_ns)
        self._renewing = asyncio.Lock()
        self._watches: dict[str, dict[FlagWatch, None]] = {}

    @classmethod
    async def open(
        cls, parts: SplitResult, clock: Clock, *, timeout_ns: int, record: SessionRecord | None = None
    ) -> ZookeeperStore:
        """Open a session. Raises UsageError or StoreError."""
        check_timeout(timeout_ns)
        ensemble, chroot = read_ensemble(parts)
        former = record.former() if record is not None else None
        if former is not None:
            await Link(ensemble, clock, timeout_ns).end(former)
        store = cls(ensemble, chroot, clock, timeout_ns, record)
        await store._begin()
        return store

    @property
    def session(self) -> int:
        return self._link.session

    @property
    def timeout_ns(self) -> int:
        """The timeout that the servers agreed to, which may differ from the one asked for."""
        return self._link.timeout_ns

    @property
    def operations_max(self) -> int:
        return OPERATIONS_MAX

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        return self._ensemble.hosts

    def trusted_until(self) -> int:
        return self._link.trusted_until_ns

    async def renew(self) -> int:
        """Whoever finds the session over at the same time gets the same new one."""
        before = self._link
        async with self._renewing:
            if self._link is before:
                await before.close()
                self._link = Link(self._ensemble, self._clock, self._timeout_ns)
                self._link.revision = before.revision  # a server that lags behind that is not taken
                await self._begin()
            return self._link.session

    async def _begin(self) -> None:
        link = self._link
        link.on_event = self._changed
        link.on_gap = self._watch_again
        link.on_end = self._expire
        await link.open()
        try:
            if self._record is not None:
                await asyncio.to_thread(self._record.keep, link.credentials)
            await self._make_chroot()
        except BaseException:
            await link.close()
            raise

    async def _make_chroot(self) -> None:
        names = self._chroot.split("/")[1:]
        for depth in range(1, len(names) + 1):
            path = "/" + "/".join(names[:depth])
            if await self._exists(path) is None:
                try:
                    await self._transact([Create(path)], "")
                except NodeExistsError:
                    continue  # another session was faster, which is as good

    # Reads

    async def get(self, path: str) -> tuple[bytes, Stat]:
        check_path(path)
        body = wire.text(wire.rooted(self._chroot, path)) + b"\0"
        found: tuple[bytes, Stat] = await self._link.ask(wire.GET_DATA, body, path, _read_data)
        return found

    async def exists(self, path: str) -> Stat | None:
        check_path(path)
        return await self._exists(wire.rooted(self._chroot, path))

    async def _exists(self, path: str) -> Stat | None:
        body = wire.text(path) + b"\0"
        try:
            stat: Stat = await self._link.ask(wire.EXISTS, body, path, _read_stat)
        except NodeMissingError:
            return None
        return stat

    async def children(self, path: str) -> list[str]:
        check_path(path)
        body = wire.text(wire.rooted(self._chroot, path)) + b"\0"
        names: list[str] = await self._link.ask(wire.GET_CHILDREN, body, path, _read_names)
        if path == "/" and not self._chroot:
            names = [name for name in names if name != "zookeeper"]  # the server's own
        return sorted(names)

    async def sync(self) -> int:
        body = wire.text(self._chroot or "/")
        revision: int = await self._link.ask(wire.SYNC, body, "sync", _read_revision)
        return revision

    # Changes

    async def transact(self, operations: Sequence[Operation]) -> list[Result]:
        check_operations(operations)
        if not operations:
            self._link._check()
            return []
        return await self._transact(operations, self._chroot)

    async def _transact(self, operations: Sequence[Operation], chroot: str) -> list[Result]:
        body, positions = wire.transaction(operations, chroot, self._acl)
        if len(body) + wire.REQUEST_HEAD_BYTES > self._ensemble.buffer_bytes:
            raise TooLargeError(
                f"{len(operations)} operations are {len(body)} bytes for ZooKeeper, and its servers take "
                f"{self._ensemble.buffer_bytes} (jute.maxbuffer): split them, or raise that and say ?buffer="
            )

        def read(answer: bytes, offset: int, revision: int) -> list[Result]:
            results = wire.read_results(answer, offset, len(positions))
            if isinstance(results, tuple):
                record, code = results
                error = wire.make_error(code, operations[positions[record]].path)
                error.position = positions[record]
                raise error
            return _fold(results, positions, chroot)

        what = f"transaction of {len(operations)} operations"
        done: list[Result] = await self._link.ask(wire.MULTI, body, what, read, changes=True)
        return done

    # Watches

    async def watch(self, path: str) -> FlagWatch:
        check_path(path)
        self._link._check()
        watch = FlagWatch(path, self._link.session)
        watch.on_close = lambda: self._forget(watch)
        self._watches.setdefault(path, {})[watch] = None
        try:
            await self._add_watch(path)
        except BaseException:
            self._forget(watch)
            raise
        return watch

    async def _add_watch(self, path: str) -> None:
        body = wire.text(wire.rooted(self._chroot, path)) + bytes(4)
        await self._link.ask(wire.ADD_WATCH, body, f"watch of {path}", _read_nothing)

    def _forget(self, watch: FlagWatch) -> None:
        watches = self._watches.get(watch.path, {})
        if watches.pop(watch, self) is None and not watches:
            del self._watches[watch.path]
            if not (self._link.expired or self._link.closed):
                _ignore(self._remove_watch(watch.path))

    async def _remove_watch(self, path: str) -> None:
        if path in self._watches:
            return
        body = wire.text(wire.rooted(self._chroot, path)) + wire.WATCH_ANY.to_bytes(4, "big")
        try:
            await self._link.ask(wire.REMOVE_WATCHES, body, f"watch of {path}", _read_nothing)
        except StoreError:
            return  # it is gone with its connection or its session
        if path in self._watches:
            await self._add_watch(path)  # somebody came while it was being removed
            self._changed_below(path)

    def _changed(self, rooted: str) -> None:
        path = rooted[len(self._chroot) :] or "/"
        self._changed_below(path)

    def _changed_below(self, path: str) -> None:
        for watch in list(self._watches.get(path, ())):
            watch.fire()

    def _watch_again(self) -> None:
        """A new connection: the server has forgotten the watches, and changes may have been missed."""
        for path in self._watches:
            _ignore(self._watch_path_again(path))

    async def _watch_path_again(self, path: str) -> None:
        try:
            await self._add_watch(path)
        except StoreError:
            return  # the session ended, which its watches are told by _expire
        self._changed_below(path)

    def _expire(self) -> None:
        watches, self._watches = self._watches, {}
        for of_path in watches.values():
            for watch in of_path:
                watch.expire()

    async def close(self) -> None:
        await self._link.close()


_background: dict[Any, None] = {}


def _ignore(work: Any) -> None:
    """Start work whose outcome nobody waits for. Its first step runs at the next turn of the loop,
    in the order of the calls."""
    task = asyncio.get_running_loop().create_task(_quietly(work))
    _background[task] = None
    task.add_done_callback(_background.pop)


async def _quietly(work: Any) -> None:
    try:
        await work
    except SessionExpiredError:
        return


def _fold(results: list[Result], positions: Sequence[int], chroot: str) -> list[Result]:
    """One result an operation; a check of absence left two, of which neither is wanted."""
    folded: list[Result] = []
    for number, result in enumerate(results):
        if number + 1 < len(positions) and positions[number + 1] == positions[number]:
            continue
        folded.append(result[len(chroot) :] if isinstance(result, str) else result)
    return folded


def _read_data(body: bytes, offset: int, revision: int) -> tuple[bytes, Stat]:
    return wire.read_data(body, offset)


def _read_stat(body: bytes, offset: int, revision: int) -> Stat:
    return wire.read_stat(body, offset)


def _read_names(body: bytes, offset: int, revision: int) -> list[str]:
    return wire.read_names(body, offset)


def _read_revision(body: bytes, offset: int, revision: int) -> int:
    return revision


def _read_nothing(body: bytes, offset: int, revision: int) -> None:
    return None


def _make_access(auth: str | None) -> bytes:
    """For the user alone. (ZooKeeper's "auth" would admit every identity of the session, and with
    it whoever shows the same certificate.)"""
    if auth is None:
        return wire.access("world", "anyone")
    user = auth.partition(":")[0]
    digest = b64encode(sha1(auth.encode(), usedforsecurity=False).digest()).decode()
    return wire.access("digest", f"{user}:{digest}")


# Addresses


def read_ensemble(parts: SplitResult) -> tuple[Ensemble, str]:
    """Raises UsageError, without repeating a password."""
    address = read_address(parts, PORT, FORM, ("buffer",))
    if address.user and not address.password:
        raise UsageError("store: write the user with a password, zookeeper://user:password@host:port/chroot")
    if address.path:
        check_path(address.path)
    auth = f"{address.user}:{address.password}" if address.user else None
    buffer_bytes = _read_buffer(address.options.get("buffer", str(BUFFER_BYTES)))
    return Ensemble(address.hosts, auth, make_tls(address.tls), buffer_bytes), address.path


def _read_buffer(text: str) -> int:
    if not text.isdecimal() or int(text) < BUFFER_MIN_BYTES:
        raise UsageError(
            f"store: buffer={text} is no jute.maxbuffer: a number of bytes, at least {BUFFER_MIN_BYTES}"
        )
    return int(text)
