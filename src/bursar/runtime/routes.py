"""How peers are found and dialled.

The first call or send to a peer dials it; while an attempt is under way calls wait for it and sends
queue (bounded); between attempts, which follow each other with growing, jittered pauses, calls fail
at once, so that nobody stalls on a peer that is known to be away.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bursar.errors import UnreachableError, UsageError
from bursar.runtime import logs
from bursar.runtime.link import Link
from bursar.world import SECOND_NS

if TYPE_CHECKING:
    from bursar.runtime.network import SocketNetwork

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
DIAL_TIMEOUT_S = 3.0
QUEUED_SENDS_MAX = 1_000


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


def explain(error: OSError) -> str:
    """What the system said, without what asyncio was doing at that moment."""
    if error.errno is None or isinstance(error, ssl.SSLError | socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


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
    opened_s: float = -math.inf
    queue: deque[bytes] = field(default_factory=deque)

    def __str__(self) -> str:
        return self.peer if self.peer.endswith(str(self.address)) else f"{self.peer} at {self.address}"


class Dialler:
    """The routes of one node, and the dialling of them."""

    def __init__(self, network: SocketNetwork, seed: int | None) -> None:
        self._network = network
        self._routes: dict[str, Route] = {}
        self._jitter = random.Random(seed)

    def add(self, peer: str, address: str | Address, *, any_name: bool = False) -> None:
        parsed = Address.parse(address) if isinstance(address, str) else address
        route = self._routes.get(peer)
        if route is None:
            self._routes[peer] = Route(peer, parsed, any_name)
        else:
            route.address = parsed

    def peers(self) -> list[str]:
        return sorted(self._routes)

    def link_to(self, peer: str) -> Link | None:
        """The connection to a peer whose name is only known to itself."""
        route = self._routes.get(peer)
        return route.link if route is not None else None

    def queue(self, peer: str, frame: bytes) -> bool:
        """Keep a frame until the peer is reached; false when it was dropped."""
        route = self._routes.get(peer)
        if route is None or len(route.queue) >= QUEUED_SENDS_MAX:
            return False
        route.queue.append(frame)
        self._dial(route)
        return True

    async def reach(self, peer: str, timeout_ns: int) -> Link:
        """Wait for the attempt under way, or a first one; between attempts fail at once."""
        route = self._routes.get(peer)
        if route is None:
            raise UnreachableError(f"{peer} is not connected and has no address; add it under peers")
        self._dial(route)
        if route.attempt is None:
            raise UnreachableError(f"{route} cannot be reached: {route.why}")
        try:
            async with asyncio.timeout(max(0, timeout_ns) / SECOND_NS):
                return await asyncio.shield(route.attempt)
        except TimeoutError:
            raise UnreachableError(f"{route} was not reached in time") from None

    def _dial(self, route: Route) -> None:
        if route.dialling is None or route.dialling.done():
            route.attempt = _begin_attempt()
            route.dialling = asyncio.get_running_loop().create_task(self._keep_dialling(route))
            self._network.start_sweep()

    async def _keep_dialling(self, route: Route) -> None:
        pause_s = BACKOFF_MIN_S
        # A peer that takes connections and drops them at once is not dialled in a tight loop.
        await asyncio.sleep(max(0.0, route.opened_s + pause_s - asyncio.get_running_loop().time()))
        while True:
            attempt = route.attempt = route.attempt or _begin_attempt()
            try:
                link = await self._connect(route)
            except UnreachableError as error:
                self._note_failure(route, str(error))
                attempt.set_exception(UnreachableError(f"{route}: {error}"))
                route.attempt = None
                await asyncio.sleep(pause_s * (0.5 + self._jitter.random() / 2))
                pause_s = min(BACKOFF_MAX_S, 2 * pause_s)
                if self._network.is_connected(route.peer):
                    return  # it dialled us meanwhile
                continue
            self._open(route, link)
            attempt.set_result(link)
            route.attempt = None
            return

    def _note_failure(self, route: Route, why: str) -> None:
        self._network.counts["dial.failed"] += 1
        if why != route.why:
            logs.info(
                "peer.unreachable",
                node=self._network.name,
                peer=route.peer,
                address=str(route.address),
                why=why,
            )
        route.why = why

    async def _connect(self, route: Route) -> Link:
        expected = None if route.any_name else route.peer
        host, port = route.address.host, route.address.port
        certificates = self._network.certificates
        link: Link | None = None
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: Link(self._network, expected, host),
                    host,
                    port,
                    ssl=certificates.dialling if certificates else None,
                    server_hostname=host if certificates else None,
                )
                await link.ready
                return link
        except TimeoutError:
            if link is not None:
                link.abort()
            raise UnreachableError(f"no connection within {DIAL_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise UnreachableError(explain(error)) from error

    def _open(self, route: Route, link: Link) -> None:
        route.why = "connected before"
        route.opened_s = asyncio.get_running_loop().time()
        if route.any_name:
            route.link = link
        while route.queue:
            if not link.send(route.queue.popleft()):
                self._network.counts["dropped"] += 1

    def introduce(self, link: Link) -> None:
        """A peer is connected, whoever dialled: what was kept for it can go."""
        route = self._routes.get(link.peer)
        if route is not None and route.queue:
            self._open(route, link)

    def forget(self, link: Link) -> None:
        for route in self._routes.values():
            if route.link is link:
                route.link = None

    def stop(self) -> None:
        for route in self._routes.values():
            if route.dialling is not None:
                route.dialling.cancel()
            if route.attempt is not None and not route.attempt.done():
                route.attempt.set_exception(UnreachableError("this node is closing; nothing was sent"))


def _begin_attempt() -> asyncio.Future[Link]:
    attempt: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
    # Nobody may be waiting for it; that is no reason for a warning.
    attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
    return attempt
