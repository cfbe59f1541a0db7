"""The middleware in front of a daemon, over real sockets: there, away, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_budget import Budget, fetch
from fastapi import FastAPI, HTTPException

from bursar.demo.ports import find_free_port
from bursar.integrations.asgi import BursarMiddleware, by_header
from bursar.policy import parse
from bursar.resource.clients import Clients
from bursar.resource.door import Resource
from bursar.runtime.client import Bursar
from bursar.runtime.world import open_world

POLICY = """
[resource.budget]
kind = "rate"
period = "10s"
servers = { a = "10/s", b = "10/s" }
without_bursar = "refuse"
[resource.budget.tenant]
acme = { limit = "100/10s" }
"""


@asynccontextmanager
async def serving(budget: Budget, port: int) -> AsyncIterator[None]:
    """A daemon that has the budget."""
    world = await open_world("node", listen=f"127.0.0.1:{port}")
    door = Resource(world, budget, parse(POLICY).resource("budget"))
    await door.start()
    Clients(world, {"budget": door}).start()
    try:
        yield
    finally:
        await world.close()


@asynccontextmanager
async def living(port: int, **options: Any) -> AsyncIterator[BursarMiddleware]:
    """An application behind the middleware, from its start to its end."""
    app = FastAPI()

    @app.get("/items")
    async def items(fail: int = 0) -> str:
        if fail:
            raise HTTPException(fail)
        return "fine"

    held = Bursar(f"bursar://127.0.0.1:{port}", timeout=1.0)
    tenant = by_header("x-tenant", "acme")
    guarded = BursarMiddleware(app, bursar=held, resource="budget", tenant=tenant, **options)
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    started = asyncio.Event()

    async def hear(message: Any) -> None:
        assert message["type"] in ("lifespan.startup.complete", "lifespan.shutdown.complete"), message
        started.set()

    life = asyncio.create_task(guarded({"type": "lifespan"}, messages.get, hear))
    messages.put_nowait({"type": "lifespan.startup"})
    await started.wait()
    yield guarded
    messages.put_nowait({"type": "lifespan.shutdown"})
    await life


@pytest.fixture
def budget() -> Budget:
    budget = Budget()
    budget.kind = "rate"
    return budget


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_a_daemons_answers_say_the_same_as_those_of_this_process(budget: Budget) -> None:
    port = find_free_port()

    async def is_refunded() -> bool:
        return budget.left == 70

    async with serving(budget, port), living(port, amount=30) as app:
        granted = await fetch(app)
        failed = await fetch(app, "/items?fail=502")
        await until(is_refunded)
        again = await fetch(app)
        await fetch(app)
        refused = await fetch(app)
        stranger = await fetch(app, x_tenant="acmee")
    assert (granted.status_code, failed.status_code, again.status_code) == (200, 502, 200)
    assert granted.headers["ratelimit-policy"] == '"budget";q=100;w=10'
    assert granted.headers["ratelimit"] == again.headers["ratelimit"].replace("r=40", "r=70")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert refused.headers["ratelimit-policy"] == '"budget";q=100;w=10'
    assert stranger.status_code == 403


async def test_a_daemon_may_come_go_and_come_back(budget: Budget) -> None:
    port = find_free_port()

    async def answers(status: int) -> bool:
        return (await fetch(app)).status_code == status

    async with living(port) as app:
        away = await fetch(app)
        assert away.status_code == 503 and int(away.headers["retry-after"]) >= 1
        async with serving(budget, port):
            await until(lambda: answers(200))
        await until(lambda: answers(503))
        async with serving(budget, port):
            await until(lambda: answers(200))


async def test_where_requests_are_allowed_nobody_notices_that_the_daemon_is_away(budget: Budget) -> None:
    port = find_free_port()

    async def is_asked() -> bool:
        assert (await fetch(app)).status_code == 200
        return budget.asked > 0

    async with living(port, when_away="allow") as app:
        assert (await fetch(app)).status_code == 200
        async with serving(budget, port):
            await until(is_asked)
        assert {(await fetch(app)).status_code for _ in range(3)} == {200}
