"""Clients that leave while their request waits for tokens, and what is kept of what they sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from bursar.demo.ports import find_free_port
from bursar.integrations.asgi import BursarMiddleware, by_header, by_path
from bursar.integrations.asgi.listening import KEPT_MAX_BYTES, Listening
from bursar.policy import parse
from bursar.resource.door import Resource
from bursar.runtime.client import connect

POLICY = """
[resource.api]
kind = "rate"
period = "1min"
servers = {{ here = "1k/s" }}
[resource.api.tenant]
acme = {{ limit = "2/min" }}
[daemon]
http = "off"
state = "{state}"
"""


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[int]:
    port = find_free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_level="error"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield port
    server.should_exit = True
    await serving


@pytest.fixture
async def api(tmp_path: Any) -> AsyncIterator[Any]:
    async with await connect(parse(POLICY.format(state=tmp_path / "state"))) as held:
        grant = await held.resource("api").acquire("acme", 2, wait=20.0)  # its tokens are in the journal now
        grant.settle(0)
        await grant.release()
        yield held


def guard(app: Any, held: Any, **options: Any) -> BursarMiddleware:
    options = {"tenant": by_header("x-tenant"), "wait": 30.0} | options
    return BursarMiddleware(app, bursar=held, resource="api", **options)


async def send(port: int, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    return reader, writer


async def test_a_client_that_hangs_up_while_its_request_waits_waits_no_longer(api: Any) -> None:
    door: Resource = api.resource("api")
    called: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        called.append(scope["path"])
        await PlainTextResponse("ok")(scope, receive, send)

    await door.acquire("acme", 2)
    async with serve(guard(app, api)) as port:
        for body in (b"", b"x" * 10):
            head = b"POST / HTTP/1.1\r\nhost: x\r\nx-tenant: acme\r\ncontent-length: %d\r\n\r\n" % len(body)
            _, writer = await send(port, head + body)
            await until(lambda: door.asking.waiting == 1)
            writer.close()
            await until(lambda: door.asking.waiting == 0)
    assert called == []


async def test_the_body_that_came_meanwhile_is_the_applications(api: Any) -> None:
    door: Resource = api.resource("api")

    async def echo(request: Request) -> PlainTextResponse:
        body = await request.body()
        return PlainTextResponse(str(len(body)))

    grant = await door.acquire("acme", 2)
    grant.settle(1)
    app = guard(Starlette(routes=[Route("/", echo, methods=["POST"])]), api)
    length = 4 * KEPT_MAX_BYTES
    async with serve(app) as port:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nx-tenant: acme\r\nconnection: close\r\n"
        reader, writer = await send(port, head + b"content-length: %d\r\n\r\n" % length)
        await until(lambda: door.asking.waiting == 1)
        writer.write(b"x" * (length - 1))
        await asyncio.sleep(0.05)  # some of it is heard while it waits, and some is not
        await grant.release()
        writer.write(b"x")
        answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"%d" % length)


async def test_nothing_is_heard_of_a_request_that_does_not_wait() -> None:
    async def receive() -> Any:
        raise AssertionError("nobody asked")

    async def decide() -> str:
        return "granted"

    listening = Listening(receive)
    assert await listening.wait(decide()) == "granted"
    listening.close()


async def test_who_cancels_a_request_that_waits_is_not_taken_for_the_client() -> None:
    listening = Listening(asyncio.Event().wait)  # type: ignore[arg-type]
    task = asyncio.create_task(listening.wait(asyncio.Event().wait()))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    listening.close()


async def test_a_mounted_application_is_limited_by_its_own_paths_and_opens_at_its_first_request(
    api: Any,
) -> None:
    def ok(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.url.path)

    inner = guard(Starlette(routes=[Route("/{rest:path}", ok)]), api, tenant=by_path(0), wait=0.0)
    async with serve(Starlette(routes=[Mount("/v1", inner)])) as port:
        told = []
        for path in (b"/v1/acme/x", b"/v1/acme/y", b"/v1/acme/z", b"/v1/"):
            reader, _ = await send(
                port, b"GET " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            )
            told.append((await reader.read())[9:12])
    assert told == [b"200", b"200", b"429", b"400"]
