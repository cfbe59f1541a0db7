"""A resource for tests, in place of a kind: a counter with a limit, in this process alone.

It stands in for the quota kind (`kinds.MODULES["quota"]`), so that policies, the daemon and its
clients run whole. What it grants is appended to the file BURSAR_TOY_LOG, where that is set.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bursar.errors import Refused, UsageError
from bursar.policy import QuotaPolicy
from bursar.resource import Acquisition, Explanation, Grant, Resource
from bursar.world import SECOND_NS, World

TOY_NAME = __name__


class ToyResource(Resource):
    kind = "quota"
    prefetch_tokens = 10
    prefetch_ns = SECOND_NS // 2

    def __init__(self, world: World, name: str, policy: QuotaPolicy) -> None:
        super().__init__(name)
        self.world = world
        self.policy = policy
        self.held: dict[str, int] = {}
        self.spent: dict[str, int] = {}
        self.keys: dict[str, Grant] = {}
        self.calls = 0
        self.reconfigured = 0
        self._changed = asyncio.Event()

    def left(self, tenant: str) -> int:
        limit: int = self.policy.tenant(tenant).limit
        return limit - self.held.get(tenant, 0) - self.spent.get(tenant, 0)

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        if self.left(tenant) < amount:
            return None
        self.held[tenant] = self.held.get(tenant, 0) + amount
        return Grant(self, tenant, amount)

    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant:
        self.calls += 1
        if tenant == "broken":
            raise ZeroDivisionError("the toy is broken")
        if key is not None and key in self.keys:
            return self.keys[key]
        until = self.world.clock.now() + wait_ns
        while (grant := self.try_acquire(tenant, amount)) is None:
            left_ns = until - self.world.clock.now()
            if left_ns <= 0:
                limit = self.policy.tenant(tenant).limit
                raise Refused("the toy is used up", limit=limit, remaining=self.left(tenant), retry_after=1.5)
            self._changed.clear()
            try:
                async with asyncio.timeout(left_ns / SECOND_NS):
                    await self._changed.wait()
            except TimeoutError:
                continue
        if key is not None:
            self.keys[key] = grant
        self._log(tenant, amount)
        return grant

    def claim(
        self, names: Sequence[str], tenant: str, *, wait: float = 0.0, key: str | None = None
    ) -> Acquisition:
        raise UsageError("the toy has no names")

    def _log(self, tenant: str, amount: int) -> None:
        path = os.environ.get("BURSAR_TOY_LOG")
        if path:
            with open(path, "a") as file:
                file.write(f"{tenant} {amount}\n")

    async def _give_back(self, grant: Grant) -> None:
        used = grant.amount if grant.used is None else min(grant.used, grant.amount)
        self.held[grant.tenant] -= grant.amount
        self.spent[grant.tenant] = self.spent.get(grant.tenant, 0) + used
        self._changed.set()

    def used_on_error(self, grant: Grant) -> int | None:
        return 0

    async def reconfigure(self, policy: QuotaPolicy) -> None:
        self.policy = policy
        self.reconfigured += 1
        self._changed.set()

    def explain(self, tenant: str) -> Explanation:
        limit = self.policy.tenant(tenant).limit
        return Explanation(
            resource=self.name,
            kind=self.kind,
            tenant=tenant,
            sentences=(f"{tenant} may use {limit}.", f"It has {self.left(tenant)} left."),
            figures={"limit": limit, "left": self.left(tenant)},
        )

    def statistics(self) -> Mapping[str, Any]:
        tenants = {
            tenant: {"held": self.held.get(tenant, 0), "spent": self.spent.get(tenant, 0)}
            for tenant in self.policy.tenants
        }
        return {"calls": self.calls, "unit": "toys", "tenants": tenants}


def open_resource(world: World, name: str, policy: QuotaPolicy) -> Resource:
    return ToyResource(world, name, policy)
