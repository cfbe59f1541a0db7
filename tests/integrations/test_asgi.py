"""The middleware with the real kinds behind it, at default settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from starlette.testclient import TestClient

from bursar.integrations.asgi import BursarMiddleware, by_header
from bursar.policy import Policy, parse

POLICY = """
[resource.api]
kind = "rate"
period = "1m"
servers = {{ a = "1k/s", b = "1k/s" }}
[resource.api.tenant]
acme = {{ limit = "6/m" }}
other = {{ limit = "1k/s" }}
[resource.disk]
kind = "share"
capacity = "1k/s"
[resource.disk.tenant]
acme = {{ weight = 1 }}
[resource.llm]
kind = "quota"
window = "day"
[resource.llm.tenant]
acme = {{ limit = 100 }}
[daemon]
metrics = "off"
state = "{state}"
"""
ACME = {"x-tenant": "acme"}


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return parse(POLICY.format(state=tmp_path / "state"))


def make_app(policy: Policy, resource: str, **options: Any) -> FastAPI:
    app = FastAPI()

    @app.get("/items")
    async def items(fail: int = 0) -> dict[str, str]:
        if fail:
            raise HTTPException(fail)
        return {"fine": "yes"}

    settings: dict[str, Any] = {"wait": 5.0, **options}
    tenant = by_header("x-tenant")
    app.add_middleware(BursarMiddleware, bursar=policy, resource=resource, tenant=tenant, **settings)
    return app


def test_a_rates_limit_is_the_tenants_over_all_servers_and_holds(policy: Policy) -> None:
    with TestClient(make_app(policy, "api", wait=0.2), headers=ACME) as client:
        answers = [client.get("/items") for _ in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429] * 2
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"api";q=6;w=60'}
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 61
    assert answers[-1].headers["ratelimit"].startswith('"api";r=0;t=')


def test_a_share_works_the_same(policy: Policy) -> None:
    with TestClient(make_app(policy, "disk"), headers=ACME) as client:
        assert client.get("/items").status_code == 200


def test_a_failed_answer_costs_a_budget_nothing(policy: Policy) -> None:
    with TestClient(make_app(policy, "llm", amount=60), headers=ACME) as client:
        assert [client.get("/items?fail=502").status_code for _ in range(3)] == [502, 502, 502]
        granted = client.get("/items")
        refused = client.get("/items")
    assert (granted.status_code, granted.headers["ratelimit-policy"]) == (200, '"llm";q=100;w=86400')
    assert granted.headers["ratelimit"].startswith('"llm";r=40;t=')
    assert (refused.status_code, refused.headers["ratelimit-policy"]) == (429, '"llm";q=100;w=86400')


def test_a_failed_answer_costs_a_rate_what_it_took(policy: Policy) -> None:
    with TestClient(make_app(policy, "api"), headers=ACME) as client:
        answers = [client.get("/items?fail=502").status_code for _ in range(6)]
        assert answers == [502] * 6
        assert client.get("/items", headers={"x-tenant": "other"}).status_code == 200


def test_who_is_not_in_the_policy_learns_nothing_about_the_others(policy: Policy) -> None:
    with TestClient(make_app(policy, "api")) as client:
        stranger = client.get("/items", headers={"x-tenant": "acmee"})
    assert stranger.status_code == 403
    assert '"acme"' not in stranger.text and "other" not in stranger.text
