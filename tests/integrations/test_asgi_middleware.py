"""What the middleware answers: for whom, for how much, and while bursar is away."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_budget import Budget, fetch, guard
from fastapi import FastAPI, Request, WebSocket
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from bursar.errors import Refused, Unknown, UsageError
from bursar.integrations.asgi import (
    BursarMiddleware,
    Ungranted,
    by_header,
    by_key,
    by_path,
    grant_of,
)


def ok(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok", int(request.query_params.get("status", 200)))


def make_app() -> Starlette:
    return Starlette(routes=[Route("/items", ok), Route("/health", ok)])


# --- every answer -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 204, 404, 502])
async def test_every_answer_says_where_the_tenant_stands(status: int) -> None:
    answer = await fetch(guard(Budget(), make_app(), amount=30), f"/items?status={status}")
    assert answer.status_code == status
    assert answer.headers["ratelimit"] == '"budget";r=70;t=60'
    assert answer.headers["ratelimit-policy"] == '"budget";q=100;w=3600'


async def test_two_limits_are_both_said() -> None:
    app = guard(Budget(), guard(Budget(), make_app(), amount=10), amount=30)
    answer = await fetch(app)
    assert sorted(answer.headers.get_list("ratelimit")) == ['"budget";r=70;t=60', '"budget";r=90;t=60']


async def test_a_refusal_says_all_that_the_drafts_ask_for() -> None:
    answer = await fetch(guard(Budget(10), make_app(), amount=30))
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.headers["ratelimit"] == '"budget";r=10;t=3'
    assert answer.headers["ratelimit-policy"] == '"budget";q=100;w=3600'
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "status": 429,
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "detail": "it is used up",
        "violated-policies": ["budget"],
    }


# --- whose request ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["", "a" * 5000, "a\x07b"])
async def test_a_request_whose_tenant_is_no_name_is_the_clients_mistake(name: str) -> None:
    answer = await fetch(guard(Budget(), make_app(), tenant=lambda scope: name))
    assert (answer.status_code, answer.json()["title"]) == (400, "No tenant")


async def test_a_request_without_a_tenant_is_the_clients_mistake() -> None:
    assert (await fetch(guard(Budget(), make_app(), tenant=lambda scope: None))).status_code == 400


async def test_who_is_not_in_the_policy_is_told_so_and_nothing_about_the_others() -> None:
    stranger = await fetch(guard(Budget(), make_app()), x_tenant="acmee")
    assert stranger.status_code == 403
    assert stranger.json()["detail"] == "tenant 'acmee' has no part in budget"
    assert "retry-after" not in stranger.headers


async def test_a_refusal_without_a_limit_is_still_a_refusal() -> None:
    budget = Budget()
    budget.answer = Refused("vm-7 is held by ops")
    answer = await fetch(guard(budget, make_app()))
    assert answer.status_code == 429
    assert "retry-after" not in answer.headers


# --- how much -----------------------------------------------------------------------------------


async def test_a_request_that_costs_nothing_asks_for_nothing() -> None:
    budget = Budget(0)
    seen = []

    def settle(request: Request) -> PlainTextResponse:
        seen.append(request.state.grant)
        grant_of(request).settle(5)
        return PlainTextResponse("ok")

    app = guard(budget, Starlette(routes=[Route("/items", settle)]), amount=lambda scope: 0)
    assert (await fetch(app)).status_code == 200
    assert (budget.asked, budget.left) == (0, 0)
    assert isinstance(seen[0], Ungranted) and seen[0].fallback is None


async def test_what_a_request_costs_may_depend_on_it() -> None:
    budget = Budget()
    app = guard(budget, make_app(), amount=lambda scope: len(scope["path"]))
    await fetch(app, "/items")
    assert budget.left == 94


async def test_an_amount_that_makes_no_sense_is_a_mistake_of_the_service() -> None:
    answer = await fetch(guard(Budget(), make_app(), amount=-1))
    assert answer.status_code == 500


async def test_exempt_paths_are_not_asked_about() -> None:
    budget = Budget(0)
    app = guard(budget, make_app(), exempt=lambda scope: scope["path"] == "/health")
    assert [(await fetch(app, path)).status_code for path in ("/items", "/health")] == [429, 200]


def test_a_request_without_the_middleware_has_no_grant() -> None:
    with pytest.raises(UsageError, match="BursarMiddleware"):
        grant_of({})


# --- away ---------------------------------------------------------------------------------------


async def test_an_answer_that_cannot_be_learnt_is_503_and_does_not_say_where_bursar_is() -> None:
    budget = Budget()
    budget.answer = Unknown("bursar cannot be reached: 10.0.0.7:7070 refused")
    answer = await fetch(guard(budget, make_app()))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["type"].endswith("#temporary-reduced-capacity")
    assert "10.0.0.7" not in answer.text


@pytest.mark.parametrize(
    ("when_away", "path", "status"),
    [
        ("allow", "/items", 200),
        ("refuse", "/items", 503),
        (None, "/items", 503),
        (lambda scope: "allow" if scope["path"] == "/health" else "refuse", "/items", 503),
        (lambda scope: "allow" if scope["path"] == "/health" else "refuse", "/health", 200),
    ],
)
async def test_while_bursar_is_away_requests_go_on_where_they_are_allowed_to(
    when_away: Any, path: str, status: int
) -> None:
    budget = Budget()
    budget.answer = Unknown("away")
    assert (await fetch(guard(budget, make_app(), when_away=when_away), path)).status_code == status


async def test_a_request_that_went_on_without_bursar_can_be_settled_like_any_other() -> None:
    seen = []

    def settle(request: Request) -> PlainTextResponse:
        grant_of(request).settle(5)
        seen.append(grant_of(request).fallback)
        return PlainTextResponse("ok")

    budget = Budget()
    budget.answer = Unknown("away")
    app = guard(budget, Starlette(routes=[Route("/items", settle)]), when_away="allow")
    assert (await fetch(app)).status_code == 200
    assert seen == ["allow"]


@pytest.mark.parametrize(
    ("fallback", "when_away", "status", "left"),
    [
        ("keep", None, 200, 70),
        ("keep", "allow", 200, 70),
        ("keep", "refuse", 503, 100),
        ("shadow", "refuse", 200, 70),
    ],
)
async def test_refusing_while_away_goes_before_what_the_policy_would_lend(
    fallback: str, when_away: Any, status: int, left: int
) -> None:
    budget = Budget()
    budget.fallback = fallback
    app = guard(budget, make_app(), when_away=when_away, amount=30)
    assert (await fetch(app)).status_code == status
    assert budget.left == left


def test_a_misspelt_setting_is_told_at_once() -> None:
    with pytest.raises(UsageError, match="when_away"):
        guard(Budget(), make_app(), when_away="ignore")


# --- websockets ---------------------------------------------------------------------------------


def make_talk() -> FastAPI:
    app = FastAPI()

    @app.websocket("/ws")
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()

    return app


def test_a_websocket_holds_its_grant_until_it_closes_and_is_refused_like_a_request() -> None:
    budget = Budget(1)
    client = TestClient(guard(budget, make_talk()))
    with client.websocket_connect("/ws") as socket:
        assert (budget.left, budget.ended) == (0, 0)
        assert (b"ratelimit", b'"budget";r=0;t=60') in (socket.extra_headers or [])
        with pytest.raises(WebSocketDenialResponse) as caught, client.websocket_connect("/ws"):
            pass
        assert caught.value.status_code == 429
        assert caught.value.headers["retry-after"] == "3"
        socket.send_text("bye")
    assert budget.ended == 1


def test_a_websocket_whose_client_leaves_has_not_failed() -> None:
    budget = Budget()
    client = TestClient(guard(budget, make_talk(), amount=80))
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws") as socket:
        socket.close()
    assert (budget.left, budget.ended) == (20, 1)


def test_a_server_that_cannot_answer_a_websocket_closes_it() -> None:
    app = guard(Budget(0), make_talk())

    async def without_extension(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {}}, receive, send)

    with (
        pytest.raises(WebSocketDisconnect) as caught,
        TestClient(without_extension).websocket_connect("/ws"),
    ):
        pass
    assert caught.value.code == 1013


def test_the_middleware_is_what_frameworks_add() -> None:
    app = FastAPI()
    app.add_middleware(BursarMiddleware, bursar="p.toml", resource="api", tenant=by_header("x-tenant"))
