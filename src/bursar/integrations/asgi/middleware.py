"""The middleware: each request acquires before the application sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from bursar.api.problems import Problem
from bursar.api.ratelimit import Writer
from bursar.errors import Refused, Unknown, UsageError
from bursar.integrations.asgi import answers
from bursar.integrations.asgi.costs import FindUsed, Ungranted, attach
from bursar.integrations.asgi.exchange import Exchange
from bursar.integrations.asgi.opening import Opening, Target
from bursar.integrations.asgi.scopes import App, Message, Receive, Scope, Send
from bursar.integrations.asgi.tenants import FindTenant
from bursar.resource import check_name
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.runtime import logs

RETRY_AFTER_S = 1.0
"""When to ask again what could not be learnt."""

Away = Literal["allow", "refuse"]


class BursarMiddleware:
    """Acquires for each request.

    bursar     a policy file, "bursar://host:port", or a `bursar.Bursar` (connected here if it is not)
    resource   the resource's name
    tenant     `by_header`, `by_key`, `by_path`, or a function of the scope; None is refused with 400
    amount     tokens a request, or a function of the scope; 0 is free: nothing is acquired
    wait       seconds to wait for them, or a function of the scope
    used       what a finished response has used, where the handler does not settle the grant itself
    exempt     a function of the scope: True lets a request through without a grant
    when_away  "allow" or "refuse" requests while bursar is away, or a function of the scope that says
               so. Left out: what the resource's `without_bursar` says; refused until that is known
    required   True: a server does not start without bursar. False: it connects later
    window_s   what limits are counted over, for the RateLimit-Policy field, where bursar does not say
    """

    def __init__(
        self,
        app: App,
        *,
        bursar: Target,
        resource: str,
        tenant: FindTenant,
        amount: int | Callable[[Scope], int] = 1,
        wait: float | Callable[[Scope], float] = 0.0,
        used: FindUsed | None = None,
        exempt: Callable[[Scope], bool] | None = None,
        when_away: Away | Callable[[Scope], Away] | None = None,
        required: bool = False,
        window_s: int | None = None,
    ) -> None:
        if not callable(when_away) and when_away not in ("allow", "refuse", None):
            raise UsageError(f'when_away is "allow", "refuse" or a function of the scope, not {when_away!r}')
        self._app = app
        self._name = resource
        self._opening = Opening(bursar, resource)
        self._find_tenant = tenant
        self._amount = amount
        self._wait = wait
        self._used = used
        self._exempt = exempt
        self._when_away = when_away
        self._required = required
        self._writer = Writer(resource, window_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(scope, receive, send)
        elif kind not in ("http", "websocket") or (self._exempt is not None and self._exempt(scope)):
            await self._app(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        decided = await self._decide(scope)
        if isinstance(decided, Problem):
            await answers.send_problem(decided, scope, send)
            return
        attach(scope, decided)
        if isinstance(decided, Ungranted):
            await self._app(scope, receive, send)
            return
        fields = self._writer.write_grant(decided)
        await Exchange(decided, fields, self._used, receive, send).run(self._app, scope)

    # -- deciding ---------------------------------------------------------------------------

    async def _decide(self, scope: Scope) -> Grant | Ungranted | Problem:
        tenant = self._find_tenant(scope)
        if tenant is None:
            return answers.no_tenant("the request does not say whose it is")
        try:
            check_name("tenant", tenant)
        except UsageError as error:
            return answers.no_tenant(str(error))
        amount = self._amount(scope) if callable(self._amount) else self._amount
        if amount == 0:
            return Ungranted(tenant)
        resource = self._opening.resource
        if resource is None:
            # Without a lifespan the first request is where it begins.
            await self._opening.try_first()
            resource = self._opening.resource
            if resource is None:
                return self._go_without(scope, tenant, self._opening.pause_s)
        return await self._acquire(scope, resource, tenant, amount)

    async def _acquire(
        self, scope: Scope, resource: Resource, tenant: str, amount: int
    ) -> Grant | Ungranted | Problem:
        wait = self._wait(scope) if callable(self._wait) else self._wait
        self._writer.learn(resource)
        try:
            grant = await resource.acquire(tenant, amount, wait=wait)
        except Refused as error:
            return self._refuse(tenant, error)
        except Unknown:
            return self._go_without(scope, tenant, RETRY_AFTER_S)
        if grant.fallback not in (None, "shadow") and self._read_away(scope) == "refuse":
            grant.settle(0)
            await grant.release()
            return answers.away(RETRY_AFTER_S)
        return grant

    def _refuse(self, tenant: str, error: Refused) -> Problem:
        if error.reason == "tenant":
            logs.warning("asgi.unknown_tenant", resource=self._name, why=error.why)
            return answers.unknown_tenant(tenant, self._name)
        return answers.refused(self._name, error, self._writer)

    def _go_without(self, scope: Scope, tenant: str, retry_after_s: float) -> Ungranted | Problem:
        if self._read_away(scope) == "allow":
            return Ungranted(tenant, fallback="allow")
        return answers.away(retry_after_s)

    def _read_away(self, scope: Scope) -> Away | None:
        return self._when_away(scope) if callable(self._when_away) else self._when_away

    # -- starting and stopping --------------------------------------------------------------

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Connect before the application starts, close after it has stopped. A server is told in the
        protocol's own words that it must not start: an exception it takes for an application that
        knows no lifespan, and goes on."""
        started: list[Message] = [await receive()]
        try:
            await self._opening.start(self._required)
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": f"bursar: {error}"})
            raise

        async def receive_again() -> Message:
            return started.pop() if started else await receive()

        try:
            await self._app(scope, receive_again, send)
        finally:
            await self._opening.close()
