"""Who may do what, over HTTP: the same table as over the wire, for what HTTP offers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.resources.places import make_policy
from tests.resources.rights_table import (
    ALLOWED,
    DENIED,
    POLICY,
    RESOURCES,
    TENANTS,
    USES,
    Outcome,
    Use,
    find_mistakes,
    read_tenants,
)

from bursar.fleet.rights import EVERYTHING, Scope
from bursar.fleet.tokens import create_token
from bursar.runtime.daemon import Daemon

OFFERED = {
    "acquire",
    "explain",
    "statistics",
    "settle",
    "set_tenants",
    "show_tenant",
    "list_tenants",
    "submit",
    "cancel",
    "read",
    "why",
    "tasks",
}
things = itertools.count()


class Web:
    """A daemon, and a client for every token."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.clients: dict[Scope, httpx.AsyncClient] = {}
        self.prepared: dict[tuple[str, str, str], Any] = {}

    async def connect(self, scope: Scope) -> httpx.AsyncClient:
        if scope not in self.clients:
            world = self.daemon.host.world
            token, text = await create_token(world.store, [scope], by="test", at_ns=world.clock.wall())
            async with asyncio.timeout(10):
                while token.id not in self.daemon.rights.tokens:
                    await asyncio.sleep(0.01)
            self.clients[scope] = httpx.AsyncClient(
                base_url=f"http://{self.daemon.http_at}",
                headers={"Authorization": f"Bearer {text}"},
                timeout=30,
            )
        return self.clients[scope]

    async def prepare(self, use: Use, tenant: str) -> Any:
        """What the administrator does for the tenant before."""
        known = (use.before, use.resource, tenant)
        if use.before and known not in self.prepared:
            admin, at = await self.connect(EVERYTHING), f"/v1/resources/{use.resource}"
            if use.before == "grant":
                made = await admin.post(f"{at}/grants", json={"tenant": tenant, "amount": 2, "wait": 5})
                self.prepared[known] = made.json()["settle_id"]
            else:
                held = f"{tenant}-{next(things)}:E"
                await admin.post(f"{at}/claims", json={"tenant": tenant, "names": [held], "wait": 5})
                made = await admin.post(f"{at}/tasks", json={"tenant": tenant, "names": [held]})
                self.prepared[known] = made.json()["id"]
        return self.prepared.get(known)

    async def attempt(self, scope: Scope, use: Use, tenant: str) -> Outcome:
        for each in TENANTS if use.of == "rows" else (tenant,):
            prepared = await self.prepare(use, each)
        method, path, body = write_request(use, tenant, prepared)
        client = await self.connect(scope)
        answer = await client.request(method, f"/v1/resources/{use.resource}{path}", json=body)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        if answer.status_code == 403 and answer.json().get("reason") == "denied":
            return DENIED
        shown = read_tenants(answer.json()) if answer.content else frozenset()
        if use.of == "rows":
            return shown
        return f"shows {shown}" if "globex" in shown - {tenant} else ALLOWED


def write_request(use: Use, tenant: str, prepared: Any) -> tuple[str, str, Any]:
    name, quoted = f"vm-{next(things)}:E", quote(tenant, safe="")
    match use.name:
        case "acquire" if RESOURCES[use.resource] == "claim":
            return "POST", "/claims", {"tenant": tenant, "names": [name]}
        case "acquire":
            return "POST", "/grants", {"tenant": tenant}
        case "explain":
            return "GET", f"/explanation?tenant={quoted}", None
        case "statistics":
            return "GET", "/statistics", None
        case "settle":
            return "POST", "/settlements", {"id": prepared, "used": 1}
        case "set_tenants":
            return "POST", "/tenants", {"tenants": {tenant: {"limit": "1k/s"}}}
        case "show_tenant":
            return "GET", f"/tenants/{quoted}", None
        case "list_tenants":
            return "GET", "/tenants", None
        case "submit":
            return "POST", "/tasks", {"tenant": tenant, "names": [name]}
        case "cancel":
            return "DELETE", f"/tasks/{prepared}", None
        case "read":
            return "GET", f"/tasks/{prepared}", None
        case "why":
            return "GET", f"/tasks/{prepared}/why", None
        case "tasks":
            return "GET", "/tasks", None
    raise AssertionError(use.name)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    daemon = await Daemon.open(make_policy(tmp_path, POLICY))
    web = Web(daemon)
    admin = await web.connect(EVERYTHING)
    terms = {tenant: {"limit": "1k/s"} for tenant in TENANTS}
    await admin.post("/v1/resources/customers/tenants", json={"tenants": terms})
    for name, tenant in itertools.product(("cache", "customers", "disk", "records"), TENANTS):
        await admin.post(f"/v1/resources/{name}/grants", json={"tenant": tenant, "wait": 10})
    yield web
    for client in web.clients.values():
        await client.aclose()
    await daemon.close()


async def test_every_request_with_every_right_is_allowed_or_denied_as_the_table_says(web: Web) -> None:
    # One resource a kind: what a kind decides over the wire was tried there.
    uses = tuple(use for use in USES if use.name in OFFERED and use.resource not in ("disk", "monthly"))
    assert await find_mistakes(web.attempt, uses, most=20) == []
