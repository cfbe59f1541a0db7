"""`pool` as the front door needs it: an engine for each tenant, and a monitor that leads or stands by.

Every process that opens the resource over the same words has engines of those who ask there, and a
standby: whichever opens a period leads it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from bursar.errors import Refused, Unknown
from bursar.policy import PoolPolicy
from bursar.policy.live import LIVE
from bursar.pools.admission import fit
from bursar.pools.capacity import AdaptiveCapacity, Capacity, FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.engines import Client, Engines, find_reservations, limit_of
from bursar.pools.explanation import explain
from bursar.pools.layout import AMOUNT_MAX, CHECK_NS, FAR_CHECK_NS, OWN, TICK_NS
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.pools.rounds import Rounds
from bursar.pools.statistics import PoolStatistics, read_statistics
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
    Strangers,
    Ticket,
    check_change,
)
from bursar.resource.door import Resource
from bursar.resource.fallback import Fallback
from bursar.world import World

if TYPE_CHECKING:
    from bursar.pools.placer import Placer

UNPROFILED_TOKENS = 1000

GAP_NS = 2 * TICK_NS
"""Between two periods nobody has tokens for a moment, which is no reason to refuse: whoever comes then
waits so long for the next."""

LIMIT_PART = 50
"""Of a tenant with a limit, at most one token in so many is out ahead of use: what idle callers hold of
it until the period ends."""


def open_resource(world: World, name: str, policy: PoolPolicy) -> Resource:
    """This process's part of the pool. Of reservations that do not fit, what fits is kept."""
    return Resource(world, PoolDecider(world, name, policy), policy)


def estimate_capacity(policy: PoolPolicy, known: int = UNPROFILED_TOKENS) -> Capacity:
    """What the policy says, or for "auto" an estimate that begins with what is known, a little above
    what is reserved at least, and rises while it is used up."""
    if policy.capacity is not None:
        return FixedCapacity(policy.capacity.per(policy.period_ns))
    return AdaptiveCapacity(max(sum(find_reservations(policy).values()) * 10 // 9 + 1, known))


def _read_client_capacity(policy: PoolPolicy) -> int | None:
    local = policy.client_capacity
    return None if local is None else local.per(policy.period_ns)


def _make_placer(world: World, policy: PoolPolicy) -> Placer | None:
    """Of a pool of several data nodes. What it needs is loaded where there is one."""
    if not policy.nodes:
        return None
    from bursar.pools.placer import Placer

    return Placer(world, policy)


class Charged(NamedTuple):
    """What a grant was charged to: the period, as the engine's book tells it from others, and the lot
    that came with it."""

    opening: int
    issue: Issue | None


class PoolDecider(Decider):
    """Engines decide; what waits stands in one line for each tenant. Tokens that come back unused are
    the engine's again within their period, and void afterwards."""

    kind = "pool"
    strangers: Strangers
    offers = Offers(lots=True)
    engine_book_class = EngineBook
    monitor_book_class = MonitorBook

    def __init__(self, world: World, name: str, policy: PoolPolicy) -> None:
        self.name = name
        self.ahead = Ahead()
        self._short: dict[str, int] = {}
        self._world = world
        self._clock = world.clock
        self._policy = policy
        self._fallback = Fallback(policy.without_bursar, policy.period_ns)
        self._stopped = False
        self._book = self.monitor_book_class(
            name,
            estimate_capacity(policy),
            period_ns=policy.period_ns,
            client_capacity=_read_client_capacity(policy),
            check_ns=CHECK_NS if world.far_words is None else FAR_CHECK_NS,
        )
        self._monitor = Monitor(world.clock, world.words, self._book)
        self.strangers = Strangers(lambda tenant: self.forget(tenant))
        self._rounds = self._make_rounds(world)
        self._engines = Engines(
            world,
            name,
            policy,
            self.engine_book_class,
            self._book.opened_at,
            self._answer,
            self._book.note_own,
            None if self._rounds is None else self._rounds.call,
        )
        self._placer = _make_placer(world, policy)
        self._set_reservations(policy, self._book.estimate)

    def _make_rounds(self, world: World) -> Rounds | None:
        """What carries this pool's operations, where its words are far away."""
        if world.far_words is None:
            return None
        return Rounds(
            world.clock,
            world.far_words,
            self._book,
            lambda: self._engines.of_round(),
            lambda: self._engines.serve_waiting(),
        )

    def _set_reservations(self, policy: PoolPolicy, capacity: Capacity) -> None:
        client_capacity = _read_client_capacity(policy)
        if self._placer is None:
            wanted, before = find_reservations(policy), find_reservations(self._policy)
            reservations, self._short = fit(wanted, before, capacity.value, client_capacity)
        else:
            reservations, self._short = self._placer.set_policy(policy), self._placer.short
        self._book.set_terms({**reservations, OWN: 0}, capacity, client_capacity)

    async def _place(self) -> None:
        """What is reserved at this node in its next interval, again and again."""
        while not self._stopped and self._placer is not None:
            placer = self._placer
            reservations = await placer.place()
            if placer is not self._placer:
                continue  # the policy has changed meanwhile
            capacity, client_capacity = self._book.estimate, _read_client_capacity(self._policy)
            self._book.set_terms({**reservations, OWN: 0}, capacity, client_capacity)
            await self._clock.sleep(placer.look_ns)

    async def start(self) -> None:
        if self._placer is not None:
            self._world.spawn(self._place(), f"pool.{self.name}.placing")
        if self._rounds is not None:
            await self._rounds.round()
            self._world.spawn(self._go_round(self._rounds), f"pool.{self.name}.rounds")
            return
        self._monitor.check()
        self._world.spawn(self._monitor.run(), f"pool.{self.name}.monitor")
        self._world.spawn(self._tick(), f"pool.{self.name}.ticks")

    async def _tick(self) -> None:
        while not self._stopped:
            # What was spent from lots is reported as spent, and nothing else of them.
            self.collect()
            for engine in self._engines.ticking:
                engine.tick()
                await asyncio.sleep(0)  # many engines must not keep everybody else waiting
            self._look_after()
            await self._clock.sleep(TICK_NS)

    async def _go_round(self, rounds: Rounds) -> None:
        while not self._stopped:
            await rounds.rest()
            self.collect()
            await rounds.round()
            self._look_after()

    def _look_after(self) -> None:
        if self._engines.look_after(self._book.seen):
            self.strangers.keep(self._engines.__contains__)

    async def stop(self) -> None:
        self._stopped = True
        if self._rounds is not None:
            await self._rounds.resign()
        else:
            self._monitor.stop()

    async def reconfigure(self, policy: PoolPolicy) -> None:
        """New terms hold from the next period on."""
        check_change(self._policy, policy, LIVE["pool"])
        if policy.nodes != self._policy.nodes:
            self._placer = _make_placer(self._world, policy)
        capacity: Capacity = self._book.estimate
        if policy.capacity != self._policy.capacity:
            capacity = estimate_capacity(policy, self._book.estimate.value)
        self._set_reservations(policy, capacity)
        self._policy = policy
        self._fallback.policy = policy.without_bursar
        self._engines.set_policy(policy)
        self.strangers.part(policy.tenants)

    def engine(self, tenant: str) -> Engine:
        """The engine of a tenant, for code that takes a token for every I/O: `engine.take()`."""
        self._policy.tenant(tenant)
        client = self._engines.open(tenant)
        client.is_lent = True
        return client.engine

    def is_ready(self) -> bool:
        ticking = self._engines.ticking
        if not ticking:
            return self._book.is_led(self._clock.now())
        return not any(map(self._is_alone, ticking))

    def _is_alone(self, engine: Engine) -> bool:
        """Whether no period is opened, for all that the engine and this process's monitor have seen."""
        return engine.is_alone() and not self._book.is_led(self._clock.now())

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
        line = self._engines.open(ticket.tenant).line
        granted = None if line else self._take(ticket, ticket.ahead)
        if granted is not None:
            ticket.give(granted)
        elif ticket.wait_ns or self.patience_ns(ticket):
            line.add(ticket)
        else:
            ticket.give(self._refusal(ticket))

    def patience_ns(self, ticket: Ticket) -> int:
        engine = self._engines.open(ticket.tenant).engine
        now = self._clock.now()
        between = engine.book.is_over(now) and not self._is_alone(engine)
        # Tokens that are far away are asked for, and may be here by then.
        soon = between or (self._rounds is not None and self._book.is_led(now))
        return GAP_NS if soon and not ticket.at_once else 0

    def withdraw(self, ticket: Ticket) -> Refused | Unknown:
        line = self._engines.open(ticket.tenant).line
        line.remove(ticket)
        line.serve()  # it may have been in the way of others
        return self._refusal(ticket)

    def _answer(self, ticket: Ticket) -> Answer | None:
        """What becomes of a request that waits."""
        if self._policy.find(ticket.tenant) is None:
            return Refused(f'{self.name} has no tenant "{ticket.tenant}" any more')
        if not self._engines.open(ticket.tenant).engine.book.may_fit(ticket.amount):
            return self._refusal(ticket)
        return self._take(ticket, 0)

    def _take(self, ticket: Ticket, ahead: int) -> Granted | None:
        tenant = ticket.tenant
        engine = self._engines.open(tenant).engine
        now = self._clock.now()
        if self._rounds is None and self._book.leading and engine.book.is_over(now):
            self._monitor.check()  # this process opens the next period, and may be late to do so
        taken = engine.take_with_lot(ticket.amount, min(ahead, self._room(tenant, now)) if ahead else 0)
        if taken is None:
            if self._is_alone(engine) and self._fallback.allows(now, tenant, ticket.amount):
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
        engine = self._engines.open(tenant).engine
        if self._is_alone(engine):
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
        return 0 if not room or self._engines.is_anybody_waiting() else room

    def observe(self, tenant: str, granted: Granted | None, seen: Seen) -> None:
        """What was refused at the holder is no news: an engine knows of demand by what waits."""
        if granted is not None and granted.data.issue is not None:
            self.ahead.spend(granted.data.issue, seen.arrived)
            client = self._engines.get(tenant)
            if client is not None:
                client.engine.note_spent(granted.data.opening, seen.arrived)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        self.observe(tenant, granted, seen)
        self.ahead.end(granted.data.issue)
        client = self._engines.get(tenant)
        if unspent and client is not None:
            client.engine.end_lot(granted.data.opening, unspent)
            self._take_note(client, granted, unspent)

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        client = self._engines.get(tenant)
        if granted.data is not None and client is not None:  # what a fallback let go is charged nowhere
            client.engine.give_back(granted.data.opening, unused)
            self._take_note(client, granted, unused)

    def _take_note(self, client: Client, granted: Granted, unused: int) -> None:
        """Tokens came back: they are not kept without a monitor, and may be what others wait for."""
        book = client.engine.book
        if granted.data.opening == book.opening:
            self._fallback.charge(self._clock.now(), book.tenant, granted.period, -unused)
            client.line.serve()

    # -- telling

    def explain(self, tenant: str) -> Explanation:
        """By its engine here; who asks about a tenant that is not used here claims nothing for it."""
        self._policy.tenant(tenant)
        client = self._engines.get(tenant)
        engine = self._engines.make(tenant, reserves=False) if client is None else client.engine
        engine.tick()  # it may not have looked for long
        short, alone = self._short.get(tenant, 0), self._is_alone(engine)
        return explain(self.name, tenant, self._policy, engine, self._book, short=short, alone=alone)

    def statistics(self) -> PoolStatistics:
        carried_by = self._monitor if self._rounds is None else self._rounds
        return read_statistics(self._book, carried_by.unreachable, self._engines.by_tenant, self._short)
