"""One client and its connection to the server: charge, send on, answer in order.

Answers come in the order of the requests, so one that the proxy gives by itself waits for those
before it. Nothing grows without bound: a client that does not read stops its server's connection
and is cut off after a while, one that sends faster than the server reads is not read from, and
one that never ends a request is cut off too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from bursar.errors import BursarError, FormatError, Refused, Unknown, UsageError
from bursar.integrations.memcached_proxy.commands import (
    NONE,
    CommandReader,
    ReplyReader,
    Request,
    Scan,
)
from bursar.resource.grants import Grant
from bursar.runtime import eager, logs

if TYPE_CHECKING:
    from bursar.integrations.memcached_proxy.proxy import Proxy

RUN_MAX = 64
"""Requests of one tenant that are charged at once."""

PENDING_MAX = 1_000
BUFFER_BYTES = 256 * 1024
STRANGER = b"CLIENT_ERROR no tenant for this key\r\n"


class Held:
    """A grant for several requests: given back when the last of them is answered."""

    __slots__ = ("grant", "left")

    def __init__(self, grant: Grant, left: int) -> None:
        self.grant = grant
        self.left = left


class BackendLink(asyncio.Protocol):
    """The connection to the server."""

    def __init__(self, client: ClientLink) -> None:
        self._client = client
        self.writable = True
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._client.backend_ready(self)

    def data_received(self, data: bytes) -> None:
        self._client.replied(data)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._client.advance()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._client.backend_lost()


class ClientLink(asyncio.Protocol):
    """The connection to a client. `tenant`: whose every key is, or None to find it in the key."""

    def __init__(self, proxy: Proxy, tenant: str | None) -> None:
        self._proxy = proxy
        self._tenant = tenant
        self._commands = CommandReader()
        self._replies = ReplyReader()
        self._ready: deque[tuple[str | None, Request]] = deque()
        self._pending: deque[tuple[int, Held | None] | bytes] = deque()
        self._backend: BackendLink | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._ending = self._heard_all = False
        self._reading = True
        self._stall: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None
        self._dial: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.active_at_s = self._loop.time()

    # -- coming and going -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._proxy.admit(self):
            self._transport.write(b"SERVER_ERROR too many connections\r\n")
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._proxy.dial_timeout_s):
                await self._loop.create_connection(lambda: BackendLink(self), *self._proxy.backend)
        except (OSError, TimeoutError) as error:
            logs.warning("memcached.unreachable", why=str(error) or "it does not answer")
            self._transport.write(b"SERVER_ERROR the memcached server cannot be reached\r\n")
            self._transport.close()

    def backend_ready(self, backend: BackendLink) -> None:
        self._backend = backend
        if self._transport.is_closing():
            self._drop_backend()
        else:
            self.advance()

    def connection_lost(self, error: Exception | None) -> None:
        self._proxy.dismiss(self)
        for timer in (self._stall, self._slow):
            if timer is not None:
                timer.cancel()
        for task in (self._waiting, self._dial):
            if task is not None:
                task.cancel()
        self._drop_backend()
        self._release_all()

    def backend_lost(self) -> None:
        self._backend = None
        self._release_all()
        if not self._transport.is_closing():
            self._transport.write(b"SERVER_ERROR the memcached server is gone\r\n")
            self._transport.close()

    def _drop_backend(self) -> None:
        if self._backend is not None and self._backend.transport is not None:
            self._backend.transport.abort()

    def _release_all(self) -> None:
        """Nobody will answer these any more: they count as used."""
        for entry in self._pending:
            if isinstance(entry, tuple) and entry[1] is not None:
                self._answered(entry[1])
        self._pending.clear()

    def eof_received(self) -> bool:
        """A client that only stops sending still gets its answers."""
        if self._dial is None:
            return False  # it never said anything
        self._heard_all = True
        self.advance()
        return True

    def _end_if_done(self) -> None:
        # Before the server is there, what the client sent has not been looked at.
        over = self._ending or self._backend is not None
        if over and not self._pending and not self._ready and self._waiting is None:
            self._transport.close()

    def end(self) -> None:
        self._transport.abort()

    def cut_off(self, why: str) -> None:
        self._proxy.counts["cut_off"] += 1
        logs.info("memcached.cut_off", why=why)
        self._transport.abort()

    # -- requests ---------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is under way."""
        return not (self._pending or self._ready or self._waiting or self._commands.incomplete)

    def data_received(self, data: bytes) -> None:
        self.active_at_s = self._loop.time()
        if self._dial is None:  # one that says nothing costs no connection to the server
            self._dial = self._loop.create_task(self._connect())
        self._commands.feed(data)
        self.advance()

    def advance(self) -> None:
        """Read, charge and send on what can be, until something has to be waited for."""
        out: list[bytes] = []
        while self._can_go_on() and self._fill():
            self._charge_run(out)
        self._flush(out)
        self._deliver()
        self._watch()

    def _flush(self, out: list[bytes]) -> None:
        if out and self._backend is not None and self._backend.transport is not None:
            self._backend.transport.writelines(out)
        out.clear()

    def _can_go_on(self) -> bool:
        backend = self._backend
        return (
            self._waiting is None
            and backend is not None
            and backend.writable
            and len(self._pending) < PENDING_MAX
            and not self._transport.is_closing()
        )

    def _fill(self) -> bool:
        commands = self._commands
        while commands.incomplete and len(self._ready) < RUN_MAX and not self._ending:
            request = commands.read()
            if request is None:
                break
            self._ready.append((self._find_tenant(request), request))
            self._ending = request.last
        return bool(self._ready)

    def _find_tenant(self, request: Request) -> str | None:
        """None: several, or no key at all."""
        if self._tenant is not None or not request.keys:
            return self._tenant
        tenants = {self._proxy.find_tenant(key) for key in request.keys}
        return tenants.pop() if len(tenants) == 1 else None

    def _charge_run(self, out: list[bytes]) -> None:
        tenant, first = self._ready[0]
        if first.local is not None or not first.keys:
            self._ready.popleft()
            self._pass_on(first, None, out)
            return
        if tenant is None:
            self._ready.popleft()
            self._put(first, STRANGER)
            return
        run = [request for _, request in self._take_run(tenant)]
        try:
            grant = self._proxy.resource.try_acquire(tenant, sum(len(r.keys) for r in run))
        except (Refused, UsageError):
            grant = None
        if grant is not None:
            held = Held(grant, len(run))
            for request in run:
                self._pass_on(request, held, out)
            return
        self._ready.extendleft((tenant, request) for request in reversed(run[1:]))
        self._flush(out)
        self._waiting = eager.start(self._loop, self._ask(tenant, run[0]))

    def _take_run(self, tenant: str) -> list[tuple[str | None, Request]]:
        run = []
        while self._ready and self._ready[0][0] == tenant and self._ready[0][1].keys:
            run.append(self._ready.popleft())
        return run

    async def _ask(self, tenant: str, request: Request) -> None:
        """Acquire for one request, waiting if the proxy is told to; nothing behind it goes on."""
        out: list[bytes] = []
        try:
            grant = await self._proxy.resource.acquire(tenant, len(request.keys), wait=self._proxy.wait_s)
        except BursarError as error:
            self._put(request, self._explain(tenant, error))
        else:
            held = Held(grant, 2)  # one for this task, which gives back by itself
            self._pass_on(request, held, out)
            held.left -= 1
            if held.left == 0:
                await grant.release()
        self._flush(out)
        if self._waiting is not None:
            self._waiting = None
            self._loop.call_soon(self.advance)

    def _explain(self, tenant: str, error: BursarError) -> bytes:
        if isinstance(error, UsageError) or (isinstance(error, Refused) and error.reason == "tenant"):
            self._proxy.counts["strangers"] += 1
            return STRANGER
        if isinstance(error, Refused):
            self._proxy.counts["refused"] += 1
            after = "" if error.retry_after is None else f"; retry in {error.retry_after:.3f} s"
            return f"SERVER_ERROR refused: {error.why}{after}\r\n".encode()
        if isinstance(error, Unknown):
            self._proxy.counts["unknown"] += 1
            return b"SERVER_ERROR the quota cannot be learnt now\r\n"
        raise error

    def _put(self, request: Request, reply: bytes) -> None:
        """An answer of the proxy's own; to a request without reply there is none."""
        if request.shape != NONE and reply:
            self._pending.append(reply)

    def _pass_on(self, request: Request, held: Held | None, out: list[bytes]) -> None:
        if request.local is not None:
            self._put(request, request.local)
            return
        self._proxy.counts["requests"] += 1
        out.append(request.raw)
        if request.shape != NONE:
            self._pending.append((request.shape, held))
        elif held is not None:
            self._answered(held)

    # -- answers ----------------------------------------------------------------------------

    def replied(self, data: bytes) -> None:
        scan = self._replies.scan(data)
        out: list[bytes] = []
        try:
            self._match(scan, out)
        except FormatError as error:
            self.cut_off(str(error))
            return
        self._write(out)
        if self._ready or self._commands.incomplete or not self._reading or self._ending or self._heard_all:
            self.advance()  # else nobody waits for anything but the next request

    def _match(self, scan: Scan, out: list[bytes]) -> None:
        start = 0
        pending = self._pending
        while pending:
            head = pending[0]
            if isinstance(head, bytes):
                out += (scan.cut(start), head)
                start = scan.at
            elif scan.finish(head[0]):
                if head[1] is not None:
                    self._answered(head[1])
            else:
                break
            pending.popleft()
        out.append(scan.cut(start))
        if not pending and scan.left_bytes:
            raise FormatError("the memcached server answered what nobody asked")
        scan.keep()

    def _deliver(self) -> None:
        """Answers of the proxy's own that nothing stands before."""
        out = []
        while self._pending and isinstance(self._pending[0], bytes):
            out.append(self._pending.popleft())
        if out:
            self._write(cast(list[bytes], out))
        if self._ending or self._heard_all:
            self._end_if_done()

    def _write(self, out: list[bytes]) -> None:
        data = out[0] if len(out) == 1 else b"".join(out)
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _answered(self, held: Held) -> None:
        held.left -= 1
        if held.left == 0:
            eager.start(self._loop, held.grant.release())

    # -- pressure ---------------------------------------------------------------------------

    def _watch(self) -> None:
        """Stop reading from a client that is ahead; give one that is behind a time to finish."""
        if self._can_go_on() or (self._ending and not self._transport.is_closing()):
            self._resume()
        else:
            self._pause()
        stalled = self._reading and self._commands.incomplete and not self._ready
        if stalled and self._stall is None:
            after_s = self._proxy.stall_timeout_s
            self._stall = self._loop.call_later(after_s, self.cut_off, "a request was never ended")
        elif not stalled and self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _pause(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._transport.pause_reading()
            self._reading = False

    def _resume(self) -> None:
        if not self._reading and not self._transport.is_closing():
            self._transport.resume_reading()
            self._reading = True

    def pause_writing(self) -> None:
        """The client does not read: neither do we from the server, for a while."""
        if self._backend is not None and self._backend.transport is not None:
            self._backend.transport.pause_reading()
        after_s = self._proxy.slow_timeout_s
        self._slow = self._loop.call_later(after_s, self.cut_off, "it does not read its answers")

    def resume_writing(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        if self._backend is not None and self._backend.transport is not None:
            self._backend.transport.resume_reading()
