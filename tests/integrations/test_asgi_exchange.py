"""What a request costs: by its answer, its failing, its stream, and the client's leaving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from asgi_budget import Budget, fetch, guard
from fastapi import FastAPI, HTTPException, Request
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from bursar.demo.ports import find_free_port
from bursar.integrations.asgi import grant_of, used_by_bytes, used_by_header
from bursar.integrations.asgi.costs import RequestGrant

KINDS = [True, False]
SCOPE = {"type": "http", "headers": [], "path": "/"}


def answering(handler: Any) -> Starlette:
    return Starlette(routes=[Route("/items", handler)])


async def never() -> Any:
    await asyncio.Event().wait()


async def drop(message: Any) -> None:
    pass


# --- what an answer costs -----------------------------------------------------------------------


@pytest.mark.parametrize("refunds", KINDS)
@pytest.mark.parametrize("status", [500, 502, 503])
async def test_an_answer_of_500_and_above_failed_and_is_charged_only_by_kinds_that_refund_nothing(
    status: int, refunds: bool
) -> None:
    budget, app = Budget(refunds=refunds), FastAPI()

    @app.get("/items")
    async def fail() -> None:
        raise HTTPException(status)

    assert (await fetch(guard(budget, app, amount=80))).status_code == status
    assert budget.left == (100 if refunds else 20)


@pytest.mark.parametrize("refunds", KINDS)
async def test_a_handler_that_raises_failed_too(refunds: bool) -> None:
    async def fail(request: Request) -> PlainTextResponse:
        raise RuntimeError("as planned")

    budget = Budget(refunds=refunds)
    assert (await fetch(guard(budget, answering(fail), amount=80))).status_code == 500
    assert budget.left == (100 if refunds else 20)


@pytest.mark.parametrize("status", [200, 301, 404, 429, 499])
async def test_an_answer_below_500_is_charged(status: int) -> None:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("no", status)

    budget = Budget()
    await fetch(guard(budget, answering(answer), amount=80))
    assert budget.left == 20


async def test_what_the_handler_settled_is_charged_whatever_it_answers() -> None:
    async def fail(request: Request) -> PlainTextResponse:
        grant_of(request).settle(30)
        raise HTTPException(502)

    budget = Budget()
    await fetch(guard(budget, answering(fail), amount=80))
    assert budget.left == 70


async def test_the_handler_finds_the_grant_in_the_state_and_in_the_scope() -> None:
    seen = []

    async def answer(request: Request) -> PlainTextResponse:
        seen.extend([request.state.grant, grant_of(request), grant_of(request.scope)])
        request.state.grant.settle(30)
        return PlainTextResponse("ok")

    budget = Budget()
    await fetch(guard(budget, answering(answer), amount=80))
    assert budget.left == 70
    assert isinstance(seen[0], RequestGrant) and seen[0] is seen[1] is seen[2]


# --- what `used` says ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "left"), [(used_by_bytes, 75), (used_by_header("x-cost"), 60), (used_by_header("y"), 20)]
)
async def test_the_cost_may_be_the_bytes_sent_or_what_a_header_says(used: Any, left: int) -> None:
    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("x" * 25, headers={"x-cost": "40"})

    budget = Budget()
    await fetch(guard(budget, answering(answer), amount=80, used=used))
    assert budget.left == left


async def test_the_length_of_a_failed_answer_is_not_a_cost() -> None:
    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("x" * 25, 502)

    budget = Budget()
    await fetch(guard(budget, answering(answer), amount=80, used=used_by_bytes))
    assert budget.left == 100


async def test_a_response_that_costs_more_than_was_acquired_is_charged_what_was_acquired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("x" * 25)

    budget = Budget()
    with caplog.at_level(logging.WARNING, "bursar"):
        answered = await fetch(guard(budget, answering(answer), amount=10, used=used_by_bytes))
    assert answered.text == "x" * 25
    assert budget.left == 90
    assert "asgi.not_settled" in caplog.text


# --- streams ------------------------------------------------------------------------------------


async def test_a_stream_holds_its_grant_until_it_is_through() -> None:
    budget = Budget()

    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                assert (budget.left, budget.ended) == (20, 0)
                yield b"x" * 10
            grant_of(request).settle(30)

        return StreamingResponse(parts())

    assert (await fetch(guard(budget, answering(stream), amount=80))).text == "x" * 30
    assert (budget.left, budget.ended) == (70, 1)


async def test_work_behind_the_response_does_not_hold_the_grant() -> None:
    budget = Budget()
    ended = []

    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok", background=BackgroundTask(lambda: ended.append(budget.ended)))

    await fetch(guard(budget, answering(answer)))
    assert ended == [1]


@pytest.mark.parametrize(("used", "left"), [(None, 100), (used_by_bytes, 90)])
async def test_a_stream_that_breaks_off_failed_but_costs_what_was_sent_if_that_is_counted(
    used: Any, left: int
) -> None:
    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"x" * 10
            raise RuntimeError("as planned")

        return StreamingResponse(parts())

    budget = Budget()
    await fetch(guard(budget, answering(stream), amount=80, used=used))
    assert (budget.left, budget.ended) == (left, 1)


# --- clients that leave -------------------------------------------------------------------------


async def send_ten(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})


@pytest.mark.parametrize(("used", "left"), [(None, 20), (used_by_bytes, 90)])
async def test_a_request_that_is_cancelled_is_charged_for_what_is_known(used: Any, left: int) -> None:
    budget, begun = Budget(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send_ten(scope, receive, send)
        begun.set()
        await never()

    task = asyncio.create_task(guard(budget, app, amount=80, used=used)(dict(SCOPE), never, drop))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (budget.left, budget.ended) == (left, 1)


@pytest.mark.parametrize(("used", "left"), [(None, 20), (used_by_bytes, 90)])
async def test_a_client_that_leaves_has_not_failed(used: Any, left: int) -> None:
    """Otherwise reading all but the last byte would be free."""

    async def leave() -> Any:
        return {"type": "http.disconnect"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send_ten(scope, receive, send)
        assert (await receive())["type"] == "http.disconnect"
        raise RuntimeError("the client is gone")

    budget = Budget()
    with pytest.raises(RuntimeError, match="gone"):
        await guard(budget, app, amount=80, used=used)(dict(SCOPE), leave, drop)
    assert (budget.left, budget.ended) == (left, 1)


async def test_a_server_that_cannot_send_any_more_tells_of_a_client_that_left() -> None:
    async def break_off(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise OSError("connection reset")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send_ten(scope, receive, send)
        except OSError as error:
            raise RuntimeError("the client is gone") from error

    budget = Budget()
    with pytest.raises(RuntimeError, match="gone"):
        await guard(budget, app, amount=80)(dict(SCOPE), never, break_off)
    assert (budget.left, budget.ended) == (20, 1)


async def test_a_client_of_a_real_server_that_hangs_up_ends_its_grant() -> None:
    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(0.01)

        return StreamingResponse(parts())

    budget, port = Budget(10**6), find_free_port()
    app = guard(budget, answering(stream), amount=10**5, used=used_by_bytes)
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_level="error"))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(30):
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /items HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"x\r\n")
        assert budget.ended == 0
        writer.close()
        while not budget.ended:
            await asyncio.sleep(0.01)
        server.should_exit = True
        await serving
    assert 10**6 - 10**4 < budget.left < 10**6
