"""Takes connections: a place first, then TLS, then the link.

A connection costs one open file until its first byte comes: only then its handshake begins, and that
has a time within which it must end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from bursar.errors import NetworkError
from bursar.runtime.admission import Admission, Place
from bursar.runtime.link import Link
from bursar.runtime.routes import Address, explain
from bursar.world import SECOND_NS

if TYPE_CHECKING:
    from bursar.runtime.network import SocketNetwork

BACKLOG = 1024
ACCEPTS_AT_ONCE = 2
"""Few, so that those who are connected are not kept waiting by those who come."""

RETRY_S = 0.1
"""Before the next try when the system has no more files."""


class Listener:
    """The listening sockets of one node."""

    def __init__(self, network: SocketNetwork, admission: Admission) -> None:
        self._network = network
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._arrivals: dict[Arrival, None] = {}
        self._waiting: tuple[socket.socket, str] | None = None
        self._closed = False

    async def open(self, at: Address) -> Address:
        """Returns the address with the port that was chosen for port 0. Raises NetworkError."""
        try:
            infos = await self._loop.getaddrinfo(
                at.host, at.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            port = at.port
            for family, where in dict.fromkeys((info[0], info[4]) for info in infos):
                listening = _bind(family, (where[0], port, *where[2:]))
                self._sockets.append(listening)
                port = listening.getsockname()[1]
        except OSError as error:
            self.close()
            raise NetworkError(
                f"cannot listen on {at}: {explain(error)}; stop what listens there (another "
                "`bursar serve`?), or give another address with --listen or listen under [daemon]"
            ) from error
        self._resume()
        return Address(at.host, port)

    def close(self) -> None:
        self._closed = True
        self._pause()
        while self._sockets:
            self._sockets.pop().close()
        if self._waiting is not None:
            self._waiting[0].close()
        for arrival in list(self._arrivals):
            arrival.end()

    # -- taking

    def _pause(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())

    def _resume(self) -> None:
        if self._closed:
            return
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            if not self._take(*waiting):
                return
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _pause_for(self, pause_s: float) -> None:
        self._pause()
        self._loop.call_later(pause_s, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                taken, where = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._network.note("accept.failed", why=str(error))
                self._pause_for(RETRY_S)
                return
            taken.setblocking(False)
            if not self._take(taken, where[0]):
                return

    def _take(self, taken: socket.socket, address: str) -> bool:
        """False: there is no place yet, so that this one and all after it wait."""
        now = self._network.clock.now()
        free_at = self._admission.free_at(now, address)
        if free_at > now:
            self._waiting = (taken, address)
            self._network.counts["accept.delayed"] += 1
            self._pause_for((free_at - now) / SECOND_NS)
            return False
        arrival = Arrival(self._network, taken, self._forget)
        self._arrivals[arrival] = None
        arrival.begin(self._admission.enter(now, address, arrival.evict))
        return True

    def _forget(self, arrival: Arrival) -> None:
        self._arrivals.pop(arrival, None)


class Arrival:
    """A connection until it has a link."""

    def __init__(
        self, network: SocketNetwork, taken: socket.socket, forget: Callable[[Arrival], None]
    ) -> None:
        self._network = network
        self._socket = taken
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._place: Place | None = None
        self._link: Link | None = None
        self._opening: asyncio.Task[None] | None = None

    def begin(self, place: Place) -> None:
        self._place = place
        self._loop.add_reader(self._socket.fileno(), self._hear)

    def _hear(self) -> None:
        assert self._place is not None, "it has begun"
        self._loop.remove_reader(self._socket.fileno())
        self._place.heard = True
        self._opening = self._loop.create_task(self._open(self._place))
        self._opening.add_done_callback(lambda _: self._finish())

    async def _open(self, place: Place) -> None:
        network = self._network
        context = network.certificates.listening if network.certificates else None
        timeout_s = network.limits.hello_timeout_ns / SECOND_NS
        try:
            _, self._link = await self._loop.connect_accepted_socket(
                lambda: Link(network, place=place),
                self._socket,
                ssl=context,
                ssl_handshake_timeout=timeout_s if context else None,
            )
        except OSError as error:  # TLS's own errors and timeouts are such, too
            network.dismiss(place)  # first, so that whoever reads the count finds the place free
            network.note("handshake.failed", why=str(error), address=place.address)

    def _finish(self) -> None:
        self._forget(self)
        if self._link is None:
            self._socket.close()
            if self._place is not None:
                self._network.dismiss(self._place)

    def evict(self, reason: str, why: str) -> None:
        """Its place is wanted."""
        if self._link is not None:
            self._link.cut(reason, why)
        else:
            address = self._place.address if self._place else ""
            self._network.note(f"cut.{reason}", why=why, address=address)
            self.end()

    def end(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        else:
            self._loop.remove_reader(self._socket.fileno())
            self._finish()


def _bind(family: int, where: tuple[str | int, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
