"""The HTTP listener: no request, and no connection, can hurt it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.asking import ask, get
from tests.runtime.certificates import make_certificates

from bursar.errors import NetworkError
from bursar.policy.values import Tls
from bursar.runtime.http_listener import Bounds, HttpListener
from bursar.runtime.routes import Address

Send = Callable[[dict[str, Any]], Awaitable[None]]
Open = Callable[..., Awaitable[tuple[HttpListener, Address]]]


async def say_fine(scope: Any, receive: Any, send: Send, body: bytes = b"fine\n") -> None:
    """Reads what is sent, and answers."""
    while (await receive()).get("more_body"):
        continue
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def listen() -> AsyncIterator[Open]:
    opened: list[HttpListener] = []

    async def open_listener(app: Any = say_fine, tls: Tls | None = None, **bounds: Any) -> Any:
        listener = HttpListener(app, Bounds(**bounds))
        opened.append(listener)
        return listener, await listener.listen("127.0.0.1:0", tls)

    yield open_listener
    for listener in opened:
        await listener.close()


async def until_counted(listener: HttpListener, event: str) -> None:
    async with asyncio.timeout(10):
        while not listener.counts[event]:
            await asyncio.sleep(0.01)


async def test_a_request_is_answered_and_the_connection_kept(listen: Open) -> None:
    _, at = await listen()
    assert await get(at, "/") == (200, "fine\n")
    reader, writer = await asyncio.open_connection(at.host, at.port)
    for _ in range(3):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"fine" in await reader.readuntil(b"fine\n")
    writer.close()


async def test_an_answer_in_pieces_does_not_wait_for_the_first_to_be_acknowledged(listen: Open) -> None:
    listener, at = await listen()
    _, writer = await asyncio.open_connection(at.host, at.port)
    await until_counted(listener, "accepted")
    (connection,) = listener._connections()
    taken = connection.transport.get_extra_info("socket")
    assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()


async def test_an_address_that_is_taken_says_what_to_do(listen: Open) -> None:
    _, at = await listen()
    with pytest.raises(NetworkError, match=r"Address already in use; .*--http"):
        await HttpListener(say_fine).listen(str(at))


async def test_what_is_no_request_is_cut_off_and_counted(listen: Open) -> None:
    listener, at = await listen(head_max_bytes=4096)
    assert b"400" in await ask(at, b"\x00\x01garbage\r\n\r\n")
    assert b"200 OK" not in await ask(at, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 50_000)
    assert listener.counts["cut_garbage"] == 2
    assert (await get(at, "/"))[0] == 200


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n",
    ],
    ids=["nothing", "half a head", "half a body", "half of the next"],
)
async def test_a_request_that_does_not_arrive_is_cut_off(listen: Open, begun: bytes) -> None:
    listener, at = await listen(receive_s=0.2)
    await ask(at, begun)  # returns once the other side has closed
    assert listener.counts["cut_slow_receive"] == 1


async def test_bytes_now_and_then_are_no_way_to_stay(listen: Open) -> None:
    listener, at = await listen(receive_s=0.3)
    _, writer = await asyncio.open_connection(at.host, at.port)
    async with asyncio.timeout(10):
        for byte in b"GET / HTTP/1.1\r\n" * 1000:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
            if listener.counts["cut_slow_receive"]:
                break
    writer.close()


async def test_a_long_answer_is_waited_for(listen: Open) -> None:
    """Only arriving and reading are bounded: how long deciding takes is the application's business."""

    async def decide(scope: Any, receive: Any, send: Send) -> None:
        await asyncio.sleep(0.8)
        await say_fine(scope, receive, send)

    listener, at = await listen(decide, receive_s=0.2, send_s=0.2)
    assert (await get(at, "/"))[0] == 200
    assert not listener.counts["cut_slow_receive"]


async def test_whoever_does_not_read_is_dropped_with_what_was_kept_for_it(listen: Open) -> None:
    sent = 0

    async def say_much(scope: Any, receive: Any, send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
            sent += 1

    listener, at = await listen(say_much, send_s=0.3)
    _, writer = await asyncio.open_connection(at.host, at.port, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await until_counted(listener, "cut_slow_send")
    writer.close()


async def test_a_short_answer_that_is_not_read_is_no_reason_to_stay(listen: Open) -> None:
    async def say_some(scope: Any, receive: Any, send: Send) -> None:
        await say_fine(scope, receive, send, b"x" * 20_000_000)

    listener, at = await listen(say_some, send_s=0.3)
    _, writer = await asyncio.open_connection(at.host, at.port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await until_counted(listener, "cut_slow_send")
    writer.close()


async def test_the_idle_make_way_for_whoever_comes(listen: Open) -> None:
    listener, at = await listen(connections_max=4)
    held = [await asyncio.open_connection(at.host, at.port) for _ in range(20)]
    assert (await get(at, "/"))[0] == 200
    assert listener.counts["cut_idle"] >= 10
    for _, writer in held:
        writer.close()


async def test_those_that_are_being_answered_do_not_make_way(listen: Open) -> None:
    done = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Send) -> None:
        if scope["path"] == "/wait":
            await done.wait()
        await say_fine(scope, receive, send)

    listener, at = await listen(wait, connections_max=3)
    waiting = [asyncio.create_task(get(at, "/wait")) for _ in range(3)]
    async with asyncio.timeout(10):
        while listener.counts["accepted"] < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        while not listener.counts["turned_away"]:
            await ask(at, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    done.set()
    assert [status for status, _ in await asyncio.gather(*waiting)] == [200] * 3


async def test_closing_lets_an_answer_under_way_be_read_and_ends_the_rest(listen: Open) -> None:
    begun = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Send) -> None:
        begun.set()
        await asyncio.sleep(0.1 if scope["path"] == "/soon" else 60)
        await say_fine(scope, receive, send)

    listener, at = await listen(slow, close_s=0.5)
    soon = asyncio.create_task(get(at, "/soon"))
    never = asyncio.create_task(ask(at, b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n"))
    await begun.wait()
    await asyncio.sleep(0.02)
    await listener.close()
    assert (await soon)[0] == 200
    assert b"200" not in await never
    with pytest.raises(OSError):
        await get(at, "/")


async def test_tls_tells_who_asks_and_half_a_handshake_is_cut_off(listen: Open, tmp_path: Path) -> None:
    seen: list[Any] = []

    async def note(scope: Any, receive: Any, send: Send) -> None:
        seen.append(scope["state"]["certificate"])
        await say_fine(scope, receive, send)

    made = make_certificates(tmp_path, "node", "gateway")
    listener, at = await listen(note, made["node"], handshake_s=0.3)
    idle = await asyncio.open_connection(at.host, at.port)
    for client in (made["gateway"], None):
        context = ssl.create_default_context(cafile=str(made["node"].ca))
        context.check_hostname = False
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        reader, writer = await asyncio.open_connection(at.host, at.port, ssl=context)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200" in await reader.read()
        writer.close()
    assert "gateway" in seen[0] and seen[1] == ()
    await until_counted(listener, "cut_handshake")
    idle[1].close()


async def test_handshakes_that_are_never_finished_shut_nobody_out(listen: Open, tmp_path: Path) -> None:
    made = make_certificates(tmp_path, "node")
    listener, at = await listen(tls=made["node"], connections_max=20, handshake_s=60)
    idle = [await asyncio.open_connection(at.host, at.port) for _ in range(100)]
    context = ssl.create_default_context(cafile=str(made["node"].ca))
    reader, writer = await asyncio.open_connection(at.host, at.port, ssl=context)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"200" in await reader.read()
    assert listener.counts["cut_handshake"] >= 80
    for _, each in [*idle, (reader, writer)]:
        each.close()


async def test_who_was_cut_off_is_in_the_log(listen: Open, caplog: pytest.LogCaptureFixture) -> None:
    listener, at = await listen(receive_s=0.2)
    await ask(at, b"GET / HTTP/1.1\r\n")
    listener._tell()
    assert any(record.fields == {"cut_slow_receive": 1} for record in caplog.records)  # type: ignore[attr-defined]
