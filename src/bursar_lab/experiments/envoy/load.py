"""A load that does not wait for answers: so many requests a second of each tenant at each Envoy.

Every connection has one request under way; late answers only make more connections. What was
answered is counted by the second in which it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import cast

TICK_S = 0.004
CONNECTIONS_MAX = 200
CATCH_UP_S = 0.1
"""A generator that was held up by a busy machine makes up for at most this much."""

Flow = tuple[str, str]
"""(Envoy, tenant)"""


class Connection(asyncio.Protocol):
    """One request at a time; `free` gets it back when the answer is here."""

    def __init__(self, free: list[Connection]) -> None:
        self._free = free
        self._waiting: tuple[Load, Flow] | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, load: Load, flow: Flow, request: bytes) -> None:
        self._waiting = (load, flow)
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, gap, body = self._data.partition(b"\r\n\r\n")
        if not gap or len(body) < _read_length(head):
            return
        self._data = b""
        if self._waiting is not None:
            load, flow = self._waiting
            self._waiting = None
            load.count(flow, head[9:12])
        self._free.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None:
            load, flow = self._waiting
            load.count(flow, b"lost")
        if self in self._free:
            self._free.remove(self)

    def close(self) -> None:
        self._transport.close()


def _read_length(head: bytes) -> int:
    _, found, rest = head.partition(b"content-length: ")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


class Load:
    """`rates` may be changed at any time; `seen[second][envoy, tenant, status]` is what came back,
    `sent[second][envoy, tenant]` what was really asked: a busy machine sends less than told."""

    def __init__(self, ports: Mapping[str, int], header: str = "x-tenant") -> None:
        self.rates: dict[Flow, float] = {}
        self.seen: dict[int, Counter[tuple[str, str, str]]] = {}
        self.sent: dict[int, Counter[Flow]] = {}
        self.ports = dict(ports)
        self._header = header
        self._free: dict[str, list[Connection]] = {name: [] for name in ports}
        self._open: Counter[str] = Counter()
        self._owed: dict[Flow, float] = {}
        self._began = time.monotonic()
        self._dialling: set[asyncio.Task[None]] = set()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began

    def count(self, flow: Flow, status: bytes) -> None:
        bin_ = self.seen.setdefault(int(self.now_s), Counter())
        bin_[flow[0], flow[1], status.decode()] += 1

    async def run(self, until_s: float) -> None:
        """Keep the rates until so many seconds after the load was made."""
        last = self.now_s
        while (now := self.now_s) < until_s:
            for flow, rate in self.rates.items():
                owed = self._owed.get(flow, 0.0) + rate * min(now - last, CATCH_UP_S)
                whole = int(owed)
                self._owed[flow] = owed - whole
                for _ in range(whole):
                    self._send(flow)
            last = now
            await asyncio.sleep(TICK_S)

    def _send(self, flow: Flow) -> None:
        request = f"GET / HTTP/1.1\r\nhost: x\r\n{self._header}: {flow[1]}\r\n\r\n".encode()
        self.sent.setdefault(int(self.now_s), Counter())[flow] += 1
        free = self._free[flow[0]]
        if free:
            free.pop().send(self, flow, request)
        elif self._open[flow[0]] < CONNECTIONS_MAX:
            self._open[flow[0]] += 1
            task = asyncio.create_task(self._dial(flow, request))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        else:
            self.count(flow, b"shed")

    async def _dial(self, flow: Flow, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        free = self._free[flow[0]]
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(free), "127.0.0.1", self.ports[flow[0]]
            )
        except OSError:
            self._open[flow[0]] -= 1
            self.count(flow, b"lost")
            return
        connection.send(self, flow, request)

    def close(self) -> None:
        for connections in self._free.values():
            for connection in list(connections):
                connection.close()

    def admitted(self, envoys: tuple[str, ...], tenant: str, second: int) -> int:
        seen = self.seen.get(second, Counter())
        return sum(seen[name, tenant, "200"] for name in envoys)

    def offered(self, envoys: tuple[str, ...], tenant: str, second: int) -> int:
        sent = self.sent.get(second, Counter())
        return sum(sent[name, tenant] for name in envoys)
