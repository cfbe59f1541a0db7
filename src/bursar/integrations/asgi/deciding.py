"""What is asked for a request, whatever protocol it came by: a grant, or what to answer in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from bursar.api.problems import Problem
from bursar.api.ratelimit import Writer
from bursar.errors import Refused, Unknown, UsageError
from bursar.integrations.asgi import answers
from bursar.integrations.asgi.costs import Ungranted
from bursar.integrations.asgi.opening import Opening, Target
from bursar.integrations.asgi.scopes import Scope
from bursar.integrations.asgi.tenants import FindTenant
from bursar.resource import check_name
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.runtime import logs

RETRY_AFTER_S = 1.0
"""When to ask again what could not be learnt."""

Away = Literal["allow", "refuse"]


class Deciding:
    """Acquires for a request. What the parts are is said where callers see them (`BursarMiddleware`)."""

    def __init__(
        self,
        bursar: Target,
        resource: str,
        tenant: FindTenant,
        *,
        amount: int | Callable[[Scope], int],
        wait: float | Callable[[Scope], float],
        when_away: Away | Callable[[Scope], Away] | None,
        window_s: int | None,
    ) -> None:
        if not callable(when_away) and when_away not in ("allow", "refuse", None):
            raise UsageError(f'when_away is "allow", "refuse" or a function of the scope, not {when_away!r}')
        self._name = resource
        self._find_tenant = tenant
        self._amount = amount
        self._wait = wait
        self.waits = callable(wait) or wait > 0
        self._when_away = when_away
        self.opening = Opening(bursar, resource)
        self.writer = Writer(resource, window_s)

    async def decide(self, scope: Scope) -> Grant | Ungranted | Problem:
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
        resource = self.opening.resource
        if resource is None:
            # Without a lifespan the first request is where it begins.
            await self.opening.try_first()
            resource = self.opening.resource
            if resource is None:
                return self._go_without(scope, tenant, self.opening.pause_s)
        return await self._acquire(scope, resource, tenant, amount)

    async def _acquire(
        self, scope: Scope, resource: Resource, tenant: str, amount: int
    ) -> Grant | Ungranted | Problem:
        wait = self._wait(scope) if callable(self._wait) else self._wait
        self.writer.learn(resource)
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
        return answers.refused(self._name, error, self.writer)

    def _go_without(self, scope: Scope, tenant: str, retry_after_s: float) -> Ungranted | Problem:
        if self._read_away(scope) == "allow":
            return Ungranted(tenant, fallback="allow")
        return answers.away(retry_after_s)

    def _read_away(self, scope: Scope) -> Away | None:
        return self._when_away(scope) if callable(self._when_away) else self._when_away
