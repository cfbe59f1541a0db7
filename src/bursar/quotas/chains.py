"""Which accounts an acquisition is charged to: the tenant's and its parents', of the present window."""

from __future__ import annotations

from collections.abc import Callable

from bursar.errors import StoreError
from bursar.policy.values import QuotaPolicy
from bursar.quotas import accounts
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.windows import Window, account_name
from bursar.world import World

WindowOf = Callable[[Window, int, str], tuple[str, int | None]]


class Chains:
    """The chain of each tenant, as far as it was asked for. `why` says what kept an account from being
    opened, the last time it was tried."""

    def __init__(self, world: World, courier: QuotaCourier, policy: QuotaPolicy, window_of: WindowOf) -> None:
        self.why: object = "its window is just ending"
        self.window_of = window_of
        self.window, self._ends_at = window_of(policy.window, world.clock.wall(), policy.zone)
        self._world = world
        self._courier = courier
        courier.is_carried = self.is_carried
        self._policy = policy
        self._chains: dict[str, tuple[str, ...]] = {}

    def set_policy(self, policy: QuotaPolicy) -> None:
        self._policy = policy
        self._chains.clear()

    def turn(self) -> None:
        """Be in the window that it is."""
        window, self._ends_at = self._window_at(self._world.clock.wall())
        if window != self.window:
            self.window = window
            self._chains.clear()
            self._world.trace("quota.window", window=window)

    def _window_at(self, wall_ns: int) -> tuple[str, int | None]:
        return self.window_of(self._policy.window, wall_ns, self._policy.zone)

    def left_ns(self) -> int | None:
        """Time until the window ends; None without windows. A window that is over is left."""
        if self._ends_at is None:
            return None
        left_ns = self._ends_at - self._world.clock.wall()
        if left_ns > 0:
            return left_ns
        self.turn()
        return None if self._ends_at is None else max(0, self._ends_at - self._world.clock.wall())

    def account(self, tenant: str) -> str:
        """The tenant's own account."""
        return account_name(tenant, self.window)

    def find(self, tenant: str) -> tuple[str, ...]:
        """The accounts, the tenant's own first."""
        found = self._chains.get(tenant)
        if found is None:
            names, level = [], tenant
            while level:
                names.append(self.account(level))
                level = self._policy.tenant(level).parent or ""
            found = self._chains[tenant] = tuple(names)
        return found

    def is_open(self, tenant: str) -> bool:
        """Whether the accounts are known here; the first use of one takes a look at the store."""
        return all(account in self._courier.mints for account in self.find(tenant))

    async def try_open(self, tenant: str) -> bool:
        """See that the accounts exist and are known here."""
        try:
            level = tenant
            for account in self.find(tenant):
                # Read together: a guard that is newer than the limit would vouch for nothing.
                terms, guards = self._policy.tenant(level), self._world.fleet.guards()
                await self._courier.open_account(account, terms.limit, guards)
                level = terms.parent or ""
        except StoreError as error:
            self.why = error
        return self.is_open(tenant)

    def is_carried(self) -> bool:
        """Whether the present window was begun when the store was adopted: accounts of it that the store
        does not know may have been open in the one that was lost."""
        name = self._world.fleet.store_name()
        return name.epoch > 1 and self._window_at(name.since_ns)[0] >= self.window

    def limit(self, account: str) -> int:
        """All that the account may spend, with what was topped up; 0 if it is not open here."""
        return accounts.total(self._courier.mints.get(account, []))

    def most(self, tenant: str) -> int | None:
        """The most that one request could get, if it is known here."""
        return min(map(self.limit, self.find(tenant))) if self.is_open(tenant) else None
