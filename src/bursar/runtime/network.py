"""Messages between named nodes over TCP: who may listen, how peers are found, dialled and told.

A node dials the peers it has addresses for, and answers those that dialled it. The first call or
send to a peer dials it; while an attempt is under way calls wait for it and sends queue (bounded);
between attempts, which follow each other with growing, jittered pauses, calls fail at once, so
that nobody stalls on a peer that is known to be away.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bursar.errors import BursarError, CrashedError, NetworkError, UnreachableError, UsageError
from bursar.policy.names import is_loopback
from bursar.policy.values import Tls
from bursar.runtime import eager, frames, logs
from bursar.runtime.clock import BootClock
from bursar.runtime.frames import FAILURE, REPLY, SEND, Hello
from bursar.runtime.link import Limits, Link, SelfLink, describe_failure
from bursar.runtime.tls import dialling, listening
from bursar.world import MILLISECOND_NS, SECOND_NS, Handler, Message

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
DIAL_TIMEOUT_S = 3.0
QUEUED_SENDS_MAX = 1_000
CLOSE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node is: `host:port`, `[::1]:port` for IPv6."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise UsageError(f"an address is host:port, for example 127.0.0.1:7070, not {text!r}")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(slots=True)
class Route:
    """How to reach one peer: its address, and the state of dialling it. `any_name` accepts
    whoever is there under the name it gives (a client that only knows an address)."""

    peer: str
    address: Address
    any_name: bool = False
    dialling: asyncio.Task[None] | None = None
    attempt: asyncio.Future[Link] | None = None
    link: Link | None = None
    why: str = "not dialled yet"
    queue: deque[bytes] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Served:
    requests: msgspec.msgpack.Decoder[Any]
    handler: Handler


class SocketNetwork:
    """Implements `bursar.world.Network`."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        *,
        peers: Mapping[str, str | Address] | None = None,
        tls: Tls | None = None,
        limits: Limits | None = None,
        clock: BootClock | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = name
        self.hello = Hello(frames.VERSION, name, incarnation)
        self.limits = limits or Limits()
        self.clock = clock or BootClock()
        self.counts: Counter[str] = Counter()
        self.has_tls = tls is not None
        self._dial_context = dialling(tls) if tls else None
        self._listen_context = listening(tls) if tls else None
        self._served: dict[str, Served] = {}
        self._links: dict[Link, None] = {}
        self._peers: dict[str, list[Link]] = {}
        self._routes: dict[str, Route] = {}
        self._observers: list[Callable[[str, bool], None]] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self._jitter = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._self: SelfLink | None = None
        self._crashed = False
        for peer, address in (peers or {}).items():
            self.add_route(peer, address)

    def add_route(self, peer: str, address: str | Address, *, any_name: bool = False) -> None:
        """Dial `peer` there from now on."""
        parsed = Address.parse(address) if isinstance(address, str) else address
        route = self._routes.get(peer)
        if route is None:
            self._routes[peer] = Route(peer, parsed, any_name)
        else:
            route.address = parsed

    def peers(self) -> list[str]:
        """Implements `bursar.world.Network`."""
        return sorted(self._routes)

    def observe(self, observer: Callable[[str, bool], None]) -> None:
        """Call `observer(peer, True)` when a peer's first connection is ready, and with False when
        its last one is gone."""
        self._observers.append(observer)

    async def listen(self, address: str | Address) -> Address:
        """Take connections there; returns the address with the port that was chosen for port 0."""
        wanted = Address.parse(address) if isinstance(address, str) else address
        if not is_loopback(str(wanted)) and self._listen_context is None:
            raise UsageError(
                f"refusing to listen on {wanted} without TLS: anyone who reaches it could speak as any node; "
                "listen on 127.0.0.1, or set tls (docs/security.md)"
            )
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Link(self),
                wanted.host,
                wanted.port,
                ssl=self._listen_context,
                backlog=512,
            )
        except OSError as error:
            raise NetworkError(
                f"cannot listen on {wanted}: {error.strerror or error}; choose another"
            ) from error
        self._start_sweep()
        return Address(wanted.host, self._server.sockets[0].getsockname()[1])

    def serve(self, topic: str, requests: Any, handler: Handler) -> None:
        self._served[topic] = Served(frames.decoder_of(requests), handler)

    async def call(self, peer: str, topic: str, message: Message, reply: Any, timeout_ns: int) -> Any:
        links = self._peers.get(peer)
        link = links[-1] if links else None
        if link is None:
            self._check_alive()
            link = self._own_link() if peer == self.name else self._link_to(peer)
        if link is None:
            began = self.clock.now()
            link = await self._reach(peer, timeout_ns)
            timeout_ns -= self.clock.now() - began
        if timeout_ns <= 0:
            raise UnreachableError(f"no time left to call {peer}; nothing was sent")
        return await link.call(topic, message, reply, timeout_ns)

    def send(self, peer: str, topic: str, message: Message) -> None:
        self._check_alive()
        frame = frames.encode(SEND, 0, topic, message)
        if peer == self.name:
            self._own_link().send(frame)
            return
        link = self._link_to(peer)
        if link is None:
            self._queue(peer, frame)
        elif not link.send(frame):
            self.counts["dropped"] += 1

    def _check_alive(self) -> None:
        if self._crashed:
            raise CrashedError(f"node {self.name} is down")

    def _own_link(self) -> Link:
        """A node's messages to itself go the same way, without a socket."""
        if self._self is None:
            self._self = SelfLink(self)
        return self._self

    # Finding and dialling peers.

    def _link_to(self, peer: str) -> Link | None:
        links = self._peers.get(peer)
        if links:
            return links[-1]
        route = self._routes.get(peer)
        return route.link if route is not None else None

    def _queue(self, peer: str, frame: bytes) -> None:
        route = self._routes.get(peer)
        if route is None or len(route.queue) >= QUEUED_SENDS_MAX:
            self.counts["dropped"] += 1
            return
        route.queue.append(frame)
        self._dial(route)

    async def _reach(self, peer: str, timeout_ns: int) -> Link:
        """Wait for the attempt under way, or a first one; between attempts fail at once."""
        route = self._routes.get(peer)
        if route is None:
            raise UnreachableError(f"{peer} is not connected and has no address; add it under peers")
        self._dial(route)
        if route.attempt is None:
            raise UnreachableError(f"{peer} at {route.address} cannot be reached: {route.why}")
        try:
            async with asyncio.timeout(max(0, timeout_ns) / SECOND_NS):
                return await asyncio.shield(route.attempt)
        except TimeoutError:
            raise UnreachableError(f"{peer} at {route.address} was not reached in time") from None

    def _dial(self, route: Route) -> None:
        if route.dialling is None or route.dialling.done():
            route.attempt = self._begin_attempt()
            route.dialling = asyncio.get_running_loop().create_task(self._keep_dialling(route))
            self._start_sweep()

    def _begin_attempt(self) -> asyncio.Future[Link]:
        attempt: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
        return attempt

    async def _keep_dialling(self, route: Route) -> None:
        pause_s = BACKOFF_MIN_S
        while True:
            attempt = route.attempt = route.attempt or self._begin_attempt()
            try:
                link = await self._connect(route)
            except UnreachableError as error:
                self._note_failure(route, str(error))
                attempt.set_exception(UnreachableError(f"{route.peer} at {route.address}: {error}"))
                route.attempt = None
                await asyncio.sleep(pause_s * (0.5 + self._jitter.random() / 2))
                pause_s = min(BACKOFF_MAX_S, 2 * pause_s)
                if self._peers.get(route.peer):
                    return  # it dialled us meanwhile
                continue
            self._open_route(route, link)
            attempt.set_result(link)
            route.attempt = None
            return

    def _note_failure(self, route: Route, why: str) -> None:
        self.counts["dial.failed"] += 1
        if why != route.why:
            logs.info("peer.unreachable", node=self.name, peer=route.peer, at=str(route.address), why=why)
        route.why = why

    async def _connect(self, route: Route) -> Link:
        expected = None if route.any_name else route.peer
        host, port = route.address.host, route.address.port
        link: Link | None = None
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: Link(self, expected, host),
                    host,
                    port,
                    ssl=self._dial_context,
                    server_hostname=host if self._dial_context else None,
                )
                await link.ready
                return link
        except TimeoutError:
            if link is not None:
                link.abort()
            raise UnreachableError(f"no connection within {DIAL_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise UnreachableError(error.strerror or str(error)) from error

    def _open_route(self, route: Route, link: Link) -> None:
        route.why = "connected before"
        if route.any_name:
            route.link = link
        while route.queue:
            if not link.send(route.queue.popleft()):
                self.counts["dropped"] += 1

    # What links tell their network.

    def admit(self, link: Link) -> bool:
        if len(self._links) >= self.limits.connections_max or self._crashed:
            return False
        self._links[link] = None
        self.counts["connections"] += 1
        link.keep_alive()
        return True

    def introduce(self, link: Link) -> None:
        links = self._peers.setdefault(link.peer, [])
        links.append(link)
        if len(links) > self.limits.connections_per_peer_max:
            links.pop(0).cut("replaced", "the same peer has opened newer connections")
        if len(links) == 1:
            logs.info("peer.connected", node=self.name, peer=link.peer)
            self._tell(link.peer, True)
        route = self._routes.get(link.peer)
        if route is not None and route.queue:
            self._open_route(route, link)

    def forget(self, link: Link) -> None:
        self._links.pop(link, None)
        for route in self._routes.values():
            if route.link is link:
                route.link = None
        links = self._peers.get(link.peer, [])
        if link in links:
            links.remove(link)
            if not links:
                del self._peers[link.peer]
                logs.info("peer.disconnected", node=self.name, peer=link.peer, why=link.why_closed)
                self._tell(link.peer, False)

    def _tell(self, peer: str, connected: bool) -> None:
        for observer in self._observers:
            observer(peer, connected)

    def count_cut(self, reason: str, link: Link, why: str) -> None:
        self.counts[f"cut.{reason}"] += 1
        logs.warning("peer.cut", node=self.name, peer=link.peer or "(unknown)", reason=reason, why=why)

    def dispatch(self, link: Link, number: int | None, topic: str, body: msgspec.Raw) -> None:
        """Hand a request to its handler; everything that is wrong with it is answered."""
        served = self._served.get(topic)
        if served is None:
            self._refuse(link, number, f"nothing is served on topic {topic[:100]!r}")
            return
        try:
            message = served.requests.decode(body)
        except frames.DECODE_ERRORS as error:
            self._refuse(link, number, f"not a message of topic {topic!r}: {error}")
            return
        if not link.begin_request():
            self._refuse(link, number, f"more than {self.limits.requests_max} requests are under way")
            return
        work = self._handle(link, number, topic, served.handler, message)
        task = eager.start(link.loop, work)
        if task is not None:
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)

    def _refuse(self, link: Link, number: int | None, why: str) -> None:
        self.counts["refused"] += 1
        if number is not None:
            link.send(frames.encode(FAILURE, number, "", why[:500]))

    async def _handle(
        self, link: Link, number: int | None, topic: str, handler: Handler, message: Any
    ) -> None:
        frame = None
        try:
            answer = await handler(link.peer, message)
            if number is not None:
                frame = frames.encode(REPLY, number, "", answer)
        except Exception as error:  # noqa: BLE001  whatever a handler does, its caller is answered
            frame = self._report(topic, number, error)
        finally:
            link.end_request(frame)

    def _report(self, topic: str, number: int | None, error: Exception) -> bytes | None:
        self.counts["handler.failed"] += 1
        if not isinstance(error, BursarError):
            logs.failure("handler.failed", error, node=self.name, topic=topic)
        return None if number is None else frames.encode(FAILURE, number, "", describe_failure(error))

    # The end of the node.

    def _start_sweep(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        """One timer for all connections, rather than one for each frame."""
        bound_ns = min(self.limits.hello_timeout_ns, self.limits.stall_timeout_ns)
        pause_s = max(10 * MILLISECOND_NS, bound_ns // 4) / SECOND_NS
        while True:
            await asyncio.sleep(pause_s)
            now = self.clock.now()
            for link in list(self._links):
                link.check_stall(now)

    def crash(self) -> None:
        """Let go of everything at once: nothing more is said in this node's name."""
        self._crashed = True
        self._peers.clear()
        self._stop_work()
        for link in list(self._links):
            link.abort()

    async def close(self) -> None:
        """Send what is queued, close the connections, stop the handlers: within a second."""
        self._crashed = True
        self._stop_work()
        links = list(self._links)
        for link in links:
            link.close()
        if links:
            await asyncio.wait([link.closed for link in links], timeout=CLOSE_TIMEOUT_S)
        for link in list(self._links):
            link.abort()

    def _stop_work(self) -> None:
        if self._server is not None:
            self._server.close()
        dialling = [route.dialling for route in self._routes.values() if route.dialling is not None]
        for task in (self._sweeping, *dialling, *self._handlers):
            if task is not None:
                task.cancel()
