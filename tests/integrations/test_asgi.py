"""The middleware in front of real FastAPI and Starlette applications, and the decorator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import bursar
from bursar.errors import Refused, Unknown, UsageError
from bursar.integrations.asgi import (
    BursarMiddleware,
    by_header,
    by_key,
    by_path,
    grant_of,
    used_by_bytes,
    used_by_header,
    write_fields,
)
from bursar.integrations.plain import limited
from bursar.policy import Policy, parse
from bursar.resource import Explanation, Grant, Resource

POLICY = """
[resource.api]
kind = "rate"
period = "10s"
pacing = false
servers = {{ here = "1k/s" }}
[resource.api.tenant]
acme = {{ limit = "3/10s" }}
other = {{ limit = "1k/s" }}
[resource.disk]
kind = "share"
capacity = "1k/s"
[resource.disk.tenant]
acme = {{ weight = 1 }}
[daemon]
metrics = "off"
state = "{state}"
"""


@pytest.fixture
def policy(tmp_path: Any) -> Policy:
    return parse(POLICY.format(state=tmp_path / "state"))


class Budget(Resource):
    """A budget in plain sight: reserves, and takes back what was not used. `answer` may be an error
    that every acquisition gets."""

    kind = "quota"

    def __init__(self, left: int) -> None:
        super().__init__("budget")
        self.left = left
        self.answer: Exception | None = None
        self.released = asyncio.Event()

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        if self.answer is not None or amount > self.left:
            return None
        self.left -= amount
        return Grant(self, tenant, amount)

    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant:
        grant = self.try_acquire(tenant, amount)
        if grant is not None:
            return grant
        raise self.answer or Refused("it is used up", limit=100, remaining=self.left, retry_after=2.5)

    async def _give_back(self, grant: Grant) -> None:
        self.left += grant.amount - (grant.amount if grant.used is None else grant.used)
        self.released.set()

    def used_on_error(self, grant: Grant) -> int | None:
        return 0

    def explain(self, tenant: str) -> Explanation:
        return Explanation(resource=self.name, kind=self.kind, tenant=tenant, sentences=())

    def statistics(self) -> Mapping[str, Any]:
        return {}


class Backend:
    """What stands behind a `Bursar` that has just this one resource."""

    def __init__(self, resource: Resource) -> None:
        self.resources = {resource.name: resource}

    async def close(self) -> None:
        pass


def guard_budget(budget: Budget, app: Any, **options: Any) -> Any:
    from bursar.runtime.client import Bursar

    held = Bursar("bursar://127.0.0.1:1")
    held._connected = cast(Any, Backend(budget))
    tenant = options.pop("tenant", by_header("x-tenant", default="acme"))
    return BursarMiddleware(app, bursar=held, resource="budget", tenant=tenant, **options)


def make_fastapi(policy: Policy, **options: Any) -> FastAPI:
    app = FastAPI()

    @app.get("/items")
    async def items() -> dict[str, str]:
        return {"fine": "yes"}

    options = {"bursar": policy, "resource": "api", "tenant": by_header("x-tenant"), **options}
    app.add_middleware(BursarMiddleware, **options)
    return app


def wait_until_granting(client: TestClient) -> None:
    """A rate resource that has just begun has no tokens until its first period opens."""
    for _ in range(400):
        if client.get("/items", headers={"x-tenant": "other"}).status_code == 200:
            return
        time.sleep(0.025)
    raise AssertionError("no tokens came for ten seconds")


async def fetch(app: Any, path: str = "/items", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        return await client.get(
            path, headers={key.replace("_", "-"): value for key, value in headers.items()}
        )


def test_a_limit_holds_and_a_refusal_says_all_that_the_drafts_ask_for(policy: Policy) -> None:
    with TestClient(make_fastapi(policy, window_s=10)) as client:
        wait_until_granting(client)
        answers = [client.get("/items", headers={"x-tenant": "acme"}) for _ in range(6)]
        assert [answer.status_code for answer in answers][:3] == [200, 200, 200]
        refused = next(answer for answer in answers if answer.status_code != 200)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 11
        assert refused.headers["ratelimit"] == f'"api";r=0;t={refused.headers["retry-after"]}'
        assert refused.headers["ratelimit-policy"] == '"api";q=3;w=10'
        assert refused.headers["content-type"] == "application/problem+json"
        problem = refused.json()
        assert problem["type"].endswith("#quota-exceeded")
        assert problem["violated-policies"] == ["api"]
        assert "acme has used its 3 tokens" in problem["detail"]
        assert client.get("/items", headers={"x-tenant": "other"}).status_code == 200


def test_who_is_not_known_learns_nothing_about_the_others(policy: Policy) -> None:
    with TestClient(make_fastapi(policy)) as client:
        assert client.get("/items").status_code == 400
        stranger = client.get("/items", headers={"x-tenant": "acmee"})
        assert stranger.status_code == 403
        assert "acme" not in stranger.text


def test_a_policy_that_has_no_such_resource_stops_the_server_from_starting(policy: Policy) -> None:
    with (
        pytest.raises(UsageError, match=r"no resource 'apy'.*did you mean"),
        TestClient(make_fastapi(policy, resource="apy")),
    ):
        pass


def test_another_kind_works_the_same(policy: Policy) -> None:
    with TestClient(make_fastapi(policy, resource="disk", wait=1.0)) as client:
        assert client.get("/items", headers={"x-tenant": "acme"}).status_code == 200


async def test_without_lifespan_it_connects_at_the_first_request(policy: Policy) -> None:
    async with await bursar.connect(policy) as held:
        app = make_fastapi(policy, bursar=held, wait=10.0)
        answers = await asyncio.gather(*(fetch(app, x_tenant="other") for _ in range(5)))
        assert {answer.status_code for answer in answers} == {200}


async def test_waiting_to_a_deadline_brings_the_next_period(tmp_path: Any) -> None:
    text = POLICY.replace('period = "10s"', 'period = "200ms"').replace("3/10s", "15/s")
    short = parse(text.format(state=tmp_path / "state"))
    async with await bursar.connect(short) as held:
        app = make_fastapi(short, bursar=held, wait=lambda scope: 3.0)
        answers = [await fetch(app, x_tenant="acme") for _ in range(8)]
        assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize(
    ("find", "scope", "tenant"),
    [
        (by_header("X-Tenant"), {"headers": [(b"x-tenant", b"acme")]}, "acme"),
        (by_header("x-tenant", "guest"), {"headers": []}, "guest"),
        (by_key({"s3cret": "acme"}), {"headers": [(b"x-api-key", b"s3cret")]}, "acme"),
        (by_key({"s3cret": "acme"}), {"headers": [(b"x-api-key", b"guess")]}, None),
        (by_key({"k": "a"}, "authorization"), {"headers": [(b"authorization", b"Bearer k")]}, "a"),
        (by_path(0), {"path": "/acme/items"}, "acme"),
        (by_path(1), {"path": "/v1/acme"}, "acme"),
        (by_path(3), {"path": "/acme"}, None),
    ],
)
def test_the_tenant_is_found(find: Any, scope: Any, tenant: str | None) -> None:
    assert find(scope) == tenant


async def test_what_was_not_used_is_given_back_when_a_stream_is_through() -> None:
    budget = Budget(100)

    async def stream(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                assert budget.left == 20
                yield b"x" * 10
            grant_of(request).settle(30)

        return StreamingResponse(parts())

    app = guard_budget(budget, Starlette(routes=[Route("/items", stream)]), amount=80)
    assert (await fetch(app)).text == "x" * 30
    assert budget.left == 70


async def test_the_cost_may_be_the_bytes_sent_or_what_a_header_says() -> None:
    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("x" * 25, headers={"x-cost": "40"})

    for used, left in ((used_by_bytes, 75), (used_by_header("x-cost"), 60), (used_by_header("y"), 20)):
        budget = Budget(100)
        app = guard_budget(budget, Starlette(routes=[Route("/items", answer)]), amount=80, used=used)
        await fetch(app)
        assert budget.left == left


async def test_a_handler_that_fails_used_nothing_of_a_budget() -> None:
    async def fail(request: Request) -> PlainTextResponse:
        raise RuntimeError("as planned")

    budget = Budget(100)
    app = guard_budget(budget, Starlette(routes=[Route("/items", fail)]), amount=80)
    with pytest.raises(RuntimeError, match="as planned"):
        await fetch(app)
    assert budget.left == 100


async def test_a_client_that_leaves_in_the_middle_gives_back_the_rest() -> None:
    budget = Budget(100)
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})
        left.set()
        await asyncio.Event().wait()

    async def drop(message: Any) -> None:
        pass

    guarded = guard_budget(budget, app, amount=80, used=used_by_bytes)
    scope = {"type": "http", "headers": [], "path": "/"}
    task = asyncio.create_task(guarded(scope, drop, drop))
    await left.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert budget.left == 90


async def test_an_answer_that_cannot_be_learnt_is_503_and_exempt_paths_are_not_asked_about() -> None:
    budget = Budget(100)
    budget.answer = Unknown("the daemon is away")

    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    routes = [Route("/items", answer), Route("/health", answer)]
    app = guard_budget(budget, Starlette(routes=routes), exempt=lambda scope: scope["path"] == "/health")
    away = await fetch(app)
    assert (away.status_code, away.headers["retry-after"]) == (503, "1")
    assert away.json()["type"].endswith("#temporary-reduced-capacity")
    assert (await fetch(app, "/health")).status_code == 200


def test_a_websocket_holds_its_grant_until_it_closes_and_is_refused_by_its_own_code() -> None:
    budget = Budget(1)
    app = FastAPI()

    @app.websocket("/ws")
    async def talk(socket: Any) -> None:
        await socket.accept()
        await socket.receive_text()

    talk.__annotations__["socket"] = __import__("starlette.websockets", fromlist=["WebSocket"]).WebSocket
    fresh = FastAPI()
    fresh.add_api_websocket_route("/ws", talk)
    client = TestClient(guard_budget(budget, fresh))
    with client.websocket_connect("/ws") as socket:
        assert budget.left == 0
        with pytest.raises(WebSocketDisconnect) as caught, client.websocket_connect("/ws"):
            pass
        assert caught.value.code == 1013
        socket.send_text("bye")


def test_fields_of_a_refusal_that_knows_little() -> None:
    assert write_fields('a"b', Refused("no")) == {"retry-after": "1", "ratelimit": '"a_b";r=0;t=1'}


def test_a_request_without_the_middleware_has_no_grant() -> None:
    with pytest.raises(UsageError, match="BursarMiddleware"):
        grant_of({})


# --- plain code ---------------------------------------------------------------------------------


async def test_the_decorator_guards_async_functions_and_generators() -> None:
    budget = Budget(10)

    @limited(budget, lambda who, **_: who, amount=4)
    async def work(who: str, *, grant: Grant) -> str:
        assert budget.left == 6
        grant.settle(1)
        return grant.tenant

    assert await work("acme") == "acme"
    assert budget.left == 9

    @limited(budget, "acme", 5)
    async def count() -> AsyncIterator[int]:
        for number in range(3):
            assert budget.left == 4
            yield number

    assert [number async for number in count()] == [0, 1, 2]
    async with limited(budget, "acme", 2) as grant:
        assert budget.left == 2
        grant.settle(0)
    assert budget.left == 4
    with pytest.raises(Refused):
        async with limited(budget, "acme", 5):
            pass


def test_the_decorator_guards_plain_functions_and_generators(policy: Policy) -> None:
    with bursar.sync.connect(policy) as held:
        api = held.resource("api")

        @limited(api, "other", wait=10.0)
        def work(number: int) -> int:
            return number * 2

        @limited(api, "other", wait=1.0)
        def count() -> Iterator[int]:
            yield from range(3)

        assert work(4) == 8
        assert list(count()) == [0, 1, 2]
        with limited(api, "acme", 3, wait=1.0):
            pass
        with pytest.raises(Refused), limited(api, "acme"):
            pass


async def test_the_wrong_world_or_a_second_entering_is_a_clear_error() -> None:
    budget = Budget(10)
    with pytest.raises(UsageError, match=r"needs a resource of bursar\.sync\.connect"):

        @limited(budget, "acme")
        def work() -> None: ...

    with pytest.raises(UsageError, match="other world"), limited(budget, "acme"):
        pass
    block = limited(budget, "acme")
    async with block:
        with pytest.raises(UsageError, match="entered already"):
            async with block:
                pass


async def test_an_applications_own_lifespan_still_runs(policy: Policy) -> None:
    ran = []

    @asynccontextmanager
    async def live(app: Any) -> AsyncIterator[None]:
        ran.append("up")
        yield
        ran.append("down")

    app = FastAPI(lifespan=live)
    app.add_middleware(BursarMiddleware, bursar=policy, resource="api", tenant=by_header("x-tenant"))
    with TestClient(app):
        assert ran == ["up"]
    assert ran == ["up", "down"]
