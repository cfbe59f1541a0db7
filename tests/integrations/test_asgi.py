"""The middleware with the real kinds behind it, at default settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI, HTTPException, Request
from starlette.testclient import TestClient

from bursar.integrations.asgi import BursarMiddleware, by_header
from bursar.policy import parse

RATE = """
[resource.api]
kind = "rate"
period = "1min"
servers = { a = "1k/s", b = "1k/s" }
[resource.api.tenant]
acme = { limit = "6/min" }
other = { limit = "1k/s" }
"""
SHARE = """
[resource.api]
kind = "share"
capacity = "1k/s"
[resource.api.tenant]
acme = { weight = 1 }
"""
QUOTA = """
[resource.api]
kind = "quota"
window = "day"
[resource.api.tenant]
acme = { limit = 100 }
"""
ACME = {"x-tenant": "acme"}
MakeApp = Callable[..., FastAPI]


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., FastAPI]:
    def make(text: str, wait: float = 5.0, amount: int = 1) -> FastAPI:
        app = FastAPI()

        @app.get("/items")
        async def items(fail: int = 0) -> dict[str, str]:
            if fail:
                raise HTTPException(fail)
            return {"fine": "yes"}

        app.add_middleware(
            BursarMiddleware,
            bursar=parse(f'{text}[daemon]\nhttp = "off"\nstate = "{tmp_path / "state"}"\n'),
            resource="api",
            tenant=by_header("x-tenant"),
            wait=wait,
            amount=amount,
        )
        return app

    return make


def test_a_rates_limit_is_the_tenants_over_all_servers_and_holds(make_app: MakeApp) -> None:
    with TestClient(make_app(RATE, wait=0.2), headers=ACME) as client:
        answers = [client.get("/items") for _ in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429] * 2
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"api";q=6;w=60'}
    assert [answer.headers["ratelimit"].partition(";t=")[0] for answer in answers] == [
        f'"api";r={left}' for left in (5, 4, 3, 2, 1, 0, 0, 0)
    ]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 61


def test_a_share_works_the_same(make_app: MakeApp) -> None:
    with TestClient(make_app(SHARE), headers=ACME) as client:
        assert client.get("/items").status_code == 200


def test_a_failed_answer_costs_a_budget_nothing(make_app: MakeApp) -> None:
    with TestClient(make_app(QUOTA, amount=60), headers=ACME) as client:
        assert [client.get("/items?fail=502").status_code for _ in range(3)] == [502, 502, 502]
        granted = client.get("/items")
        refused = client.get("/items")
    assert (granted.status_code, granted.headers["ratelimit-policy"]) == (200, '"api";q=100;w=86400')
    assert granted.headers["ratelimit"].startswith('"api";r=40;t=')
    assert (refused.status_code, refused.headers["ratelimit-policy"]) == (429, '"api";q=100;w=86400')


@pytest.mark.parametrize(("over", "left"), [("refuse", 60), ("take", 50)])
def test_a_handler_that_settles_more_than_was_acquired_spoils_no_answer(
    tmp_path: Path, over: str, left: int
) -> None:
    """It is charged as the policy's `over` says."""
    app = FastAPI()

    @app.get("/items")
    async def items(request: Request, used: int) -> dict[str, str]:
        request.state.grant.settle(used)
        return {"fine": "yes"}

    policy = QUOTA.replace("[resource.api.tenant]", f'over = "{over}"\n[resource.api.tenant]')
    options = {"bursar": parse(f'{policy}[daemon]\nhttp = "off"\nstate = "{tmp_path / "state"}"\n')}
    app.add_middleware(
        BursarMiddleware, **options, resource="api", tenant=by_header("x-tenant"), wait=5.0, amount=20
    )
    with TestClient(app, headers=ACME) as client:
        answers = [client.get(f"/items?used={used}") for used in (30, 20, 0)]
    assert [answer.status_code for answer in answers] == [200] * 3
    left_at_last = int(answers[-1].headers["ratelimit"].partition("r=")[2].partition(";")[0]) + 20
    assert left_at_last == left


def test_a_failed_answer_costs_a_rate_what_it_took(make_app: MakeApp) -> None:
    with TestClient(make_app(RATE, wait=0.2), headers=ACME) as client:
        answers = [client.get("/items?fail=502").status_code for _ in range(7)]
    assert answers == [502] * 6 + [429]


def test_who_is_not_in_the_policy_learns_nothing_about_the_others(make_app: MakeApp) -> None:
    with TestClient(make_app(RATE)) as client:
        stranger = client.get("/items", headers={"x-tenant": "acmee"})
    assert stranger.status_code == 403
    assert '"acme"' not in stranger.text and "other" not in stranger.text
