"""Carries out the limits of a changed policy at the accounts that are open.

An account is opened with the limit of the terms in force. When these change, each node sees to it that
the open accounts have theirs: whoever comes first changes the account, the others find it done. A node
takes a policy before it counts as one that runs it (its guards still name the terms before), so what it
may not carry out at once it carries out a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bursar.policy.values import QuotaPolicy
from bursar.quotas import accounts
from bursar.quotas.accounts import Guards, OldTermsError
from bursar.quotas.chains import Chains
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.layout import read_name
from bursar.quotas.windows import tenant_of
from bursar.world import MILLISECOND_NS, World

AGAIN_NS = 20 * MILLISECOND_NS


class Limits:
    """One node's. `why` says what kept it from carrying out the last limits, None if nothing did."""

    def __init__(self, world: World, courier: QuotaCourier, chains: Chains, policy: QuotaPolicy) -> None:
        self.why: OldTermsError | None = None
        self._world = world
        self._courier = courier
        self._chains = chains
        self._policy = policy
        self._done: QuotaPolicy | None = None
        self._behind = asyncio.Event()

    async def start(self) -> None:
        self._world.spawn(self._keep_up(), f"{self._courier.topic}.limits")
        await self._try()

    async def set_policy(self, policy: QuotaPolicy) -> None:
        self._policy = policy
        await self._try()

    async def _try(self) -> None:
        work: Callable[[], Awaitable[None]] = self._carry_out
        try:
            await self._courier.persist(work)
            self.why = None
        except OldTermsError as error:
            self.why = error
            self._behind.set()

    async def _keep_up(self) -> None:
        while True:
            await self._behind.wait()
            self._behind.clear()
            await self._world.clock.sleep(AGAIN_NS)
            await self._try()

    async def _carry_out(self) -> None:
        # Read together: a guard that is newer than the limits would vouch for nothing.
        policy, guards = self._policy, self._world.fleet.guards()
        store, layout = self._world.store, self._courier.layout
        await store.sync()
        for account in map(read_name, await store.children(layout.accounts)):
            limit = self._find_changed(account, policy)
            if limit is not None:
                await self._set(account, limit, guards)
        self._done = policy

    def _find_changed(self, account: str, policy: QuotaPolicy) -> int | None:
        """The account's limit, if it may be another than what this node last carried out."""
        window = self._chains.window
        listed = not window and account in policy.tenants  # whatever its name looks like
        tenant = account if listed else tenant_of(account, window)
        terms = policy.find(tenant) if tenant else None
        if terms is None:
            return None  # of another window, or of a tenant that was removed
        before = self._done.find(tenant) if self._done is not None else None
        return None if before is not None and before.limit == terms.limit else terms.limit

    async def _set(self, account: str, limit: int, guards: Guards) -> None:
        was = await accounts.read_limit(self._world.store, self._courier.layout, account)
        if was is not None and was != limit:
            await self._courier.set_limit(account, limit, guards)
            self._world.trace("quota.limit", account=account, was=was, now=limit)
