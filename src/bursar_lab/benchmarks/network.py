"""A call between two nodes, beside the floor: a raw asyncio echo of frames of the same sizes.

Both servers run in one child process, both clients in this one, on the same kind of event loop,
in many short turns, and the fastest turn of each counts: whatever else the machine does only ever
adds to a turn. The floor parses nothing, looks
nothing up, starts no handler and keeps no deadline; the ratio is what all that costs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import deque
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, cast

from bursar.runtime import frames
from bursar.runtime.loops import has_uvloop, new_event_loop
from bursar.runtime.network import SocketNetwork
from bursar.world import SECOND_NS, Message

RATIO_MAX = 1.5
SECRET = bytes(32)
TOPIC = "bench/echo"
AT_ONCE = 64

Factory = Callable[[], asyncio.AbstractEventLoop]
Best = dict[tuple[str, int], float]


class Ask(Message, frozen=True):
    tenant: str
    amount: int


class Answer(Message, frozen=True):
    amount: int


_REQUEST = frames.encode(frames.CALL, 1000, TOPIC, Ask("acme", 1000))
_REPLY = frames.encode(frames.REPLY, 1000, "", Answer(1000))


class EchoServer(asyncio.Protocol):
    """Answers every request-sized piece with a reply-sized one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._bytes = 0

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        whole, self._bytes = divmod(self._bytes, len(_REQUEST))
        if whole:
            self._transport.write(_REPLY * whole)


class EchoClient(asyncio.Protocol):
    """Waits for one reply-sized piece for each request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._bytes = 0

    async def call(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        self._transport.write(_REQUEST)
        await future

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        whole, self._bytes = divmod(self._bytes, len(_REPLY))
        for _ in range(whole):
            self._waiting.popleft().set_result(None)

    def close(self) -> None:
        self._transport.close()


async def _answer(sender: str, message: Ask) -> Answer:
    return Answer(message.amount)


def _serve(factory: Factory, pipe: Connection) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve_both(pipe))


async def _serve_both(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    echo = await loop.create_server(EchoServer, "127.0.0.1", 0)
    node = SocketNetwork("server", 1, secret=SECRET)
    node.serve(TOPIC, Ask, _answer)
    address = await node.listen("127.0.0.1:0")
    pipe.send((echo.sockets[0].getsockname()[1], address.port))
    await loop.run_in_executor(None, pipe.recv)
    echo.close()
    await node.close()


async def _time_calls(call: Callable[[], Awaitable[Any]], count: int, at_once: int) -> float:
    """Microseconds a call, `at_once` callers each waiting for its own answer."""

    async def caller() -> None:
        for _ in range(count // at_once):
            await call()

    began = time.perf_counter_ns()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return (time.perf_counter_ns() - began) / (count // at_once * at_once) / 1000


async def _measure(ports: tuple[int, int], rounds: int, count: int) -> dict[tuple[str, int], list[float]]:
    echo_port, node_port = ports
    _, echo = await asyncio.get_running_loop().create_connection(EchoClient, "127.0.0.1", echo_port)
    node = SocketNetwork("caller", 1, secret=SECRET, peers={"server": f"127.0.0.1:{node_port}"})
    message = Ask("acme", 1000)

    def call() -> Awaitable[Any]:
        return node.call("server", TOPIC, message, Answer, SECOND_NS)

    seen: dict[tuple[str, int], list[float]] = {}
    await _time_calls(call, count, 1)
    for _ in range(rounds):
        for at_once in (1, AT_ONCE):
            for name, work in (("floor", echo.call), ("call", call)):
                took = await _time_calls(work, count, at_once)
                seen.setdefault((name, at_once), []).append(took)
    echo.close()
    await node.close()
    return seen


def run(quick: bool) -> dict[str, Any]:
    """Measure on asyncio's own event loop and, where it is installed, on uvloop; return the
    figures: microseconds a round trip, and the ratios to the floor. One caller at a time must keep
    to the bound on each loop, against the echo on that loop."""
    rounds, count = (30, 320) if quick else (200, 640)
    table: list[dict[str, Any]] = []
    for loop_name, factory in _factories().items():
        best = _run_on(factory, rounds, count)
        table += [_row(loop_name, at_once, best) for at_once in (1, AT_ONCE)]
    worst = max(row["ratio"] for row in table if row["callers at once"] == 1)
    return {
        "table": table,
        "ok": worst <= RATIO_MAX,
        "ratio": worst,
        "ratio_max": RATIO_MAX,
        "rounds": rounds,
        "calls_a_round": count,
        "request_bytes": len(_REQUEST),
        "reply_bytes": len(_REPLY),
    }


def _factories() -> dict[str, Factory]:
    return {"asyncio": asyncio.new_event_loop} | ({"uvloop": new_event_loop} if has_uvloop() else {})


def _run_on(factory: Factory, rounds: int, count: int) -> Best:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    server = context.Process(target=_serve, args=(factory, other), daemon=True)
    server.start()
    ports = pipe.recv()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            seen = runner.run(_measure(ports, rounds, count))
    finally:
        pipe.send(None)
        server.join(5)
    return {name: min(took) for name, took in seen.items()}


def _row(loop_name: str, at_once: int, best: Best) -> dict[str, Any]:
    floor, call = best["floor", at_once], best["call", at_once]
    return {
        "event loop": loop_name,
        "callers at once": at_once,
        "raw echo us": round(floor, 1),
        "bursar call us": round(call, 1),
        "ratio": round(call / floor, 2),
        "bound": f"{RATIO_MAX:g}" if at_once == 1 else "none set",
    }
