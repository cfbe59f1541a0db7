"""HTTP in the daemon's own loop: uvicorn's protocol, behind a listener that is bounded in size, time and
number.

uvicorn's `Server` is not used: it catches signals, ends the process where it cannot listen, and knows
no bound on how long a request may take to arrive or an answer to be read. Connections are taken here,
so that they are counted before a TLS handshake, and looked at twice a second: one that is slow, in
whichever direction, is cut off. Where there is no room, whoever is idle for longest makes way.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from bursar.errors import NetworkError
from bursar.policy.values import Tls
from bursar.runtime import logs
from bursar.runtime.routes import Address, explain
from bursar.runtime.tls import Certificates, names_in

SWEEP_S = 0.5
TELL_S = 10.0
BACKLOG = 256
NO_DESCRIPTORS_PAUSE_S = 0.1


def _is_told(record: logging.LogRecord) -> bool:
    """What a client sends wrongly is counted, not logged; and what is cancelled has not failed."""
    error = record.exc_info[1] if record.exc_info else None
    return record.levelno >= logging.ERROR and not isinstance(error, asyncio.CancelledError)


_quiet = logging.getLogger("bursar.http")
_quiet.addFilter(_is_told)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one client, or all of them, may occupy.

    connections_max   open at once; half as many may be in their TLS handshake, of which the oldest makes
                      way for the next
    head_max_bytes    the request line and headers
    receive_s         for a request to arrive, from the connection or the last answer on
    send_s            for an answer to be read
    keep_alive_s      for the next request on a connection"""

    connections_max: int = 512
    head_max_bytes: int = 16 * 1024
    receive_s: float = 20.0
    send_s: float = 10.0
    handshake_s: float = 5.0
    keep_alive_s: int = 15
    close_s: float = 0.3


class Connection(H11Protocol):
    """One connection: uvicorn's, which knows since when it has been receiving or sending."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, counts: Counter[str], greeted: Callable[[], None]
    ) -> None:
        super().__init__(config, state, {})
        self._greeted = greeted
        self.logger = _quiet
        self.access_log = False
        self._counts = counts
        self._served = 0
        self._doing = ("", 0)
        self.since = 0.0
        self.certificate: Mapping[str, Any] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._greeted()
        self.certificate = _find_certificate(transport)
        self.app_state = {"certificate": tuple(sorted(names_in(self.certificate or {})))}
        self.look(self.loop.time())

    def on_response_complete(self) -> None:
        self._served += 1
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._counts["cut_garbage"] += 1
        super().send_400_response(msg)

    def look(self, now: float) -> str:
        """What it has been doing since `since`: "send", "receive", or "" while it is being answered."""
        doing = (self._find_doing(), self._served)
        if doing != self._doing:
            self._doing, self.since = doing, now
        return doing[0]

    def _find_doing(self) -> str:
        if self.transport.get_write_buffer_size() or self.transport.is_closing():
            return "send"
        return "receive" if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) else ""


def _find_certificate(transport: asyncio.Transport) -> Mapping[str, Any] | None:
    """What the client showed, if it did."""
    secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return secured.getpeercert() if secured is not None else None


class HttpListener:
    """Serves one ASGI application. `counts` is what happened on its connections."""

    def __init__(self, app: Any, bounds: Bounds | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._bounds = bounds or Bounds()
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=self._bounds.keep_alive_s,
            h11_max_incomplete_event_size=self._bounds.head_max_bytes,
        )
        self._state = ServerState()
        self._socket: socket.socket | None = None
        self._certificates: Certificates | None = None
        self._context: ssl.SSLContext | None = None
        self._greeting: dict[asyncio.Task[None], None] = {}
        self._told: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    async def listen(self, address: str, secured: Tls | None = None) -> Address:
        """Raises NetworkError if the address is taken."""
        wanted = Address.parse(address)
        self._config.load()
        if secured is not None:
            self._certificates = Certificates(secured)
            self._use_certificates()
        family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
        try:
            self._socket = socket.create_server((wanted.host, wanted.port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise NetworkError(
                f"cannot serve HTTP on {wanted}: {explain(error)}; stop what listens there (another "
                "`bursar serve`?), or give another address with --http or http under [daemon]"
            ) from error
        self._socket.setblocking(False)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._accept(self._socket)), loop.create_task(self._sweep())]
        return Address(wanted.host, self._socket.getsockname()[1])

    async def close(self) -> None:
        """Take nobody new; answers under way have a moment to be read."""
        for task in [*self._tasks, *self._greeting]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._greeting, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self._bounds.close_s):
                while self._state.tasks:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            logs.info("http.cut_at_close", requests=len(self._state.tasks))
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()

    # -- taking connections

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, _ = await loop.sock_accept(listening)
            except OSError as error:
                self.counts["not_accepted"] += 1
                logs.warning("http.not_accepted", why=str(error))
                await asyncio.sleep(NO_DESCRIPTORS_PAUSE_S)
                continue
            if not self._make_room():
                self.counts["turned_away"] += 1
                taken.close()
                continue
            greeting = loop.create_task(self._greet(taken))
            self._greeting[greeting] = None
            greeting.add_done_callback(self._end_greeting)
            await asyncio.sleep(0)  # many that come at once are greeted one after the other

    def _make_room(self) -> bool:
        if self._context is not None and len(self._greeting) >= self._bounds.connections_max // 2:
            self.counts["cut_handshake"] += 1
            oldest = next(iter(self._greeting))  # whoever means it is done with that in a moment
            self._end_greeting(oldest)
            oldest.cancel()
        if len(self._state.connections) + len(self._greeting) < self._bounds.connections_max:
            return True
        now = asyncio.get_running_loop().time()
        idle = [each for each in self._connections() if each.look(now) == "receive"]
        if not idle:
            return False
        self._cut(min(idle, key=lambda each: each.since), "cut_idle")
        return True

    def _connections(self) -> list[Connection]:
        return [each for each in self._state.connections if isinstance(each, Connection)]

    async def _greet(self, taken: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        handshake_s = self._bounds.handshake_s if self._context is not None else None
        try:
            # asyncio leaves this out for a socket whose protocol it does not know, and an answer of two
            # pieces would then wait 40 ms for the client to acknowledge the first.
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                lambda: Connection(self._config, self._state, self.counts, lambda: self._end_greeting(task)),
                taken,
                ssl=self._context,
                ssl_handshake_timeout=handshake_s,
            )
            self.counts["accepted"] += 1
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            self.counts["cut_handshake"] += 1
            logs.debug("http.cut_handshake", why=str(error) or type(error).__name__)
            taken.close()

    def _end_greeting(self, task: asyncio.Task[None]) -> None:
        self._greeting.pop(task, None)

    # -- cutting off

    async def _sweep(self) -> None:
        limits = {"receive": self._bounds.receive_s, "send": self._bounds.send_s}
        loop = asyncio.get_running_loop()
        tell_at = loop.time()
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode("ascii"))]
            await asyncio.sleep(min(SWEEP_S, *limits.values()))
            now = loop.time()
            for connection in self._connections():
                doing = connection.look(now)
                if doing and now - connection.since > limits[doing]:
                    self._cut(connection, f"cut_slow_{doing}")
            self.reload()
            if now >= tell_at:
                tell_at = now + TELL_S
                self._tell()

    def reload(self, *, only_changed: bool = True) -> None:
        """Read the certificates again; who shows one that was revoked is cut off."""
        known = self._certificates
        if known is None or not known.reload(only_changed=only_changed):
            return
        self._use_certificates()
        for connection in self._connections():
            if known.is_revoked(connection.certificate):
                self._cut(connection, "cut_revoked")

    def _use_certificates(self) -> None:
        assert self._certificates is not None, "it was told to use TLS"
        self._context = self._certificates.listening
        self._context.verify_mode = ssl.CERT_OPTIONAL  # a token will do instead

    def _tell(self) -> None:
        """Log who was cut off, now and then: whoever does much of it must not fill the log."""
        cut = Counter({event: self.counts[event] for event in self.counts if event != "accepted"})
        since = cut - self._told
        self._told = cut
        if since:
            logs.warning("http.cut_off", **since)

    def _cut(self, connection: Connection, why: str) -> None:
        self.counts[why] += 1
        logs.debug("http.cut", why=why, client=str(connection.client))
        self._state.connections.discard(connection)
        connection.transport.abort()  # what it did not read is not kept for it
