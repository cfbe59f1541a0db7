"""A share whose limits hold outside of bursar: the kernel's I/O controller, or a Lustre server.

Nobody asks here before doing I/O, so there is nothing to acquire; the target's loop, its records, terms
that change, statistics and explanations are those of every share."""

from __future__ import annotations

from collections.abc import Callable

from bursar.errors import Refused
from bursar.policy import SharePolicy
from bursar.policy.live import LIVE
from bursar.resource import Decider, Explanation, Offers, Strangers, Ticket, check_change
from bursar.resource.door import Resource
from bursar.shares.announcing import Announcing
from bursar.shares.book import FORGET_EVERY, TargetBook
from bursar.shares.capacity import CapacityProbe
from bursar.shares.explanation import explain
from bursar.shares.resource import read_terms
from bursar.shares.statistics import ShareStatistics, read_statistics
from bursar.shares.target import Enforcer, Seen, Target
from bursar.units import Rate
from bursar.world import SECOND_NS, World

START_TOKENS = {"bytes": 64 * 1024 * 1024, "requests": 1_000}
"""A second: where an estimate begins."""


def open_enforced(world: World, name: str, policy: SharePolicy, enforcer: Enforcer) -> Resource:
    return Resource(world, EnforcedDecider(world, name, policy, enforcer), policy)


class _Looking:
    """An enforcer, and something to do at the end of each interval."""

    def __init__(self, enforcer: Enforcer, look: Callable[[], None]) -> None:
        self.apply = enforcer.apply
        self.release = enforcer.release
        self._enforcer = enforcer
        self._look = look

    async def collect(self) -> Seen:
        self._look()
        return await self._enforcer.collect()


class EnforcedDecider(Decider):
    """One target that others load; what they did is read, and their limits are set."""

    kind = "share"
    strangers: Strangers
    offers = Offers()
    stop_ns = 15 * SECOND_NS  # what was set outside of bursar does not go away by itself

    def __init__(self, world: World, name: str, policy: SharePolicy, enforcer: Enforcer) -> None:
        self.name = name
        self._policy = policy
        self.strangers = Strangers(lambda tenant: self.forget(tenant))
        start = START_TOKENS[policy.costs]
        self._book = TargetBook(
            read_terms(policy),
            policy.capacity or Rate.of(start, policy.costs),
            policy.interval_ns,
            half_life_ns=policy.half_life_ns,
        )
        self.verbs = Announcing(self._book).by_name()
        self._probe = CapacityProbe(start, _told(policy))
        journal = world.journal(f"share-{name}")
        self._target = Target(
            world, name, self._book, _Looking(enforcer, self._look), journal=journal, probe=self._probe
        )
        self._started = False

    async def start(self) -> None:
        self._target.start()
        self._started = True

    async def stop(self) -> None:
        await self._target.stop()

    @property
    def book(self) -> TargetBook:
        """Who owes whom; for reading."""
        return self._book

    async def reconfigure(self, policy: SharePolicy) -> None:
        """From the next interval on."""
        check_change(self._policy, policy, LIVE["share"])
        self._book.set_tenants(read_terms(policy))
        self.strangers.part(policy.tenants)
        if policy.capacity != self._policy.capacity:
            self._probe.told = _told(policy)
        self._book.set_interval(policy.interval_ns)
        self._book.set_half_life(policy.half_life_ns)
        self._policy = policy

    def _look(self) -> None:
        if self._book.number % FORGET_EVERY == 0:
            self.strangers.keep(self._book.__contains__)

    # -- the front door

    def is_ready(self) -> bool:
        return self._started

    def most(self, ticket: Ticket) -> int | None:
        return None

    def decide(self, ticket: Ticket) -> None:
        ticket.give(self._refusal())

    def withdraw(self, ticket: Ticket) -> Refused:
        return self._refusal()

    def _refusal(self) -> Refused:
        return Refused(
            f"{self.name} is enforced by {self._policy.enforce}, where I/O is done without asking: there is "
            "nothing to acquire"
        )

    def explain(self, tenant: str) -> Explanation:
        if self._book.terms(tenant) is None:
            self._policy.tenant(tenant)
        return explain(self.name, tenant, self._book)

    def statistics(self) -> ShareStatistics:
        return read_statistics(self._book, self._target.progress)


def _told(policy: SharePolicy) -> int | None:
    return None if policy.capacity is None else policy.capacity.per(SECOND_NS)
