"""Middleware for ASGI applications (FastAPI, Starlette, any other), for every kind of resource.

    app.add_middleware(BursarMiddleware, bursar="policy.toml", resource="api", tenant=by_header("x-tenant"))

Each request acquires for its tenant before the application sees it, waiting if told to, and gives
back when the response is out, streamed ones included. A refusal is a 429 problem document with
Retry-After and the RateLimit fields of the IETF draft.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from os import PathLike
from typing import Any

from bursar.errors import BursarError, Refused, Unknown, UsageError
from bursar.policy import Policy
from bursar.resource import Grant, Resource
from bursar.runtime import logs
from bursar.runtime.client import Bursar, connect

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
FindTenant = Callable[[Scope], str | None]

GRANT = "bursar.grant"
PROBLEMS = "https://iana.org/assignments/http-problem-types#"
RETRY_AFTER_S = 1
"""What a refusal that does not know better asks for."""

TRY_AGAIN_LATER = 1013
"""The close code of a refused WebSocket."""


# --- whose request is it ------------------------------------------------------------------------


def by_header(name: str, default: str | None = None) -> FindTenant:
    """The tenant is the value of a request header. Trust it only behind something that sets it."""
    wanted = name.lower().encode("latin-1")

    def find(scope: Scope) -> str | None:
        for key, value in scope["headers"]:
            if key == wanted:
                text: str = value.decode("latin-1")
                return text
        return default

    return find


def by_key(keys: Mapping[str, str], header: str = "x-api-key") -> FindTenant:
    """The tenant that an API key belongs to; "Bearer KEY" where the header is authorization."""
    find_key = by_header(header)

    def find(scope: Scope) -> str | None:
        key = find_key(scope)
        return None if key is None else keys.get(key.removeprefix("Bearer "))

    return find


def by_path(position: int) -> FindTenant:
    """The tenant is a part of the path: 0 is "acme" in /acme/items."""

    def find(scope: Scope) -> str | None:
        parts = scope["path"].strip("/").split("/")
        return parts[position] if position < len(parts) and parts[position] else None

    return find


# --- what was used ------------------------------------------------------------------------------


@dataclass(slots=True)
class Sent:
    """What of the response has been sent: `used` functions decide from it."""

    status: int = 0
    headers: Any = ()
    body_bytes: int = 0


def used_by_header(name: str) -> Callable[[Sent], int | None]:
    """The application says in a response header what the request has cost."""
    wanted = name.lower().encode("latin-1")

    def find(sent: Sent) -> int | None:
        for key, value in sent.headers:
            if bytes(key).lower() == wanted and bytes(value).isdigit():
                return int(value)
        return None

    return find


def used_by_bytes(sent: Sent) -> int:
    """A response costs its length."""
    return sent.body_bytes


def grant_of(request: Any) -> Grant:
    """The grant of a request (or a scope): call `settle` on it when the cost is known."""
    scope = request if isinstance(request, Mapping) else request.scope
    grant = scope.get(GRANT)
    if not isinstance(grant, Grant):
        raise UsageError("this request has no grant; is BursarMiddleware in front of the application?")
    return grant


# --- the middleware -----------------------------------------------------------------------------


class BursarMiddleware:
    """Acquires for each request.

    bursar    a policy file, "bursar://host:port", or what `bursar.connect` returned
    resource  the resource's name
    tenant    `by_header`, `by_key`, `by_path`, or a function of the scope; None is refused with 400
    amount    tokens a request, or a function of the scope
    wait      seconds to wait for them, or a function of the scope
    used      what a finished response has used, where the handler does not settle the grant itself
    exempt    a function of the scope: True lets a request through without a grant
    window_s  the resource's period or window, for the RateLimit-Policy field
    """

    def __init__(
        self,
        app: App,
        *,
        bursar: str | PathLike[str] | Policy | Bursar,
        resource: str,
        tenant: FindTenant,
        amount: int | Callable[[Scope], int] = 1,
        wait: float | Callable[[Scope], float] = 0.0,
        used: Callable[[Sent], int | None] | None = None,
        exempt: Callable[[Scope], bool] | None = None,
        window_s: int | None = None,
    ) -> None:
        self._app = app
        self._target = bursar
        self._name = resource
        self._find_tenant = tenant
        self._amount = amount
        self._wait = wait
        self._used = used
        self._exempt = exempt
        self._window_s = window_s
        self._resource: Resource | None = None
        self._opening = asyncio.Lock()
        self._connection = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(scope, receive, send)
        elif kind not in ("http", "websocket") or (self._exempt is not None and self._exempt(scope)):
            await self._app(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        resource = self._resource or await self._open()
        try:
            grant = await self._acquire(resource, scope)
        except BursarError as error:
            await self._refuse(scope, send, error)
            return
        scope[GRANT] = grant
        async with grant:
            if self._used is None:
                await self._app(scope, receive, send)
            else:
                await self._run_counted(scope, receive, send, grant, self._used)

    async def _acquire(self, resource: Resource, scope: Scope) -> Grant:
        tenant = self._find_tenant(scope)
        if tenant is None:
            raise _NoTenantError("the request does not say whose it is")
        amount = self._amount if isinstance(self._amount, int) else self._amount(scope)
        grant = resource.try_acquire(tenant, amount)
        if grant is not None:
            return grant
        wait = self._wait(scope) if callable(self._wait) else self._wait
        return await resource.acquire(tenant, amount, wait=wait)

    async def _run_counted(
        self, scope: Scope, receive: Receive, send: Send, grant: Grant, used: Callable[[Sent], int | None]
    ) -> None:
        sent = Sent()

        async def watch(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                sent.status, sent.headers = message["status"], message.get("headers", ())
            elif message["type"] == "http.response.body":
                sent.body_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            # Also when the client left in the middle: what was sent by then was used.
            amount = used(sent)
            if amount is not None and grant.used is None:
                grant.settle(amount)

    # -- opening and closing ----------------------------------------------------------------

    async def _open(self) -> Resource:
        async with self._opening:
            if self._resource is None:
                target = self._target
                if not isinstance(target, Bursar):
                    target = await self._connection.enter_async_context(await connect(target))
                self._resource = target.resource(self._name)
        return self._resource

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Connect before the application starts, so that a bad policy stops the server from
        starting; close after it has stopped. Servers without lifespan connect at the first request."""

        async def receive_started() -> MutableMapping[str, Any]:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._open()
            return message

        try:
            await self._app(scope, receive_started, send)
        finally:
            self._resource = None
            await self._connection.aclose()

    # -- refusing ---------------------------------------------------------------------------

    async def _refuse(self, scope: Scope, send: Send, error: BursarError) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})
            return
        status, problem, headers = self._describe(error)
        body = json.dumps({"status": status, **problem}).encode()
        headers = {**headers, "content-type": "application/problem+json", "content-length": str(len(body))}
        pairs = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    def _describe(self, error: BursarError) -> tuple[int, dict[str, Any], dict[str, str]]:
        if isinstance(error, Refused):
            problem = {"type": PROBLEMS + "quota-exceeded", "title": "Quota exceeded", "detail": error.why}
            problem["violated-policies"] = [self._name]  # type: ignore[assignment]
            return 429, problem, write_fields(self._name, error, self._window_s)
        if isinstance(error, Unknown):
            problem = {"type": PROBLEMS + "temporary-reduced-capacity", "title": "Quota cannot be learnt now"}
            return 503, {**problem, "detail": error.why}, {"retry-after": str(RETRY_AFTER_S)}
        if isinstance(error, _NoTenantError):
            return 400, {"title": "No tenant", "detail": str(error)}, {}
        if isinstance(error, UsageError):
            # Its message may name tenants that this one should not know of.
            logs.warning("asgi.tenant_refused", resource=self._name, why=str(error))
            return 403, {"title": "Unknown tenant", "detail": "this tenant has no part in the resource"}, {}
        raise error


class _NoTenantError(BursarError):
    """The function that should find the tenant found none."""


def write_fields(name: str, refused: Refused, window_s: int | None = None) -> dict[str, str]:
    """Retry-After, RateLimit and RateLimit-Policy, as far as the refusal knows them."""
    after_s = RETRY_AFTER_S if refused.retry_after is None else max(1, math.ceil(refused.retry_after))
    policy = '"' + "".join(c if c.isascii() and c not in '"\\' else "_" for c in name) + '"'
    fields = {"retry-after": str(after_s), "ratelimit": f"{policy};r={refused.remaining or 0};t={after_s}"}
    if refused.limit is not None:
        window = "" if window_s is None else f";w={window_s}"
        fields["ratelimit-policy"] = f"{policy};q={refused.limit}{window}"
    return fields
