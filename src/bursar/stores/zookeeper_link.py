"""One session with a ZooKeeper ensemble: connecting, pipelining, heartbeats, reconnecting.

A link is one session from its opening to its end. While its connection is broken, requests wait;
those that were sent and not answered are *unknown* if they change something, and sent again if
they only read. The link never opens a second session by itself: when the server says that the
session is over, every request from then on is told so.

Trust. The server counts a session's timeout from each packet that it receives; the link knows when
it sent those that were answered. So the session cannot have ended before (sending of the last
answered request) + timeout; of that, two thirds are trusted, because a follower tells its leader
of heartbeats only every half tick.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bursar.errors import FormatError, SessionExpiredError, StoreError, StoreUnknownError
from bursar.stores import zookeeper_wire as wire
from bursar.stores.credentials import Credentials
from bursar.world import MILLISECOND_NS, SECOND_NS, Clock

HEARTBEATS_PER_TIMEOUT = 6
SILENCE_PER_TIMEOUT = 2
"""A connection that owes an answer and says nothing for half the timeout is given up for another."""

CONNECT_MAX_S = 2.0
RETRY_MIN_S, RETRY_MAX_S = 0.02, 0.3
OPEN_MAX_S = 15.0
BUFFER_BYTES = 0xFFFFF
"""`jute.maxbuffer` as ZooKeeper comes."""

Decode = Callable[[bytes, int, int], Any]
"""Makes the result out of (body, offset, revision)."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Where the servers are, and what they are told."""

    hosts: tuple[tuple[str, int], ...]
    auth: str | None = None
    tls: ssl.SSLContext | None = None
    buffer_bytes: int = BUFFER_BYTES

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


class Request:
    """One request, from its making to its answer."""

    __slots__ = ("body", "changes", "decode", "kind", "made_ns", "reply", "sent_ns", "what")

    def __init__(
        self, kind: int, body: bytes, what: str, decode: Decode, changes: bool, reply: asyncio.Future[Any]
    ) -> None:
        self.kind = kind
        self.body = body
        self.what = what
        self.decode = decode
        self.changes = changes
        self.reply = reply
        self.made_ns = 0
        self.sent_ns = 0


class Link:
    """See above. `on_event(path)` is called for each watched change, `on_gap()` after a reconnect,
    when changes may have been missed, and `on_end()` once, when the session is over."""

    def __init__(self, ensemble: Ensemble, clock: Clock, timeout_ns: int) -> None:
        self.session = 0
        self.timeout_ns = timeout_ns
        self.revision = 0
        self.trusted_until_ns = 0
        self.expired = False
        self.closed = False
        self.on_event: Callable[[str], None] = lambda path: None
        self.on_gap: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self._ensemble = ensemble
        self._clock = clock
        self._password = bytes(wire.PASSWORD_BYTES)
        self._wire: Wire | None = None
        self._why_not = "not tried"
        self._waiting: deque[Request] = deque()
        self._xid = 0
        self._last_sent_ns = 0
        self._hosts: list[tuple[str, int]] = list(ensemble.hosts)
        random.shuffle(self._hosts)  # so that many clients spread over the servers
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the session. Raises StoreError when no server answers in time."""
        try:
            async with asyncio.timeout(OPEN_MAX_S):
                await self._connect_somewhere()
        except TimeoutError as error:
            self.closed = True
            raise StoreError(
                f"no ZooKeeper server answers at {self._ensemble} ({self._why_not}): "
                "is it running, and is this the address?"
            ) from error
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="zookeeper.keeper")

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.session, self._password)

    async def end(self, former: Credentials) -> None:
        """End the session of a process that is gone: take it over, and close it. If no server is
        reached in time, its own timeout ends it."""
        self.session, self._password, _ = former
        try:
            async with asyncio.timeout(CONNECT_MAX_S):
                await self._connect_somewhere()
        except TimeoutError:
            self.closed = True
        await self.close()

    async def ask(self, kind: int, body: bytes, what: str, decode: Decode, *, changes: bool = False) -> Any:
        """Send a request and wait for its answer."""
        self._check()
        loop = asyncio.get_running_loop()
        request = Request(kind, body, what, decode, changes, loop.create_future())
        request.made_ns = self._clock.now()
        if self._wire is None:
            self._waiting.append(request)
        else:
            self._send(self._wire, request)
        return await request.reply

    async def close(self) -> None:
        """End the session at the server, if it can be reached, and let go of the connection."""
        if self.closed:
            return
        try:
            if self._wire is not None and not self.expired:
                async with asyncio.timeout(CONNECT_MAX_S):
                    await self.ask(wire.CLOSE, b"", "closing", lambda body, offset, revision: None)
        except (TimeoutError, StoreError):
            pass  # the server ends the session itself when its timeout is over
        finally:
            self._finish()

    def _finish(self) -> None:
        self.closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        connection, self._wire = self._wire, None
        if connection is not None:
            connection.drop()
            self._fail_sent(connection)
        self._end("the store was closed")

    def _check(self) -> None:
        if self.expired or self.closed:
            raise SessionExpiredError(f"session {self.session:#x} is over: renew() opens a new one")

    # The connection

    async def _connect_somewhere(self) -> None:
        """Until a server takes the session, or says that it is over."""
        pause_s = RETRY_MIN_S
        while not self.closed:
            for _ in range(len(self._hosts)):
                host = self._hosts[0]
                self._hosts.append(self._hosts.pop(0))
                if await self._connect(*host):
                    self._hosts.insert(0, self._hosts.pop())
                    return
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _connect(self, host: str, port: int) -> bool:
        """True when the session is on, or known to be over."""
        loop = asyncio.get_running_loop()
        connection = Wire(self)
        limit_s = min(CONNECT_MAX_S, self.timeout_ns / SECOND_NS / 3)
        try:
            async with asyncio.timeout(limit_s):
                await loop.create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=self._ensemble.tls,
                    server_hostname=host if self._ensemble.tls else None,
                )
                sent_ns = self._clock.now()
                timeout_ms = max(1, self.timeout_ns // MILLISECOND_NS)
                connection.write(wire.connect(self.revision, timeout_ms, self.session, self._password))
                connected = wire.read_connected(await connection.greeting)
        except (OSError, TimeoutError, FormatError, StoreError) as error:
            self._why_not = str(error) or "no answer in time"
            connection.drop()
            return False
        except asyncio.CancelledError:
            connection.drop()  # what comes of it now would be taken for an answer
            raise
        self._begin(connection, connected, sent_ns)
        return True

    def _begin(self, connection: Wire, connected: wire.Connected, sent_ns: int) -> None:
        if connected.timeout_ms <= 0:
            connection.drop()
            self._end(f"session {self.session:#x} is over: renew() opens a new one")
            return
        first = self.session == 0
        self.session = connected.session
        self.timeout_ns = connected.timeout_ms * MILLISECOND_NS
        self._password = connected.password
        self._wire = connection
        self._heard_from(sent_ns)
        if self._ensemble.auth is not None:
            auth = self._ensemble.auth.encode()
            body = bytes(4) + wire.text("digest") + len(auth).to_bytes(4, "big") + auth
            connection.write(wire.request(wire.AUTH_XID, wire.AUTH, body))
        if not first:
            self.on_gap()
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if not request.reply.done():
                self._send(connection, request)

    def _send(self, connection: Wire, request: Request) -> None:
        self._xid = self._xid % 0x7FFF_FFFF + 1
        request.sent_ns = self._last_sent_ns = self._clock.now()
        connection.sent.append((self._xid, request))
        connection.write(wire.request(self._xid, request.kind, request.body))

    def _heard_from(self, sent_ns: int) -> None:
        self.trusted_until_ns = max(self.trusted_until_ns, sent_ns + self.timeout_ns * 2 // 3)

    def lost(self, connection: Wire) -> None:
        """The connection broke: what it carried is unknown, or is asked again."""
        if self._wire is not connection:
            return
        self._wire = None
        self._fail_sent(connection)

    def _fail_sent(self, connection: Wire) -> None:
        again = []
        for _, request in connection.sent:
            if request.reply.done():
                continue
            if request.changes or request.kind == wire.CLOSE:
                request.reply.set_exception(wire.make_error(-4, request.what))
            else:
                again.append(request)
        connection.sent.clear()
        self._waiting.extendleft(reversed(again))

    def _end(self, why: str) -> None:
        """The session is over, or given up."""
        if not self.expired:
            self.expired = True
            self.trusted_until_ns = 0
            self.on_end()
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if not request.reply.done():
                request.reply.set_exception(SessionExpiredError(f"{request.what}: {why}"))

    # What arrives

    def received(self, connection: Wire, body: bytes) -> None:
        connection.heard_ns = self._clock.now()
        head = wire.read_reply(body)
        if head.xid == wire.WATCH_XID:
            self.on_event(wire.read_event(body).path)
            return
        if head.xid == wire.PING_XID:
            self._heard_from(connection.pinged_ns)
            connection.pinged_ns = 0
        elif head.xid == wire.AUTH_XID:
            if head.error:
                self._end("the user and password were refused")
        else:
            self._answer(connection, head, body)

    def _answer(self, connection: Wire, head: wire.Reply, body: bytes) -> None:
        if not connection.sent or connection.sent[0][0] != head.xid:
            raise FormatError(f"answer {head.xid} to no request: the stream is out of step")
        _, request = connection.sent.popleft()
        # Of nothing else: servers take nobody in who says to have seen more than they have.
        self.revision = max(self.revision, head.revision)
        self._heard_from(request.sent_ns)
        if head.error == -112:
            self._end("the server says that the session is over")
        if request.reply.done():
            return
        if head.error:
            request.reply.set_exception(wire.make_error(head.error, request.what))
            return
        try:
            request.reply.set_result(request.decode(body, wire.HEAD_BYTES, head.revision))
        except (StoreError, FormatError) as error:
            request.reply.set_exception(error)

    # Time

    async def _keep(self) -> None:
        """Heartbeats, patience, and the way back after a broken connection."""
        interval_ns = self.timeout_ns // HEARTBEATS_PER_TIMEOUT
        while not (self.closed or self.expired):
            if self._wire is None:
                try:
                    async with asyncio.timeout(self.timeout_ns / SECOND_NS / 3):
                        await self._connect_somewhere()
                except TimeoutError:
                    self._give_up_waiting()
                continue
            self._ping(self._wire, interval_ns)
            await asyncio.sleep(interval_ns / 2 / SECOND_NS)
            self._give_up_waiting()

    def _ping(self, connection: Wire, interval_ns: int) -> None:
        now_ns = self._clock.now()
        owed_ns = min(
            connection.sent[0][1].sent_ns if connection.sent else now_ns, connection.pinged_ns or now_ns
        )
        if now_ns - max(owed_ns, connection.heard_ns) > self.timeout_ns // SILENCE_PER_TIMEOUT:
            connection.drop()
            self.lost(connection)
        elif not connection.pinged_ns and now_ns - self._last_sent_ns >= interval_ns // 2:
            connection.pinged_ns = self._last_sent_ns = now_ns
            connection.write(wire.request(wire.PING_XID, wire.PING))

    def _give_up_waiting(self) -> None:
        """Requests that waited a whole timeout for a connection are told so."""
        before_ns = self._clock.now() - self.timeout_ns
        while self._waiting and self._waiting[0].made_ns < before_ns:
            request = self._waiting.popleft()
            if not request.reply.done():
                request.reply.set_exception(
                    StoreUnknownError(f"{request.what}: no ZooKeeper server reached at {self._ensemble}")
                )


class Wire(asyncio.Protocol):
    """One TCP connection: frames in, frames out, those of one turn of the loop together."""

    def __init__(self, link: Link) -> None:
        self.sent: deque[tuple[int, Request]] = deque()
        self.pinged_ns = 0
        self.heard_ns = 0
        self.greeting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._in = bytearray()
        self._out: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        self._in += data
        try:
            for body in self._cut():
                if self.greeting.done():
                    self._link.received(self, body)
                else:
                    self.greeting.set_result(body)
        except FormatError:
            # A stream that is out of step cannot be mended: begin anew elsewhere.
            self.drop()
            self._link.lost(self)

    def _cut(self) -> Sequence[bytes]:
        bodies = []
        start, size = 0, len(self._in)
        while size - start >= 4:
            length = int.from_bytes(self._in[start : start + 4], "big", signed=True)
            if not 0 <= length <= wire.FRAME_MAX_BYTES:
                raise FormatError(f"a frame of {length} bytes")
            if size - start - 4 < length:
                break
            bodies.append(bytes(self._in[start + 4 : start + 4 + length]))
            start += 4 + length
        if start:
            del self._in[:start]
        return bodies

    def connection_lost(self, error: Exception | None) -> None:
        self._greet_no_more()
        self._link.lost(self)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._greet_no_more()

    def _greet_no_more(self) -> None:
        if not self.greeting.done():
            self.greeting.set_exception(StoreError("the server hung up"))
            self.greeting.exception()  # nobody may be waiting any more, which is no error
