"""A budget as its users see it: reserve, settle, and a total that is never exceeded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bursar.errors import BursarError, Refused, StoreError, Unknown, UsageError
from bursar.policy.values import QuotaPolicy
from bursar.quotas import accounts
from bursar.quotas.book import Refusal
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.ledger import Account, Hold
from bursar.quotas.rules import BURSAR, Rules
from bursar.quotas.survey import Total
from bursar.quotas.watch import WarningTaker, Watch, write_total
from bursar.quotas.windows import account_name, window_of
from bursar.resource import Explanation, Grant, Resource, check_amount, check_change
from bursar.world import MILLISECOND_NS, SECOND_NS, World

ANSWER_NS = 200 * MILLISECOND_NS
"""To find out whether there are units anywhere may take this long, beyond what a caller waits."""

COARSE_NS = SECOND_NS // 2

LIVE = ("tenants", "unit", "warnings", "hold_expiry_ns", "shadow", "without_bursar")
"""What of a policy can change while the resource runs."""


def open_resource(world: World, name: str, policy: QuotaPolicy) -> QuotaResource:
    """This node's part of the quota."""
    return QuotaResource(world, name, policy)


class QuotaGrant(Grant):
    """Units reserved. `settle(used)` says what was used of them; the rest is given back."""

    __slots__ = ()

    def settle(self, used: int) -> None:
        hold: Hold | None = self.data
        if hold is not None and hold.expired:
            raise UsageError(_expired(self.amount, self.resource))
        if self.closed and hold is not None and hold.used == used and type(used) is int:
            return  # a retry says again what was used
        if isinstance(used, int) and not isinstance(used, bool) and used > self.amount:
            # The units beyond the hold were never reserved, so nothing can be charged for them.
            super().settle(self.amount)
            raise UsageError(
                f"settle({used}) is above the {self.amount} that were acquired; those are charged, the "
                f"{used - self.amount} beyond them are not: acquire as much as may be used"
            )
        super().settle(used)


def _expired(amount: int, resource: str) -> str:
    return (
        f"this hold of {amount} on {resource} expired and was charged in full: settle sooner, or set a "
        f"longer hold_expiry"
    )


class QuotaResource(Resource):
    kind = "quota"
    courier_class: type[QuotaCourier] = QuotaCourier
    window_of = staticmethod(window_of)

    def __init__(self, world: World, name: str, policy: QuotaPolicy, rules: Rules = BURSAR) -> None:
        super().__init__(name)
        self._world = world
        self._policy = policy
        self._fast = policy.mode == "fast"
        block = policy.block if self._fast else 0
        self.courier = self.courier_class(world, name, block=block, rules=rules)
        self._window, self._window_end = self.window_of(policy.window, world.clock.wall())
        self._chains: dict[str, tuple[str, ...]] = {}
        self._ready: dict[str, tuple[Account, ...]] = {}
        self._keyed: dict[str, asyncio.Future[Hold]] = {}
        self._coarse_now = world.clock.now()
        self._counts: dict[str, Counter[str]] = {}
        self.watch = Watch(world, self.courier, policy.warnings, lambda: self._window)

    async def start(self) -> None:
        await self.courier.open()
        await self.courier.persist(self._catch_up)
        self._renew_holds()
        self._world.spawn(self._keep_time(), f"{self.courier.topic}.time")
        self.watch.start()

    async def stop(self) -> None:
        await self.courier.close()

    async def reconfigure(self, policy: QuotaPolicy) -> None:
        """New limits become top-ups and cuts; other settings need a restart."""
        check_change(self._policy, policy, LIVE)
        old, self._policy = self._policy, policy
        self.watch.warnings = policy.warnings
        self._chains.clear()
        self._ready.clear()
        if policy.hold_expiry_ns != old.hold_expiry_ns:
            self._renew_holds()
        await self.courier.persist(self._catch_up)

    async def set_limit(self, tenant: str, limit: int) -> None:
        """Top up or cut the tenant's account of this window, for every node. A cut takes what is
        unspent; what was used already stays used."""
        await self.courier.set_limit(account_name(tenant, self._window), limit)

    async def _catch_up(self) -> None:
        """Carry out limits that the policy gives otherwise than when they were last carried out. (Accounts
        that nobody has used yet are opened with the policy's.)"""
        store, layout = self._world.store, self.courier.layout
        tenants = {account_name(tenant, self._window): tenant for tenant in self._policy.tenants}
        limits = {account: self._policy.tenants[tenant].limit for account, tenant in tenants.items()}
        for account, was in await accounts.find_changed(store, layout, limits):
            await self.set_limit(tenants[account], limits[account])
            self._world.trace("quota.limit", account=account, was=was, now=limits[account])

    def on_warning(self, taker: WarningTaker) -> None:
        self.watch.takers.append(taker)

    # -- acquiring

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        """From what was charged ahead: `fast` mode only, for `exact` journals before it answers."""
        chain = self._ready.get(tenant)
        if chain is None:
            self._prepare(tenant)
            return None
        check_amount(amount)
        ledger = self.courier.book.ledger
        hold = ledger.hold_from_block(tenant, chain, amount, None)
        if chain[0].block < self.courier.book.block // 2 or hold is None:
            self._refill(chain, amount)
        if hold is None:
            return None
        hold.expires_at = self._coarse_now + self._policy.hold_expiry_ns
        return QuotaGrant(self, tenant, amount, data=hold)

    def _prepare(self, tenant: str) -> None:
        """The first use of an account here takes a look at the store."""
        if not self._fast:
            raise UsageError(
                f"{self.name} is exact: it journals before it answers, so use `await acquire(...)`, or set "
                f'mode = "fast"'
            )
        self._world.spawn(self._make_ready(tenant, self._chain(tenant)), f"{self.courier.topic}.ready")

    async def _make_ready(self, tenant: str, chain: tuple[str, ...]) -> None:
        try:
            await self._open_accounts(tenant)
        except StoreError:
            return  # the next call tries again
        if chain == self._chain(tenant) and self._fast:
            self._ready[tenant] = tuple(self.courier.book.chain(chain))
            self._refill(self._ready[tenant], 1)

    def _refill(self, chain: tuple[Account, ...], amount: int) -> None:
        book, now = self.courier.book, self._world.clock.now()
        for account in chain:
            book.refill(now, account, amount)
        self.courier.perform(book.look_for_need(now, chain, amount))

    def _chain(self, tenant: str) -> tuple[str, ...]:
        """The accounts that an acquisition is charged to: the tenant's, and its parents'."""
        found = self._chains.get(tenant)
        if found is None:
            names, level = [], tenant
            while level:
                names.append(account_name(level, self._window))
                level = self._policy.tenant(level).parent or ""
            found = self._chains[tenant] = tuple(names)
        return found

    async def _open_accounts(self, tenant: str) -> None:
        level = tenant
        for account in self._chain(tenant):
            terms = self._policy.tenant(level)
            await self.courier.open_account(account, terms.limit)
            level = terms.parent or ""

    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant:
        self._chain(tenant)
        counts = self._counts.setdefault(tenant, Counter())
        try:
            hold = await (
                self._reserve(tenant, amount, wait_ns, None)
                if key is None
                else self._take_keyed(tenant, amount, wait_ns, f"{tenant}:{key}")
            )
        except (Refused, Unknown) as answer:
            counts["refused" if isinstance(answer, Refused) else "unknown"] += 1
            if not self._policy.shadow:
                raise
            return QuotaGrant(self, tenant, amount, fallback="shadow")
        counts["granted"] += 1
        counts["units"] += amount
        grant = QuotaGrant(self, tenant, amount, data=hold)
        if hold.used is not None:
            grant._used, grant.closed = hold.used, True  # a retry of what is over
        return grant

    async def _take_keyed(self, tenant: str, amount: int, wait_ns: int, key: str) -> Hold:
        """The same key twice is one acquisition, also while the first is under way."""
        known = self.courier.book.ledger.keys.get(key)
        if known is not None:
            return _check_key(known, amount, key)
        if key in self._keyed:
            return _check_key(await asyncio.shield(self._keyed[key]), amount, key)
        first = self._keyed[key] = asyncio.get_running_loop().create_future()
        try:
            hold = await self._reserve(tenant, amount, wait_ns, key)
            first.set_result(hold)
            return hold
        except BaseException as error:
            first.set_exception(
                error
                if isinstance(error, BursarError)
                else Unknown("the first request with this key was cancelled")
            )
            first.exception()  # it is told to whoever waits; if nobody does, that is fine
            raise
        finally:
            del self._keyed[key]

    async def _reserve(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Hold:
        deadline = self._world.clock.now() + max(wait_ns, ANSWER_NS)
        await self._open_in_time(tenant, deadline)
        chain = self._chain(tenant)
        for account in chain:
            limit = accounts.total(self.courier.mints[account])
            if amount > limit:
                raise self._refusal(Refusal(account, limit, amount))
        wait = deadline - self._world.clock.now()
        outcome = await self.courier.reserve(tenant, chain, amount, key, wait)
        if isinstance(outcome, Refusal):
            raise self._refusal(outcome)
        if outcome is None:
            raise self._unknown(f"{amount} of {chain[0]} are not here, and not everybody answered in time")
        outcome.expires_at = self._world.clock.now() + self._policy.hold_expiry_ns
        return outcome

    async def _open_in_time(self, tenant: str, deadline: int) -> None:
        while not self._is_open(tenant):
            why: object = "its window is just ending"
            try:
                await self._open_accounts(tenant)
            except StoreError as error:
                why = error
            if not self._is_open(tenant):
                if self._world.clock.now() >= deadline:
                    raise self._unknown(f"the account of {tenant} could not be opened: {why}")
                await self._world.clock.sleep(10 * MILLISECOND_NS)

    def _is_open(self, tenant: str) -> bool:
        return all(account in self.courier.mints for account in self._chain(tenant))

    def _unknown(self, why: str) -> Unknown:
        return Unknown(why, fallback=self._policy.without_bursar.mode)

    def _refusal(self, refusal: Refusal) -> Refused:
        limit = accounts.total(self.courier.mints.get(refusal.account, []))
        ends_ns = None if self._window_end is None else max(0, self._window_end - self._world.clock.wall())
        return Refused(
            f"{refusal.account}: {refusal.asked} asked for, {refusal.left} of {limit} left",
            limit=limit,
            remaining=refusal.left,
            retry_after=None if ends_ns is None else ends_ns / SECOND_NS,
        )

    # -- giving back

    def used_on_error(self, grant: Grant) -> int | None:
        """Work that failed before it said what it used is not charged, unless its hold expired."""
        hold: Hold | None = grant.data
        return None if hold is not None and hold.used is not None else 0

    async def _give_back(self, grant: Grant) -> None:
        hold: Hold | None = grant.data
        if hold is None:
            return
        used = hold.amount if grant.used is None else min(grant.used, hold.amount)
        if hold.used is None:
            self.courier.settle(hold, used)
        elif hold.used != used and grant.used is not None:
            was = (
                _expired(hold.amount, self.name) if hold.expired else f"this key was settled with {hold.used}"
            )
            raise UsageError(was)
        if grant.used is not None and grant.used > hold.amount:
            raise UsageError(f"settled {grant.used} on a hold of {hold.amount}: {hold.amount} were charged")

    def _renew_holds(self) -> None:
        """Holds of an earlier life, of which nobody knows since when, or of another expiry: their time
        begins anew."""
        for hold in self.courier.book.ledger.holds.values():
            hold.expires_at = self._world.clock.now() + self._policy.hold_expiry_ns

    async def _keep_time(self) -> None:
        """Charge what expired, and go over to the next window."""
        while True:
            await self._world.clock.sleep(COARSE_NS)
            self._coarse_now = self._world.clock.now()
            self._expire_holds()
            window, end = self.window_of(self._policy.window, self._world.clock.wall())
            if window != self._window:
                self._window, self._window_end = window, end
                self._chains.clear()
                self._ready.clear()
                self._world.trace("quota.window", window=window)

    def _expire_holds(self) -> None:
        """A hold that nobody ended: what became of its units is unknown, so they are spent."""
        holds = self.courier.book.ledger.holds
        for hold in list(holds.values()):
            if hold.expires_at is None:
                continue  # granted, and not told yet
            if hold.expires_at > self._coarse_now:
                break  # they are in the order in which they were made
            hold.expired = True
            self.courier.settle(hold, hold.amount)

    # -- telling

    async def take_survey(self) -> Mapping[str, Total]:
        """Ask every node what it has; the audit of every account."""
        return await self.watch.take_survey()

    def statistics(self) -> Mapping[str, Any]:
        """This node's part, and the whole as the last survey found it; asking begins another."""
        book = self.courier.book
        self.watch.refresh()
        return {
            "ledger": book.identity,
            "generation": book.ledger.generation,
            "parent": book.parent or "",
            "children": len(book.children),
            "window": self._window,
            "unit": self._policy.unit,
            "mode": self._policy.mode,
            "holds": len(book.ledger.holds),
            "tenant": {tenant: self._count(tenant) for tenant in self._policy.tenants},
            "surveys": self.watch.surveys,
            "whole": {account: write_total(total) for account, total in self.watch.totals.items()},
        }

    def _count(self, tenant: str) -> dict[str, int]:
        account = self.courier.book.ledger.account(account_name(tenant, self._window))
        counts = self._counts.get(tenant, Counter())
        return {
            "unspent": account.unspent + account.block,
            "held": account.held,
            "spent": account.spent,
            **{name: counts[name] for name in ("granted", "refused", "unknown", "units")},
        }

    def explain(self, tenant: str) -> Explanation:
        sentences: list[str] = []
        figures: dict[str, int | float | str | bool | None] = {}
        book, now = self.courier.book, self._world.clock.now()
        level: str | None = tenant
        for account in self._chain(tenant):
            ledger_account = book.ledger.account(account)
            round_ = book.round(ledger_account)
            limit = (
                accounts.total(self.courier.mints.get(account, []))
                or self._policy.tenant(level or tenant).limit
            )
            here = ledger_account.unspent + ledger_account.block
            left = round_.known_left(now)
            sentences.append(
                f"{account} may use {limit} {self._policy.unit}; {here} of them are at this node."
            )
            if left is not None:
                sentences.append(f"{account}: the root heard every node and found {left} unspent anywhere.")
            figures |= {
                f"{account}.limit": limit,
                f"{account}.here": here,
                f"{account}.held": ledger_account.held,
                f"{account}.spent": ledger_account.spent,
                f"{account}.rate": round(round_.rate(now), 3),
                f"{account}.left": left,
            }
            level = self._policy.tenant(level).parent if level else None
        sentences.append(
            "What is not here is fetched from other nodes; only the root refuses, once it heard them all."
        )
        return Explanation(
            resource=self.name, kind=self.kind, tenant=tenant, sentences=tuple(sentences), figures=figures
        )


def _check_key(hold: Hold, amount: int, key: str) -> Hold:
    if hold.amount != amount:
        raise UsageError(
            f"key {key!r} was used for {hold.amount} units already, not {amount}: use another key"
        )
    return hold
