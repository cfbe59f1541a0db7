"""`pool` as the front door needs it: an engine for each tenant, and a monitor that leads or stands by.

Every process that opens the resource over the same words has its own engines and its own standby:
whichever opens a period leads it.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from bursar.errors import Refused, Unknown
from bursar.policy import PoolPolicy
from bursar.policy.live import LIVE
from bursar.pools.capacity import AdaptiveCapacity, Capacity, FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.explanation import explain
from bursar.pools.layout import AMOUNT_MAX, TICK_NS
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.pools.statistics import PoolStatistics, read_statistics
from bursar.pools.waiting import WaitingLine
from bursar.resource import (
    PLACE_NS,
    Ahead,
    Answer,
    Decider,
    Explanation,
    Granted,
    Issue,
    Offers,
    Seen,
    Ticket,
    check_change,
)
from bursar.resource.door import Resource
from bursar.resource.fallback import Fallback
from bursar.world import World

UNPROFILED_TOKENS = 1000

GAP_NS = 2 * TICK_NS
"""Between two periods nobody has tokens for a moment, which is no reason to refuse: whoever comes then
waits so long for the next."""

LIMIT_PART = 50
"""Of a tenant with a limit, at most one token in so many is out ahead of use: what idle callers hold of
it until the period ends."""


def open_resource(world: World, name: str, policy: PoolPolicy) -> Resource:
    """This process's part of the pool. Raises Refused if the reservations do not fit."""
    return Resource(world, PoolDecider(world, name, policy), policy)


def estimate_capacity(policy: PoolPolicy) -> Capacity:
    """What the policy says, or for "auto" an estimate that begins a little above what is reserved
    and rises while it is used up."""
    if policy.capacity is not None:
        return FixedCapacity(policy.capacity.per(policy.period_ns))
    reserved = sum(tenant.reservation.per(policy.period_ns) for tenant in policy.tenants.values())
    return AdaptiveCapacity(max(reserved * 10 // 9 + 1, UNPROFILED_TOKENS))


def limit_of(policy: PoolPolicy, tenant: str) -> int | None:
    """Tokens a period; None for no limit."""
    limit = policy.tenants[tenant].limit
    return None if limit is None else limit.per(policy.period_ns)


class Charged(NamedTuple):
    """What a grant was charged to: the period, as the engine's book tells it from others, and the lot
    that came with it."""

    opening: int
    issue: Issue | None


class PoolDecider(Decider):
    """Engines decide; what waits stands in one line for each tenant. Tokens that come back unused are
    the engine's again within their period, and void afterwards."""

    kind = "pool"
    offers = Offers(lots=True)
    engine_book_class = EngineBook
    monitor_book_class = MonitorBook

    def __init__(self, world: World, name: str, policy: PoolPolicy) -> None:
        self.name = name
        self.ahead = Ahead()
        self._world = world
        self._clock = world.clock
        self._policy = policy
        self._fallback = Fallback(policy.without_bursar, policy.period_ns)
        self._stopped = False
        local = policy.client_capacity
        self._book = self.monitor_book_class(
            name,
            estimate_capacity(policy),
            period_ns=policy.period_ns,
            client_capacity=None if local is None else local.per(policy.period_ns),
        )
        self._monitor = Monitor(world.clock, world.words, self._book)
        self._engines: dict[str, Engine] = {}
        self._lines: dict[str, WaitingLine] = {}
        for tenant, terms in policy.tenants.items():
            self._book.join(tenant, terms.reservation.per(policy.period_ns))
            self._open_engine(tenant)

    def _open_engine(self, tenant: str) -> None:
        policy = self._policy
        book = self.engine_book_class(
            self.name,
            tenant,
            period_ns=policy.period_ns,
            batch=policy.batch,
            adaptive=policy.adaptive_batch,
            limit=limit_of(policy, tenant),
            paced=policy.pacing,
        )
        engine = self._engines[tenant] = Engine(self._clock, self._world.words, book)
        name = f"pool.{self.name}.{tenant}.waiting"
        self._lines[tenant] = WaitingLine(self._world, name, engine, self._answer)

    async def start(self) -> None:
        self._monitor.check()
        self._world.spawn(self._monitor.run(), f"pool.{self.name}.monitor")
        for engine in self._engines.values():
            engine.tick()
        self._world.spawn(self._tick(), f"pool.{self.name}.ticks")

    async def _tick(self) -> None:
        while not self._stopped:
            # What was spent from lots is reported as spent, and nothing else of them.
            self.collect()
            for engine in list(self._engines.values()):
                engine.tick()
                await asyncio.sleep(0)  # many engines must not keep everybody else waiting
            await self._clock.sleep(TICK_NS)

    async def stop(self) -> None:
        self._stopped = True
        self._monitor.stop()

    async def reconfigure(self, policy: PoolPolicy) -> None:
        """New reservations and limits hold from the next period on; what does not fit is refused, and
        then nothing has changed."""
        check_change(self._policy, policy, LIVE["pool"])
        old = {name: client.reservation for name, client in self._book.clients.items()}
        new = {name: terms.reservation.per(policy.period_ns) for name, terms in policy.tenants.items()}
        try:
            for tenant in [name for name in old if name not in new]:
                self._book.leave(tenant)
            for tenant in sorted(new, key=lambda name: new[name] - old.get(name, 0)):  # room first
                self._book.join(tenant, new[tenant])
        except Refused:
            self._book.restore(old)
            raise
        self._policy = policy
        self._fallback.policy = policy.without_bursar
        for tenant in policy.tenants:
            if tenant not in self._engines:
                self._open_engine(tenant)
            self._engines[tenant].book.set_limit(limit_of(policy, tenant))

    def engine(self, tenant: str) -> Engine:
        """The engine of a tenant, for code that takes a token for every I/O: `engine.take()`."""
        if tenant not in self._engines or tenant not in self._policy.tenants:
            self._policy.tenant(tenant)
        return self._engines[tenant]

    def is_ready(self) -> bool:
        return not any(self._engines[tenant].is_alone() for tenant in self._policy.tenants)

    def most(self, ticket: Ticket) -> int:
        """Its limit, or all that the data node does in a period: tokens do not outlive it. Where
        another process leads an estimated pool, how much that is is not known here."""
        limit = limit_of(self._policy, ticket.tenant)
        known = self._policy.capacity is not None or self._book.leading
        return min(
            AMOUNT_MAX if limit is None else limit, self._capacity() if known else AMOUNT_MAX, AMOUNT_MAX
        )

    def _capacity(self) -> int:
        """Tokens a period."""
        return self._book.accounts.capacity if self._book.leading else self._book.estimate.value

    # -- deciding

    def decide(self, ticket: Ticket) -> None:
        line = self._lines[ticket.tenant]
        granted = None if line else self._take(ticket, ticket.ahead)
        if granted is not None:
            ticket.give(granted)
        elif ticket.wait_ns or self.patience_ns(ticket):
            line.add(ticket)
        else:
            ticket.give(self._refusal(ticket))

    def patience_ns(self, ticket: Ticket) -> int:
        engine = self._engines[ticket.tenant]
        between = engine.book.is_over(self._clock.now()) and not engine.is_alone()
        return GAP_NS if between and not ticket.at_once else 0

    def withdraw(self, ticket: Ticket) -> Refused | Unknown:
        line = self._lines[ticket.tenant]
        line.remove(ticket)
        line.serve()  # it may have been in the way of others
        return self._refusal(ticket)

    def _answer(self, ticket: Ticket) -> Answer | None:
        """What becomes of a request that waits."""
        if ticket.tenant not in self._policy.tenants:
            return Refused(f'{self.name} has no tenant "{ticket.tenant}" any more')
        if not self._engines[ticket.tenant].book.may_fit(ticket.amount):
            return self._refusal(ticket)
        return self._take(ticket, 0)

    def _take(self, ticket: Ticket, ahead: int) -> Granted | None:
        tenant = ticket.tenant
        engine = self._engines[tenant]
        now = self._clock.now()
        if self._book.leading and engine.book.is_over(now):
            self._monitor.check()  # this process opens the next period, and may be late to do so
        taken = engine.take_with_lot(ticket.amount, min(ahead, self._room(tenant, now)) if ahead else 0)
        if taken is None:
            if engine.is_alone() and self._fallback.allows(now, tenant, ticket.amount):
                return Granted(ticket.amount, fallback=self._policy.without_bursar.mode)
            return None
        issue = None
        if taken.ahead:
            issue = self.ahead.issue(
                tenant, self.name, ticket.held_by, taken.ahead, taken.ends_at, taken.period
            )
        self._fallback.charge(now, tenant, taken.period, ticket.amount + taken.ahead)
        return Granted(
            ticket.amount,
            period=taken.period,
            ahead=taken.ahead,
            until=taken.ends_at,
            limit=limit_of(self._policy, tenant),
            remaining=taken.usable,
            reset_ns=max(0, taken.ends_at - now),
            data=Charged(taken.opening, issue),
        )

    def _refusal(self, ticket: Ticket) -> Refused | Unknown:
        tenant = ticket.tenant
        engine = self._engines[tenant]
        if engine.is_alone():
            mode = self._policy.without_bursar.mode
            return Unknown(
                f"no monitor has opened a period of {self.name}; is one running? "
                f"(without_bursar = {mode}, and {tenant} has had what that allows)",
                fallback=mode,
            )
        return engine.refuse(ticket.amount)

    # -- lots, and what comes back

    def _room(self, tenant: str, now: int) -> int:
        """For all tenants, at most 5 ms of the data node; for one, at most a small part of its limit;
        and nothing while anybody waits."""
        place_max = self._capacity() * PLACE_NS // self._policy.period_ns
        limit = limit_of(self._policy, tenant)
        tenant_max = place_max if limit is None else max(1, limit // LIMIT_PART)
        room = self.ahead.room(now, tenant, self.name, tenant_max, place_max)
        return 0 if not room or any(self._lines.values()) else room

    def observe(self, tenant: str, granted: Granted | None, seen: Seen) -> None:
        """What was refused at the holder is no news: an engine knows of demand by what waits."""
        if granted is not None and granted.data.issue is not None:
            self.ahead.spend(granted.data.issue, seen.arrived)
            self._engines[tenant].note_spent(granted.data.opening, seen.arrived)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        self.observe(tenant, granted, seen)
        self.ahead.end(granted.data.issue)
        if unspent:
            self._engines[tenant].end_lot(granted.data.opening, unspent)
            self._take_note(tenant, granted, unspent)

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        if granted.data is not None:  # what a fallback let go is charged nowhere
            self._engines[tenant].give_back(granted.data.opening, unused)
            self._take_note(tenant, granted, unused)

    def _take_note(self, tenant: str, granted: Granted, unused: int) -> None:
        """Tokens came back: they are not kept without a monitor, and may be what others wait for."""
        if granted.data.opening == self._engines[tenant].book.opening:
            self._fallback.charge(self._clock.now(), tenant, granted.period, -unused)
            self._lines[tenant].serve()

    # -- telling

    def explain(self, tenant: str) -> Explanation:
        engine = self.engine(tenant)
        return explain(self.name, tenant, self._policy, engine, self._book)

    def statistics(self) -> PoolStatistics:
        return read_statistics(self._monitor, self._engines)
