"""Which accounts an acquisition is charged to: the tenant's and its parents', of the present windows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import NamedTuple

from bursar.errors import StoreError
from bursar.policy.values import QuotaPolicy
from bursar.quotas import accounts
from bursar.quotas.accounts import Opening
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.overdrafts import overdraft_of
from bursar.quotas.windows import Kind, Window, account_name, fit, split_account
from bursar.world import SECOND_NS, World

WindowOf = Callable[[Kind, int, str, date | None], Window | None]

ALWAYS = Window(0, 2**62)
NOT_YET = "the store has not answered yet"


class Chain(NamedTuple):
    """The accounts, the tenant's own first, and while they are these."""

    accounts: tuple[str, ...]
    while_: Window


class Chains:
    """The chain of each tenant, as far as it was asked for. `why` says what kept an account from being
    opened, the last time it was tried."""

    def __init__(self, world: World, courier: QuotaCourier, policy: QuotaPolicy, window_of: WindowOf) -> None:
        self.why: object = NOT_YET
        self.window_of = window_of
        self._world = world
        self._courier = courier
        self._policy = policy
        self._chains: dict[str, Chain] = {}
        self._calendar: dict[date | None, Window] = {}

    def set_policy(self, policy: QuotaPolicy) -> None:
        self._policy = policy
        self._chains.clear()
        self._calendar.clear()

    def find_common(self, wall_ns: int) -> Window | None:
        """The window of tenants without an anchor."""
        return self.window_of(self._policy.window, wall_ns, self._policy.zone, None)

    def name_window(self) -> str:
        """Theirs now; "" where there are none."""
        window = self.find_common(self._world.clock.wall())
        return "" if window is None else str(window)

    def find_window(self, tenant: str) -> Window | None:
        """The tenant's present window: what the store has, as far as that was read, else the calendar's."""
        policy, wall_ns = self._policy, self._world.clock.wall()
        anchor = policy.tenant(tenant).anchor
        window = self._calendar.get(anchor)
        if window is None or not window.holds(wall_ns):
            window = self.window_of(policy.window, wall_ns, policy.zone, anchor)
            if window is None:
                return None
            self._calendar[anchor] = window
        return fit(window, self._courier.registry.windows.get(tenant, ()), wall_ns)

    def account(self, tenant: str) -> str:
        """The tenant's own account."""
        return self.find(tenant)[0]

    def find(self, tenant: str) -> tuple[str, ...]:
        """The accounts, the tenant's own first."""
        return self._find(tenant).accounts

    def _find(self, tenant: str) -> Chain:
        found = self._chains.get(tenant)
        if found is None or not found.while_.holds(self._world.clock.wall()):
            found = self._chains[tenant] = self._build(tenant)
        return found

    def _build(self, tenant: str) -> Chain:
        names, level, while_ = [], tenant, ALWAYS
        while level:
            window = self.find_window(level)
            names.append(account_name(level, window))
            if window is not None:
                while_ = Window(max(while_.begin_s, window.begin_s), min(while_.end_s, window.end_s))
            level = self._policy.tenant(level).parent or ""
        return Chain(tuple(names), while_)

    def left_ns(self, tenant: str) -> int | None:
        """Time until the first of the tenant's windows ends; None without windows."""
        end_s = self._find(tenant).while_.end_s
        return None if end_s == ALWAYS.end_s else max(0, end_s * SECOND_NS - self._world.clock.wall())

    def is_open(self, tenant: str) -> bool:
        """Whether the accounts are known here; the first use of one takes a look at the store."""
        return all(account in self._courier.mints for account in self.find(tenant))

    async def try_open(self, tenant: str) -> bool:
        """See that the accounts exist and are known here."""
        error: StoreError | None = None
        try:
            level = tenant
            for account in self.find(tenant):
                # Read together: a guard that is newer than the limit would vouch for nothing.
                terms, guards = self._policy.tenant(level), self._world.fleet.guards()
                if account not in self._courier.mints:
                    window = self.find_window(level)
                    opening = Opening(level, window, terms.limit, self._is_carried(window))
                    await self._courier.open_account(opening, guards)
                level = terms.parent or ""
        except StoreError as raised:
            error = raised
        self._chains.pop(tenant, None)  # the store may have another window than the calendar
        is_open = self.is_open(tenant)
        self.why = error or (NOT_YET if is_open else "its window is just ending")
        return is_open

    async def open_overdraft(self, account: str) -> str:
        """The overdraft of an account, known here; "" if it has none. Of a window that is over it is not
        opened any more. Raises StoreError."""
        tenant, window = split_account(account)
        terms, guards = self._policy.find(tenant), self._world.fleet.guards()
        overdraft = overdraft_of(account)
        if terms is None or not terms.overdraft:
            return ""
        if overdraft not in self._courier.mints and self.is_present(account):
            opening = Opening(split_account(overdraft)[0], window, terms.overdraft, self._is_carried(window))
            await self._courier.open_account(opening, guards)
        return overdraft if overdraft in self._courier.mints else ""

    def _is_carried(self, window: Window | None) -> bool:
        """Whether the window was begun when the store was adopted: accounts of it that the store does not
        know may have been open in the one that was lost."""
        name = self._world.fleet.store_name()
        return name.epoch > 1 and (window is None or name.since_ns >= window.begin_s * SECOND_NS)

    def is_present(self, account: str) -> bool:
        """Whether it is one of those that are charged now."""
        window = split_account(account)[1]
        return window is None or window.holds(self._world.clock.wall())

    def limit(self, account: str) -> int:
        """All that the account may spend, with what was topped up; 0 if it is not open here."""
        return accounts.total(self._courier.mints.get(account, []))

    def most(self, tenant: str) -> int | None:
        """The most that one request could get, if it is known here."""
        return min(map(self.limit, self.find(tenant))) if self.is_open(tenant) else None
