"""Carries out the limits of a changed policy at the accounts that are open.

An account is opened with the limit of the terms in force. When these change, each node sees to it that
the accounts it has read have theirs, and looks at each that it reads later: whoever comes first changes
the account, the others find it done. A node takes a policy before it counts as one that runs it (its guards
still name the terms before), so what it may not carry out at once it carries out a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bursar.errors import NodeMissingError
from bursar.policy.values import QuotaPolicy
from bursar.quotas.accounts import Guards, OldTermsError
from bursar.quotas.chains import Chains
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.overdrafts import owner_of
from bursar.quotas.windows import split_account
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
        self._done: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._behind = asyncio.Event()
        courier.limited = self._compare

    def start(self) -> None:
        self._world.spawn(self._keep_up(), f"{self._courier.topic}.limits")

    async def set_policy(self, policy: QuotaPolicy) -> None:
        self._policy = policy
        self._done = {
            account: limit for account, limit in self._done.items() if account in self._courier.mints
        }
        for account in list(self._courier.mints):
            self._look_at(account)
        await self._try()

    def _compare(self, account: str, limit: int) -> None:
        """The store says that this limit was last carried out there. What this node carried out itself is
        another's to change: two that differ must not go on for ever."""
        if limit == self._find_limit(account):
            self._done[account] = limit
        if self._look_at(account):
            self._behind.set()

    def _look_at(self, account: str) -> bool:
        """Whether its limit is to be carried out."""
        limit = self._find_limit(account)
        if limit is None or limit == self._done.get(account):
            self._changed.pop(account, None)
            return False
        self._changed[account] = None
        return True

    def _find_limit(self, account: str) -> int | None:
        """The policy's; None for an account of another window, or of a tenant that was removed."""
        tenant = account if account in self._policy.tenants else split_account(account)[0]
        owner = owner_of(tenant)
        terms = self._policy.find(owner or tenant)
        if terms is None or not self._chains.is_present(account):
            return None
        return terms.overdraft if owner else terms.limit

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
        guards = self._world.fleet.guards()
        for account in list(self._changed):
            limit = self._find_limit(account)
            if limit is not None:
                await self._set(account, limit, guards)
            self._changed.pop(account, None)

    async def _set(self, account: str, limit: int, guards: Guards) -> None:
        try:
            await self._courier.set_limit(account, limit, guards)
        except NodeMissingError:
            return  # forgotten since
        self._world.trace("quota.limit", account=account, was=self._done.get(account), now=limit)
        self._done[account] = limit
