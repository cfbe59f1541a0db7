"""The HTTP server of metrics and health: no request can hurt it, and a token keeps what it guards."""

from __future__ import annotations

import asyncio

import pytest

from bursar.errors import NetworkError
from bursar.runtime import http_server
from bursar.runtime.http_server import Answer, HttpServer

from .asking import ask, get

TOKEN = "a secret of this length"


async def say_fine() -> Answer:
    return Answer.text(200, "fine\n")


async def test_only_whole_small_get_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.2)
    server = HttpServer({"/live": say_fine})
    at = await server.listen("127.0.0.1:0")
    fine = await ask(at, b"GET /live?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert fine.startswith(b"HTTP/1.1 200 OK\r\n") and fine.endswith(b"\r\n\r\nfine\n")
    head = await ask(at, b"HEAD /live HTTP/1.1\r\n\r\n")
    assert b"Content-Length: 5\r\n" in head and head.endswith(b"\r\n\r\n")
    assert b"405" in await ask(at, b"POST /live HTTP/1.1\r\n\r\n")
    assert b"404" in await ask(at, b"GET /\xff HTTP/1.1\r\n\r\n")
    assert await ask(at, b"x" * 50_000) == b""
    assert await ask(at, b"GET /live HTTP/1.1\r\n") == b""
    server.close()


async def test_it_listens_beyond_loopback_where_it_is_told_to() -> None:
    server = HttpServer({"/live": say_fine})
    at = await server.listen("0.0.0.0:0")
    assert at.host == "0.0.0.0"
    assert await get(at, "/live") == (200, "fine\n")
    with pytest.raises(NetworkError, match="set another metrics"):
        await HttpServer({}).listen(str(at))
    server.close()


async def test_what_is_guarded_wants_the_token_and_the_rest_does_not() -> None:
    server = HttpServer({"/live": say_fine, "/metrics": say_fine}, token=TOKEN, guarded=("/metrics",))
    at = await server.listen("127.0.0.1:0")
    assert (await get(at, "/live"))[0] == 200
    assert (await get(at, "/metrics"))[0] == 401
    assert (await get(at, "/metrics", f"Authorization: Bearer {TOKEN}"))[0] == 200
    assert (await get(at, "/metrics", f"authorization:  bearer   {TOKEN} "))[0] == 200
    for wrong in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer", TOKEN, f"Bearer {TOKEN[:-1]}"):
        assert (await get(at, "/metrics", f"Authorization: {wrong}"))[0] == 401
    assert (await get(at, "/metrics", f"X-Authorization: Bearer {TOKEN}"))[0] == 401
    server.close()


async def test_an_answer_that_fails_is_an_answer() -> None:
    async def fail() -> Answer:
        raise ZeroDivisionError("faulty figures")

    server = HttpServer({"/metrics": fail, "/live": say_fine})
    at = await server.listen("127.0.0.1:0")
    assert (await get(at, "/metrics"))[0] == 500
    assert (await get(at, "/live"))[0] == 200
    server.close()


async def test_connections_beyond_the_bound_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 2)
    server = HttpServer({"/live": say_fine})
    at = await server.listen("127.0.0.1:0")
    held = [await asyncio.open_connection(at.host, at.port) for _ in range(2)]
    assert await ask(at, b"GET /live HTTP/1.1\r\n\r\n") == b""
    held[0][1].close()
    async with asyncio.timeout(5):
        while await ask(at, b"GET /live HTTP/1.1\r\n\r\n") == b"":
            await asyncio.sleep(0.01)
    held[1][1].close()
    server.close()


async def test_whoever_does_not_read_is_dropped_with_what_was_kept_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "ANSWER_TIMEOUT_S", 0.2)
    sent = 0

    class Pieces(list[bytes]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal sent
            for piece in super().__iter__():
                sent += 1
                yield piece

    async def say_much() -> Answer:
        return Answer(200, "text/plain", Pieces([b"x" * 1_000_000] * 200))

    server = HttpServer({"/metrics": say_much})
    at = await server.listen("127.0.0.1:0")
    _, writer = await asyncio.open_connection(at.host, at.port, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        while server._open or not sent:
            await asyncio.sleep(0.01)
    assert sent < 400, "counted once for its length, and not sent to the end"
    writer.close()
    server.close()
