"""`share` as the front door needs it: requests wait in the target's filter for their turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bursar.courier import Alarm
from bursar.errors import Refused, UsageError
from bursar.policy import SharePolicy, ShareTenant
from bursar.policy.live import LIVE
from bursar.resource import (
    PLACE_NS,
    Ahead,
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
from bursar.shares.announcing import Announcing
from bursar.shares.book import FORGET_EVERY, TargetBook
from bursar.shares.enforcer import GateEnforcer
from bursar.shares.explanation import explain
from bursar.shares.gate import Gate
from bursar.shares.statistics import ShareStatistics, read_statistics
from bursar.shares.target import Target
from bursar.units import Rate
from bursar.world import SECOND_NS, World

LARGEST_NS = 60 * SECOND_NS
"""A request goes whole, and while the target does it nobody else is served, whatever his weight: one
that would take longer than this is refused. Larger work is asked for in parts, between which others
get their turns."""

MICROSECOND_NS = 1_000


def open_resource(world: World, name: str, policy: SharePolicy) -> Resource:
    """The share resource of a policy, embedded in this process."""
    return Resource(world, ShareDecider(world, name, policy), policy)


class Charged(NamedTuple):
    """What a grant was charged to: the interval, by its number, and the lot that came with it."""

    interval: int
    issue: Issue | None


class ShareDecider(Decider):
    """One target whose requests this process sees.

    Tokens that come back unused are put back within the interval they were charged to; later the
    moment in which they could have been used has passed, and it is nothing. A lot is charged like
    its requests would have been, to the tenant's bucket and the target's time, but it is demand only
    when requests come for it: who takes tokens ahead borrows and lends no more than who does not."""

    kind = "share"
    strangers: Strangers
    offers = Offers(lots=True)
    book_class = TargetBook
    gate_class = Gate

    def __init__(self, world: World, name: str, policy: SharePolicy) -> None:
        self.name = name
        self.ahead = Ahead()
        self._clock = world.clock
        self._policy = policy
        capacity = _check_capacity(name, policy)
        self._gate: Gate[Ticket] = self.gate_class(capacity)
        self.strangers = Strangers(lambda tenant: self.forget(tenant))
        self._book = self.book_class(
            read_terms(policy), capacity, policy.interval_ns, half_life_ns=policy.half_life_ns
        )
        self.verbs = Announcing(self._book).by_name()
        self._target = Target(
            world,
            name,
            self._book,
            GateEnforcer(world.clock, self._gate, self._look),
            journal=world.journal(f"share-{name}"),
        )
        self._alarm = Alarm(world, f"share.{name}", self._gate.wake_at, self._ring)
        self._started = False

    async def start(self) -> None:
        self._target.start()
        self._alarm.start()
        self._started = True

    async def stop(self) -> None:
        await self._target.stop()
        self._ring(self._clock.now())

    @property
    def book(self) -> TargetBook:
        """Who owes whom; for reading."""
        return self._book

    async def reconfigure(self, policy: SharePolicy) -> None:
        """Take a changed policy, from the next interval on. A tenant that is no longer in it
        leaves: its record is settled against the rest."""
        capacity = _check_capacity(self.name, policy)
        check_change(self._policy, policy, LIVE["share"])
        self._book.set_tenants(read_terms(policy))
        self.strangers.part(policy.tenants)
        self._book.set_capacity(capacity)
        self._book.set_interval(policy.interval_ns)
        self._book.set_half_life(policy.half_life_ns)
        self._gate.set_capacity(capacity)
        self._policy = policy

    def _look(self) -> None:
        """An interval ends."""
        self.collect()
        if self._book.number % FORGET_EVERY == 0:
            usage = self._gate.filter.usage
            self.strangers.keep(lambda tenant: tenant in self._book or tenant in usage)

    def is_ready(self) -> bool:
        return self._started

    def most(self, ticket: Ticket) -> int:
        return max(1, self._book.capacity.per(LARGEST_NS))

    # -- deciding

    def decide(self, ticket: Ticket) -> None:
        now = self._clock.now()
        gate = self._gate
        if len(gate.filter):
            self._ring(now)  # a timer may be late
        if gate.try_pass(ticket.tenant, ticket.amount, now):
            issue = self._charge_lot(ticket, now) if ticket.ahead else None
            ticket.give(self._grant(ticket, issue, now))
        elif ticket.wait_ns:
            ticket.place = gate.filter.submit(ticket.tenant, ticket.amount, ticket, now)
            self._alarm.set()
        else:
            gate.filter.refuse(ticket.tenant, ticket.amount)
            ticket.give(self._refusal(ticket, now))

    def withdraw(self, ticket: Ticket) -> Refused:
        now = self._clock.now()
        withdrawn = self._gate.filter.withdraw(ticket.place, now)
        assert withdrawn, "whoever was served was answered"
        return self._refusal(ticket, now)

    def _ring(self, now: int) -> None:
        for request in self._gate.pass_due(now):
            request.item.give(self._grant(request.item, None, now))

    def _grant(self, ticket: Ticket, issue: Issue | None, now: int) -> Granted:
        gate = self._gate
        return Granted(
            ticket.amount,
            ahead=0 if issue is None else issue.left,
            until=0 if issue is None else issue.until,
            limit=self._rate(ticket.tenant),
            remaining=gate.idle_tokens(now),
            reset_ns=gate.full_at(now) - now,
            data=Charged(self._book.number, issue),
        )

    def _rate(self, tenant: str) -> int:
        """Tokens a second that it gets now: of the whole target, while it has no rule."""
        line = self._book.handout.lines.get(tenant)
        return self._book.capacity.per(SECOND_NS) if line is None else line.rate

    def _refusal(self, ticket: Ticket, now: int) -> Refused:
        """Nothing can go now. With no other load the target is free when all that waits is done."""
        gate, tenant = self._gate, ticket.tenant
        rate = self._rate(tenant)
        retry_us = -(-(gate.drained_at(now) - now) // MICROSECOND_NS)
        return Refused(
            f"{self.name} is busy for another {retry_us / 1000:.1f} ms: {tenant}, which gets {rate} tokens a "
            f"second of it now, asked for {ticket.amount}; pass wait=, or a longer one",
            limit=rate,
            remaining=gate.idle_tokens(now),
            retry_after=retry_us * MICROSECOND_NS / SECOND_NS,
        )

    # -- lots, and what comes back

    def _charge_lot(self, ticket: Ticket, now: int) -> Issue | None:
        """Tokens ahead, for a request that found nobody waiting: at most what the tenant's bucket is
        filled with in 5 ms, and at most what the target does in 5 ms for all of them."""
        tenant, until = ticket.tenant, self._target.interval_ends_at(now)
        tenant_max = self._rate(tenant) * PLACE_NS // SECOND_NS
        place_max = self._book.capacity.per(PLACE_NS)
        room = self.ahead.room(now, tenant, self.name, tenant_max, place_max)
        tokens = self._gate.take_ahead(tenant, min(ticket.ahead, room), now)
        if not tokens:
            return None
        return self.ahead.issue(tenant, self.name, ticket.held_by, tokens, until, self._book.number)

    def observe(self, tenant: str, granted: Granted | None, seen: Seen) -> None:
        if granted is not None and granted.data.issue is not None:
            self.ahead.spend(granted.data.issue, seen.arrived)
        self._gate.filter.observe(tenant, seen.arrived, seen.refused)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        self.observe(tenant, granted, seen)
        self.ahead.end(granted.data.issue)
        self._give_back(tenant, granted, unspent)

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        if granted.data.interval == self._book.number:
            self._gate.filter.forget(tenant, unused)
        self._give_back(tenant, granted, unused)

    def _give_back(self, tenant: str, granted: Granted, tokens: int) -> None:
        if granted.data.interval != self._book.number or not tokens:
            return
        now = self._clock.now()
        self._gate.give_back(tenant, tokens, now)
        self._ring(now)
        self._alarm.set()

    # -- telling

    def explain(self, tenant: str) -> Explanation:
        if self._book.terms(tenant) is None:
            self._policy.tenant(tenant)
        return explain(self.name, tenant, self._book)

    def statistics(self) -> ShareStatistics:
        return read_statistics(self._book, self._target.progress)


def read_terms(policy: SharePolicy) -> Mapping[str, ShareTenant]:
    """Of tenants and templates."""
    return {**policy.tenants, **policy.templates} if policy.templates else policy.tenants


def _check_capacity(name: str, policy: SharePolicy) -> Rate:
    if policy.capacity is None:
        # Here requests pass and are gone: nothing shows how much the target could have done.
        raise UsageError(
            f'[resource.{name}] capacity = "auto" works where finished I/O is seen (blkio, lustre); for '
            'use inside a program write a rate, such as capacity = "1GiB/s"'
        )
    return policy.capacity
