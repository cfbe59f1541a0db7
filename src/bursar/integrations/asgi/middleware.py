"""The middleware: each request acquires before the application sees it."""

from __future__ import annotations

from collections.abc import Callable

from bursar.api.problems import Problem
from bursar.integrations.asgi import answers
from bursar.integrations.asgi.costs import FindUsed, Ungranted, attach
from bursar.integrations.asgi.deciding import Away, Deciding
from bursar.integrations.asgi.exchange import Exchange
from bursar.integrations.asgi.listening import Listening
from bursar.integrations.asgi.opening import Target
from bursar.integrations.asgi.scopes import App, Message, Receive, Scope, Send
from bursar.integrations.asgi.tenants import FindTenant
from bursar.resource.grants import Grant


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
        self._app = app
        self._used = used
        self._exempt = exempt
        self._required = required
        self._deciding = Deciding(
            bursar, resource, tenant, amount=amount, wait=wait, when_away=when_away, window_s=window_s
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(scope, receive, send)
        elif kind not in ("http", "websocket") or (self._exempt is not None and self._exempt(scope)):
            await self._app(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._deciding.waits:
            await self._go_on(await self._deciding.decide(scope), scope, receive, send)
            return
        listening = Listening(receive)
        try:
            decided = await listening.wait(self._deciding.decide(scope))
            if decided is not None:
                await self._go_on(decided, scope, listening.receive, send)
        finally:
            listening.close()

    async def _go_on(
        self, decided: Grant | Ungranted | Problem, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if isinstance(decided, Problem):
            await answers.send_problem(decided, scope, send)
            return
        attach(scope, decided)
        if isinstance(decided, Ungranted):
            await self._app(scope, receive, send)
            return
        fields = self._deciding.writer.write_grant(decided)
        await Exchange(decided, fields, self._used, receive, send).run(self._app, scope)

    # -- starting and stopping --------------------------------------------------------------

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Connect before the application starts, close after it has stopped. A server is told in the
        protocol's own words that it must not start: an exception it takes for an application that
        knows no lifespan, and goes on."""
        started: list[Message] = [await receive()]
        try:
            await self._deciding.opening.start(self._required)
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": f"bursar: {error}"})
            raise

        async def receive_again() -> Message:
            return started.pop() if started else await receive()

        try:
            await self._app(scope, receive_again, send)
        finally:
            await self._deciding.opening.close()
