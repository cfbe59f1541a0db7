"""One client: charge, send on, answer in order.

Answers come in the order of the requests (the client's line), so one that the proxy gives by itself, or that
another server was quicker with, waits for those before it. Nothing grows without bound: a client that does
not read stops its servers' connections and is cut off after a while, one that sends faster than the servers
read is not read from, and one that never ends a request is cut off too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, cast

from bursar.errors import BursarError, Refused, UsageError
from bursar.integrations.memcached_proxy.commands import CommandReader, Request
from bursar.integrations.memcached_proxy.refusals import STRANGER, gone, unreachable
from bursar.integrations.memcached_proxy.replies import DRAINED, NONE, OWN, QUIET, Held, Slot
from bursar.integrations.memcached_proxy.routing import Routed, find_shape, route
from bursar.integrations.memcached_proxy.runs import RUN_MAX, RunReader
from bursar.integrations.memcached_proxy.servers import BUFFER_BYTES, ServerLink
from bursar.runtime import eager, logs

if TYPE_CHECKING:
    from bursar.integrations.memcached_proxy.proxy import Proxy

PENDING_MAX = 1_000
"""Places in a client's line."""


class ClientLink(asyncio.Protocol):
    """The connection to a client. `tenant`: whose every key is, or None to find it in the key. `runs`: how to
    read what is plainly written, where that may be."""

    def __init__(self, proxy: Proxy, tenant: str | None, runs: RunReader | None) -> None:
        self._proxy = proxy
        self._tenant = tenant
        self._runs = runs
        self._door = proxy.resource
        self._commands = CommandReader()
        self._ready: deque[tuple[str | None, Routed]] = deque()
        self.line: deque[Slot] = deque()
        self._links: dict[int, ServerLink] = {}
        self._only: ServerLink | None = None
        self._paused: set[ServerLink] = set()
        self._kept_bytes = 0
        self._waiting: asyncio.Task[None] | None = None
        self._ending = self._heard_all = False
        self._reading = True
        self._quick = True
        self._stall: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self.spoke = False
        self.active_at_s = self._time()

    # -- coming and going -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._proxy.admit(self):
            self._transport.write(b"SERVER_ERROR too many connections\r\n")
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)

    async def _connect(self, place: int) -> None:
        """For the request that is first; what it is told where there is nobody."""
        proxy = self._proxy
        try:
            if proxy.is_down(place):
                raise ConnectionError("it was not there a moment ago")
            async with asyncio.timeout(proxy.dial_timeout_s):
                _, link = await self._loop.create_connection(
                    lambda: ServerLink(self, place), *proxy.servers[place]
                )
        except (OSError, TimeoutError) as error:
            proxy.note_unreachable(place, str(error) or "it does not answer")
            _, (request, _) = self._ready.popleft()
            self._put(request, unreachable(len(proxy.servers)))
        else:
            self._links[place] = link
            if len(proxy.servers) == 1:
                self._only = link
            if self._transport.is_closing():
                link.transport.abort()
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._proxy.dismiss(self)
        for timer in (self._stall, self._slow):
            if timer is not None:
                timer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        for link in self._links.values():
            link.transport.abort()
        self._release_all()

    def server_lost(self, link: ServerLink) -> None:
        """Whatever it owes is answered with an error; what it had begun to answer cannot be."""
        self._links.pop(link.place, None)
        self._paused.discard(link)
        self._only = None
        if self._transport.is_closing():
            return
        for slot in link.queue:
            if slot.begun:
                self.cut_off("the memcached server is gone")
                return
        for slot in link.queue:
            self._proxy.counts["lost"] += slot.count
            words = gone(len(self._proxy.servers)) * slot.count
            slot.kept = [b"" if slot.shape in (DRAINED, QUIET) else words]
            slot.count = 0
            if slot.held is not None:
                self.answered(slot.held)
        self.advance()

    def _release_all(self) -> None:
        """Nobody will answer these any more: they count as used."""
        for slot in self.line:
            if slot.held is not None and slot.count:
                self.answered(slot.held)
        self.line.clear()

    def eof_received(self) -> bool:
        """A client that only stops sending still gets its answers."""
        self._heard_all = True
        if self.spoke:
            self.advance()
        return self.spoke

    def _end_if_done(self) -> None:
        if not self.line and not self._ready and self._waiting is None:
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
        return not (self.line or self._ready or self._waiting or self._commands.incomplete)

    def data_received(self, data: bytes) -> None:
        self.active_at_s = self._time()
        if self._quick and self._only is not None and self._only.writable and self._runs is not None:
            at = self._rush(data, self._only, self._runs)
            if at == len(data):
                return
            data = data[at:]
        self.spoke = True
        self._commands.feed(data)
        self.advance()

    def _rush(self, data: bytes, link: ServerLink, runs: RunReader) -> int:
        """Charge and send on what is plainly written and can be had at once; how far that went."""
        at, size, line, queue = 0, len(data), self.line, link.queue
        while at < size and len(line) < PENDING_MAX:
            run = runs.read(data, at)
            if run is None:
                break
            tenant, keys, shapes, end = run
            try:
                grant = self._door.try_acquire(tenant, keys)
            except (Refused, UsageError):
                break
            if grant is None:
                break
            held = Held(grant, len(shapes))
            for shape, count in shapes:
                slot = Slot(shape, count, held)
                line.append(slot)
                queue.append(slot)
            self._proxy.requests += keys
            at = end
        if at:
            link.write(data if at == size else data[:at])
        return at

    def advance(self) -> None:
        """Read, charge and send on what can be, until something has to be waited for."""
        while self._can_go_on() and self._fill():
            self._charge_run()
        for link in self._links.values():
            link.flush()
        self._deliver()
        self._watch()

    def _can_go_on(self) -> bool:
        return (
            self._waiting is None
            and len(self.line) < PENDING_MAX
            and all(link.writable for link in self._links.values())
            and not self._transport.is_closing()
        )

    def _fill(self) -> bool:
        commands, proxy = self._commands, self._proxy
        while commands.incomplete and len(self._ready) < RUN_MAX and not self._ending:
            request = commands.read()
            if request is None:
                break
            self._ready.append((self._find_tenant(request), (request, route(request, proxy.ring))))
            self._ending = request.last
        return bool(self._ready)

    def _find_tenant(self, request: Request) -> str | None:
        """None: several, or no key at all."""
        if self._tenant is not None or not request.keys:
            return self._tenant
        tenants = {self._proxy.find_tenant(key) for key in request.inner or request.keys}
        return tenants.pop() if len(tenants) == 1 else None

    def _charge_run(self) -> None:
        tenant, (first, parts) = self._ready[0]
        if first.local is not None or (first.keys and tenant is None):
            self._ready.popleft()
            self._proxy.counts["strangers"] += first.local is None
            self._put(first, STRANGER if first.local is None else first.local)
            return
        if self._must_dial(parts):
            return
        if not first.keys or tenant is None:
            self._ready.popleft()
            self._pass_on((first, parts), None)
            return
        run = self._take_run(tenant)
        try:
            grant = self._door.try_acquire(tenant, sum(len(request.keys) for request, _ in run))
        except (Refused, UsageError):
            grant = None
        if grant is not None:
            held = Held(grant, len(run))
            for routed in run:
                self._pass_on(routed, held)
            return
        self._ready.extendleft((tenant, routed) for routed in reversed(run[1:]))
        self._waiting = eager.start(self._loop, self._ask(tenant, run[0]))

    def _must_dial(self, parts: dict[int, bytes]) -> bool:
        """Whether a server of the first request has no connection yet: then one is begun."""
        for place in parts:
            if place not in self._links:
                self._waiting = self._loop.create_task(self._connect(place))
                return True
        return False

    def _take_run(self, tenant: str) -> list[Routed]:
        """Requests of one tenant whose servers are all there."""
        run: list[Routed] = []
        while self._ready and len(run) < RUN_MAX:
            name, (request, parts) = self._ready[0]
            if name != tenant or not request.keys or not parts.keys() <= self._links.keys():
                break
            self._ready.popleft()
            run.append((request, parts))
        return run

    async def _ask(self, tenant: str, routed: Routed) -> None:
        """Acquire for one request, waiting if the proxy is told to; nothing behind it goes on."""
        request, parts = routed
        try:
            grant = await self._door.acquire(tenant, len(request.keys), wait=self._proxy.wait_s)
        except BursarError as error:
            counted, words = self._proxy.refusals.answer(request, error)
            self._proxy.counts[counted] += 1
            self._put(request, words)
        else:
            if parts.keys() <= self._links.keys():
                self._pass_on(routed, Held(grant, 1))
            else:
                self._put(request, gone(len(self._proxy.servers)))
                await grant.release()
        self._go_on()

    def _go_on(self) -> None:
        """What was waited for is over; not at once where it never began to wait."""
        if self._waiting is not None:
            self._waiting = None
            self._loop.call_soon(self.advance)

    def _put(self, request: Request, reply: bytes) -> None:
        """An answer of the proxy's own; to a request without reply there is none."""
        if request.shape != NONE and reply:
            self.line.append(Slot.own(reply))

    def _pass_on(self, routed: Routed, held: Held | None) -> None:
        request, parts = routed
        self._proxy.requests += len(request.keys)
        shape, words = find_shape(request, len(parts))
        if held is not None:
            held.left += len(parts) - 1
        for place, raw in parts.items():
            link, slot = self._links[place], Slot(shape, 1, held)
            self.line.append(slot)
            link.queue.append(slot)
            link.outgoing.append(raw)
        if words:
            self.line.append(Slot.own(words))

    # -- answers ----------------------------------------------------------------------------

    def server_told(self) -> None:
        """Something of the line was answered."""
        if self._paused and self._slow is None:
            self._resume_servers()
        if not self._quick or self._ready or self._commands.incomplete or self._heard_all:
            self.advance()  # else nobody waits for anything but the next request

    def collect(self, out: list[bytes]) -> None:
        """Answers at the head of the line that are here already."""
        line = self.line
        while line and line[0].kept is not None:
            slot = line[0]
            assert slot.kept is not None
            out += slot.kept
            if slot.shape != OWN:
                self._kept_bytes -= sum(map(len, slot.kept))
                slot.begun = True
            slot.kept = None
            if slot.count:
                break  # the rest of it is passed on as it comes
            line.popleft()

    def keep(self, link: ServerLink, size: int) -> None:
        """A server answered before its turn."""
        self._kept_bytes += size
        if self._kept_bytes >= BUFFER_BYTES and link not in self._paused:
            link.transport.pause_reading()
            self._paused.add(link)

    def _resume_servers(self) -> None:
        """All, or only the one that those who answered before their turn are waiting for."""
        head = self.line[0] if self.line else None
        for link in list(self._paused):
            if self._kept_bytes < BUFFER_BYTES or (link.queue and link.queue[0] is head):
                link.transport.resume_reading()
                self._paused.discard(link)

    def _deliver(self) -> None:
        out: list[bytes] = []
        self.collect(out)
        if out:
            self.write(b"".join(out))
        if self._ending or self._heard_all:
            self._end_if_done()

    def write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def answered(self, held: Held) -> None:
        held.left -= 1
        if held.left == 0:
            ending = held.grant.let_go()
            if ending is not None:
                eager.start(self._loop, _await(ending))

    # -- pressure ---------------------------------------------------------------------------

    def _watch(self) -> None:
        """Stop reading from a client that is ahead; give one that is behind a time to finish."""
        free = self._can_go_on()
        if free or (self._ending and not self._transport.is_closing()):
            self._resume()
        else:
            self._pause()
        incomplete = self._commands.incomplete
        self._quick = free and self._reading and not incomplete and not self._ready and not self._ending
        stalled = self._reading and incomplete and not self._ready
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
        """The client does not read: neither do we from the servers, for a while."""
        for link in self._links.values():
            if link not in self._paused:
                link.transport.pause_reading()
                self._paused.add(link)
        after_s = self._proxy.slow_timeout_s
        self._slow = self._loop.call_later(after_s, self.cut_off, "it does not read its answers")

    def resume_writing(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        self._resume_servers()


async def _await(ending: Awaitable[None]) -> None:
    await ending
