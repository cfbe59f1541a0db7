"""A request through the proxy, beside memcached itself and a proxy that only copies bytes.

All three stand in one run: memcached in its process, both proxies in another on the same kind of
event loop, the clients here. Nine gets to one set, values of 100 bytes. Two loads: callers that
each wait for their answer (latency), and pipelines of many requests (throughput). Many short turns,
in turn; the best of each counts, because whatever else the machine does only ever adds. What a request takes
of the processor is measured too: a busy machine changes it least.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from bursar.errors import BursarError
from bursar.integrations.memcached_proxy import Proxy
from bursar.policy import parse
from bursar.runtime.client import connect
from bursar.runtime.loops import new_event_loop
from bursar_lab.processes import start_memcached

CALLERS = 16
BARS = (0.7, 0.8)
"""Requests that come alone, and in pipelines."""

PIPELINE = 50
VALUE = b"v" * 100
SET = b"set acme:key 0 0 100\r\n" + VALUE + b"\r\n"
GET = b"get acme:key\r\n"
STORED = b"STORED\r\n"
FOUND = b"VALUE acme:key 0 100\r\n" + VALUE + b"\r\nEND\r\n"

POLICY = """
[resource.cache]
kind = "rate"
servers = {{ here = "100M/s" }}
pacing = false
[resource.cache.tenant]
acme = {{ limit = "50M/s" }}
[daemon]
http = "off"
state = "{state}"
"""


class CopyingClient(asyncio.Protocol):
    """The plainest proxy there is: bytes to and fro."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._early = b""
        self.other: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._dial(loop))

    async def _dial(self, loop: asyncio.AbstractEventLoop) -> None:
        other, _ = await loop.create_connection(
            lambda: CopyingServer(self._transport), "127.0.0.1", self._port
        )
        self.other = other
        other.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early += data
        else:
            self.other.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class CopyingServer(asyncio.Protocol):
    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)


def serve(port: int, pipe: Connection) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(port, pipe))


async def _serve(port: int, pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    copying = await loop.create_server(lambda: CopyingClient(port), "127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        async with await connect(parse(POLICY.format(state=folder))) as held:
            proxy = Proxy(held.resource("cache"), f"127.0.0.1:{port}", wait_s=2.0)
            (address,) = await proxy.listen({"127.0.0.1:0": None})
            pipe.send((copying.sockets[0].getsockname()[1], address.port))
            await loop.run_in_executor(None, pipe.recv)
            proxy.close()
    copying.close()


class Caller(asyncio.Protocol):
    """Sends `batch` requests and waits for all of their answers, again and again."""

    def __init__(self, batch: int) -> None:
        requests = [SET if n % 10 == 9 else GET for n in range(max(batch, 10))]
        answers = [STORED if n % 10 == 9 else FOUND for n in range(max(batch, 10))]
        self._rounds = [(b"".join(requests[n : n + batch]), sum(map(len, answers[n : n + batch])))
                        for n in range(0, len(requests), batch)]  # fmt: skip
        self.batch = batch
        self.took_ns: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def run(self, count: int) -> None:
        self._left, self._number = count, 0
        self._done = asyncio.get_running_loop().create_future()
        self._send()
        await self._done

    def _send(self) -> None:
        requests, self._expected = self._rounds[self._number % len(self._rounds)]
        self._number += 1
        self._began = time.perf_counter_ns()
        self._transport.write(requests)

    def data_received(self, data: bytes) -> None:
        self._expected -= len(data)
        if self._expected > 0:
            return
        if self._expected < 0 or data.startswith((b"SERVER_ERROR", b"CLIENT_ERROR")):
            self._done.set_exception(BursarError(f"a wrong answer: {data[:80]!r}"))
            return
        self.took_ns.append(time.perf_counter_ns() - self._began)
        self._left -= self.batch
        if self._left > 0:
            self._send()
        else:
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(BursarError("the connection was lost"))

    def close(self) -> None:
        self._transport.close()


def read_processor_us(pid: int) -> float:
    """What the threads of a process have used of a processor."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1000


Best = tuple[float, float, float]
"""Requests a second, the 99th percentile in microseconds, microseconds of processor a request."""


async def take_turn(port: int, pid: int, callers: int, batch: int, count: int) -> Best:
    loop = asyncio.get_running_loop()
    links = []
    for _ in range(callers):
        _, link = await loop.create_connection(lambda: Caller(batch), "127.0.0.1", port)
        links.append(link)
        await link.run(batch)  # the connection behind it is made, tokens are here
        link.took_ns.clear()
    began, used_us = time.perf_counter_ns(), read_processor_us(pid)
    await asyncio.gather(*(link.run(count) for link in links))
    used_us = read_processor_us(pid) - used_us
    seconds = (time.perf_counter_ns() - began) / 1e9
    took = sorted(ns for link in links for ns in link.took_ns)
    for link in links:
        link.close()
    return callers * count / seconds, took[int(len(took) * 0.99)] / 1000, used_us / callers / count


async def measure(ports: dict[str, tuple[int, int]], turns: int, count: int) -> list[dict[str, Any]]:
    """`ports`: where each listens, and its process."""
    _, first = await asyncio.get_running_loop().create_connection(
        lambda: Caller(10), "127.0.0.1", ports["memcached"][0]
    )
    first._expected = len(STORED)
    first._transport.write(SET)
    first._left, first._done = 1, asyncio.get_running_loop().create_future()
    first._began = 0
    await first._done
    first.close()
    best: dict[tuple[str, int], Best] = {}
    for _ in range(turns):
        for batch in (1, PIPELINE):
            for name, (port, pid) in ports.items():
                rate, p99, us = await take_turn(port, pid, CALLERS if batch == 1 else 4, batch, count)
                old = best.get((name, batch), (0.0, float("inf"), float("inf")))
                best[name, batch] = (max(old[0], rate), min(old[1], p99), min(old[2], us))
    return [_row(name, batch, found, best["copying proxy", batch]) for (name, batch), found in best.items()]


def _row(name: str, batch: int, found: Best, floor: Best) -> dict[str, Any]:
    return {
        "through": name,
        "load": f"{CALLERS} callers" if batch == 1 else f"4 pipelines of {batch}",
        "requests/s": round(found[0]),
        "to copying": round(found[0] / floor[0], 2),
        "p99 us": round(found[1]),
        "processor us": round(found[2], 1),
    }


def run(quick: bool) -> dict[str, Any]:
    turns, count = (5, 300) if quick else (60, 300)
    server, port = start_memcached()
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    child = context.Process(target=serve, args=(port, other), daemon=True)
    child.start()
    try:
        copying, bursar = pipe.recv()
        assert child.pid is not None
        proxies = {"copying proxy": (copying, child.pid), "bursar proxy": (bursar, child.pid)}
        ports = {"memcached": (port, server.pid), **proxies}
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            table = runner.run(measure(ports, turns, count))
        pipe.send(None)
    finally:
        child.join(5)
        server.kill()
        server.wait()
    shares = {row["load"]: row["to copying"] for row in table if row["through"] == "bursar proxy"}
    bars = [
        {"bar": f"{bar} of a copying proxy's requests, {load}", "found": share, "met": share >= bar}
        for (load, share), bar in zip(shares.items(), BARS, strict=True)
    ]
    return {
        "table": table,
        "bars": bars,
        "ok": all(bar["met"] for bar in bars),
        "turns": turns,
        "requests a turn and caller": count,
    }
