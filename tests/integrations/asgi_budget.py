"""A budget in plain sight for tests of the middleware: the front door around a decider of a few
lines, and what puts it behind a middleware."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import httpx

from bursar.errors import BursarError, Refused
from bursar.integrations.asgi import BursarMiddleware, by_header
from bursar.policy import parse
from bursar.resource import Decider, Explanation, Granted, Offers, Ticket
from bursar.resource.door import Resource
from bursar.runtime.client import Bursar

POLICY = """
[resource.budget]
kind = "quota"
window = "hour"
[resource.budget.tenant]
acme = { limit = 100 }
"""
WORLD = SimpleNamespace(clock=SimpleNamespace(now=time.monotonic_ns))
LIMIT = 100


class Budget(Decider):
    """Grants while there is some left; takes back what was not used. `answer` may be an error that
    every acquisition gets, `fallback` what every grant says."""

    kind = "quota"
    name = "budget"

    def __init__(self, left: int = LIMIT, refunds: bool = True) -> None:
        self.offers = Offers(refunds=refunds)
        self.left = left
        self.asked = 0
        self.ended = 0
        self.answer: BursarError | None = None
        self.fallback: str | None = None

    def is_ready(self) -> bool:
        return True

    def most(self, ticket: Ticket) -> int | None:
        return None

    def decide(self, ticket: Ticket) -> None:
        self.asked += 1
        if self.answer is not None:
            ticket.give(self.answer)
        elif ticket.amount > self.left:
            ticket.give(Refused("it is used up", limit=LIMIT, remaining=self.left, retry_after=2.5))
        else:
            self.left -= ticket.amount
            ticket.give(
                Granted(
                    ticket.amount,
                    limit=LIMIT,
                    remaining=self.left,
                    reset_ns=59_500_000_000,
                    fallback=self.fallback,
                )
            )

    def withdraw(self, ticket: Ticket) -> None:
        raise AssertionError("it decides at once")

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        self.left += unused

    def finish(self, granted: Granted) -> Awaitable[None] | None:
        self.ended += 1
        return None

    def explain(self, tenant: str) -> Explanation:
        return Explanation(resource=self.name, kind=self.kind, tenant=tenant, sentences=())

    def statistics(self) -> Any:
        raise AssertionError("nobody asks")


def make_door(budget: Budget) -> Resource:
    return Resource(cast(Any, WORLD), budget, parse(POLICY).resource("budget"))


class Backend:
    """What stands behind a `Bursar` that has just this one resource."""

    def __init__(self, resource: Resource) -> None:
        self.resources = {resource.name: resource}

    async def close(self) -> None:
        pass


def guard(budget: Budget, app: Any, **options: Any) -> BursarMiddleware:
    """The application behind the middleware, the middleware behind the budget."""
    held = Bursar("bursar://127.0.0.1:1")
    held._connected = cast(Any, Backend(make_door(budget)))
    tenant = options.pop("tenant", by_header("x-tenant", default="acme"))
    return BursarMiddleware(app, bursar=held, resource="budget", tenant=tenant, **options)


async def fetch(app: Any, path: str = "/items", **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.get(
            path, headers={key.replace("_", "-"): value for key, value in headers.items()}
        )
