"""Hostile connections: many that say nothing, that begin a handshake and stop, that come and come."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from bursar.errors import NetworkError
from bursar.policy.values import Tls
from bursar.runtime.limits import Limits
from bursar.runtime.network import SocketNetwork
from bursar.world import MILLISECOND_NS, SECOND_NS, Message

SECRET = bytes(32)
LIMITS = Limits(
    connections_max=100,
    quiet_ns=20 * MILLISECOND_NS,
    greeting_ns=100 * MILLISECOND_NS,
    hello_timeout_ns=400 * MILLISECOND_NS,
)


class Ping(Message, frozen=True):
    pass


async def echo(sender: str, message: Ping) -> Ping:
    return message


def tls(pem: Path, name: str) -> Tls:
    return Tls(cert=str(pem / f"{name}.crt"), key=str(pem / f"{name}.key"), ca=str(pem / "ca.crt"))


@contextlib.asynccontextmanager
async def open_node(settings: Tls | None = None) -> AsyncIterator[tuple[SocketNetwork, int]]:
    node = SocketNetwork("node-a", 1, limits=LIMITS, secret=SECRET, tls=settings)
    node.serve("ping", Ping, echo, anyone=True)
    node.serve("peers", Ping, echo)
    at = await node.listen("127.0.0.1:0")
    try:
        yield node, at.port
    finally:
        await node.close()


async def call(port: int, name: str, topic: str = "ping", settings: Tls | None = None) -> None:
    secret = SECRET if topic == "peers" else b""
    at = f"127.0.0.1:{port}"
    caller = SocketNetwork(name, 1, peers={"node-a": at}, tls=settings, secret=secret)
    try:
        await caller.call("node-a", topic, Ping(), Ping, 5 * SECOND_NS)
    finally:
        await caller.close()


async def flood(port: int, count: int, said: bytes = b"") -> list[socket.socket]:
    """Connections that say so much and no more."""
    loop = asyncio.get_running_loop()
    found = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        with contextlib.suppress(OSError):
            sock.send(said)
        found.append(sock)
    return found


def begin_handshake() -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def close_all(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(loop: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work())  # type: ignore[arg-type]


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_that_say_nothing_keep_nobody_out(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def work() -> None:
        async with open_node() as (node, port):
            held = await flood(port, 300)
            await call(port, "web/1")
            await call(port, "node-b", "peers")
            await until(lambda: node.counts["cut.crowded"] + node.counts["cut.stalled"] == 300)
            assert node._admission.held[0] == 0
            close_all(held)

    run(loop, work)


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("loop", LOOPS)
def test_handshakes_that_are_begun_and_not_ended_keep_nobody_out(
    loop: Callable[[], asyncio.AbstractEventLoop], pem: Path
) -> None:
    async def work() -> None:
        async with open_node(tls(pem, "node-a")) as (node, port):
            held = await flood(port, 40, begin_handshake())
            held += await flood(port, 100)
            await call(port, "web/1", settings=tls(pem, "web"))
            cut = ("cut.crowded", "cut.stalled", "handshake.failed")
            await until(lambda: sum(node.counts[name] for name in cut) >= 140)
            assert node._admission.held[0] == 0
            await call(port, "web/1", settings=tls(pem, "web"))
            close_all(held)

    run(loop, work)


@pytest.mark.needs("openssl")
async def test_a_handshake_has_a_time_also_where_there_is_room(pem: Path) -> None:
    async with open_node(tls(pem, "node-a")) as (node, port):
        held = await flood(port, 2, begin_handshake()) + await flood(port, 2)
        await until(lambda: node.counts["cut.stalled"] + node.counts["handshake.failed"] == 4)
        assert node._admission.held == [0, 0, 0, 0]
        close_all(held)


async def test_nodes_get_in_where_clients_have_taken_all_they_can() -> None:
    async with open_node() as (_, port):
        callers = [
            SocketNetwork(f"web/{number}", 1, peers={"node-a": f"127.0.0.1:{port}"}) for number in range(90)
        ]
        calls = [caller.call("node-a", "ping", Ping(), Ping, 5 * SECOND_NS) for caller in callers]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers.count(Ping()) == LIMITS.clients_max
        assert "as many clients as it takes" in str(next(a for a in answers if a != Ping()))
        await call(port, "node-b", "peers")
        for caller in callers:
            await caller.close()


async def test_many_clients_that_come_at_once_are_all_served() -> None:
    """More than there are places for new ones: they wait a little, and none is turned away."""
    async with open_node() as (node, port):
        await asyncio.gather(*(call(port, f"web/{number}") for number in range(LIMITS.clients_max)))
        assert node.counts["cut.full"] == 0


async def test_without_files_the_node_waits_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_node() as (node, port):
        assert node._listener is not None
        listening = node._listener._sockets[0]

        class Exhausted:
            def __init__(self) -> None:
                self.left = 2

            def accept(self) -> object:
                self.left -= 1
                if self.left >= 0:
                    raise OSError(24, "Too many open files")
                return listening.accept()

            def fileno(self) -> int:
                return listening.fileno()

            def close(self) -> None:
                listening.close()

        node._listener._pause()
        node._listener._sockets[0] = Exhausted()  # type: ignore[call-overload]
        node._listener._resume()
        await call(port, "web/1")
        assert node.counts["accept.failed"] == 2


async def test_where_clients_have_all_their_places_an_idle_one_makes_way_and_comes_back() -> None:
    limits = Limits(connections_max=20, client_idle_ns=100 * MILLISECOND_NS, stall_timeout_ns=SECOND_NS // 10)
    node = SocketNetwork("node-a", 1, limits=limits, secret=SECRET)
    node.serve("ping", Ping, echo, anyone=True)
    at = str(await node.listen("127.0.0.1:0"))
    callers = [SocketNetwork(f"web/{number}", 1, peers={"node-a": at}) for number in range(16)]
    for caller in callers[:15]:
        await caller.call("node-a", "ping", Ping(), Ping, SECOND_NS)
    with pytest.raises(NetworkError):
        await callers[15].call("node-a", "ping", Ping(), Ping, SECOND_NS)  # nobody has been idle for long
    async with asyncio.timeout(10):
        while len(node._idle) < 14:
            await callers[0].call("node-a", "ping", Ping(), Ping, SECOND_NS)
            await asyncio.sleep(0.01)
        while node.counts["cut.idle"] == 0:
            with contextlib.suppress(NetworkError):
                await callers[15].call("node-a", "ping", Ping(), Ping, SECOND_NS)
            await asyncio.sleep(0.01)
    assert callers[0].is_connected("node-a"), "it is not idle"
    for caller in callers:
        await caller.close()
    await node.close()
