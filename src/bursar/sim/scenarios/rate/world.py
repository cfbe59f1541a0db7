"""A rate under every fault: three servers, two nodes that only stand for leader, tenants that always
want more. Opened from a policy through the front door, as users do, with the defaults or with terms that
the seed draws from the schema (`policies`)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bursar.errors import Refused, Unknown
from bursar.policy.values import RatePolicy, Server
from bursar.rates.blocks import Blocks
from bursar.rates.controller import ControllerBook
from bursar.rates.courier import COMPACT_BYTES
from bursar.rates.messages import UNBOUNDED
from bursar.rates.resource import RateDecider, make_blocks
from bursar.rates.server import ServerBook
from bursar.rates.zones import ZoneBook
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.sim.errors import InvariantError
from bursar.sim.operators import fetch_lot, look_often
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.scenarios.rate.policies import (
    CAPACITIES,
    GUEST_LIMIT,
    GUESTS,
    SERVERS,
    TOKENS,
    change_policy,
    draw_policy,
)
from bursar.world import MILLISECOND_NS, SECOND_NS, World

CONTROLLERS = ("c1", "c2")
PAUSE_MAX_NS = 60 * MILLISECOND_NS
CALLERS = 5
"""Of each tenant at each server."""

COSTS_MAX = (1, 3, 8)
COSTLY = 0.2
IMPATIENT = 0.05
"""The most that a request costs, drawn by the seed; how many cost more than one token; how many callers
change their minds."""

EVEN_MAX, CAPPED_MAX = 40, 24
CHANGE_PERIODS = 3
LEARNT_MET = 0.5
MET = 0.9


class RateScenario(Scenario):
    """The truth: what every tenant was charged and what its callers were told, by the period that
    it was charged to."""

    duration_ns = 4 * SECOND_NS
    settle_ns = 6 * SECOND_NS
    session_timeout_ns = SECOND_NS
    fixed: Mapping[str, Any] = {}
    """Terms that the scenario needs as they are, whatever the seed draws."""

    servers: tuple[str, ...] = SERVERS
    costs_max: tuple[int, ...] = COSTS_MAX
    compact_bytes = COMPACT_BYTES
    met = MET
    server_book: type[ServerBook] = ServerBook
    controller_book: type[ControllerBook] = ControllerBook
    zone_book: type[ZoneBook] = ZoneBook
    decider: type[RateDecider] = RateDecider

    def __init__(self) -> None:
        self.charged: dict[tuple[str, int], int] = {}
        self.told: dict[tuple[str, int], int] = {}
        self.returned: dict[tuple[str, int], int] = {}
        self.opened = 0
        self.begun_alone: set[int] = set()
        self.policy = RatePolicy(name="cache", servers={}, tenants={})
        self.cost_max = max(COSTS_MAX)
        self.deciders: dict[str, RateDecider] = {}
        # A message that was slow when the faults end may come so late, and keeps later ones back.
        self._disturbed_until_ns = self.duration_ns + self.faults().slow_ns
        self._disturbed_period = 0
        self._late: str | None = None
        self._counted = 0
        self._checked = (0, 0)

    def nodes(self) -> Mapping[str, Boot]:
        draw = self.sim.chance.stream("policy")
        self.policy = self._draw_policy(draw)
        if self._is_learnt():
            self.met = LEARNT_MET
        self.cost_max = draw.choice(self.costs_max)
        self.drift_ppm = self.policy.drift_ppm
        if "period" not in self.fixed:  # so many periods under faults, and so many after them
            self.duration_ns = self.duration_ns * self.period_ns // (400 * MILLISECOND_NS)
            self.settle_ns = self.faults().slow_ns + self.period_ns * 15 // 2
            self._disturbed_until_ns = self.duration_ns + self.faults().slow_ns
        return dict.fromkeys((*CONTROLLERS, *self.servers), self._boot)

    def _draw_policy(self, draw: random.Random) -> RatePolicy:
        return draw_policy(draw, self.fixed)

    def _is_learnt(self) -> bool:
        """Whether nobody says what a server can do, so that it finds out."""
        return any(server.capacity is None for server in self.policy.servers.values())

    @property
    def period_ns(self) -> int:
        return self.policy.period_ns

    async def _boot(self, world: World) -> None:
        decider = self.decider(
            world,
            "cache",
            self.policy,
            server_book=self.server_book,
            controller_book=self.controller_book,
            zone_book=self.zone_book,
            blocks=self.make_blocks,
            compact_bytes=self.compact_bytes,
            dispatched=self._count,
        )
        door = Resource(world, decider, self.policy)
        await door.start()
        self.deciders[world.name] = decider
        self._opened(world, door)
        for tenant in self.tenants() if world.name in self.servers else ():
            for number in range(CALLERS if tenant in TOKENS else 1):
                world.spawn(self._call(world, door, tenant), f"{tenant}.{number}")
        looks = self.sim.chance.stream(f"looks/{world.name}")
        world.spawn(look_often(world, door, list(self.tenants()), looks), "looks")

    def make_blocks(self, world: World, policy: RatePolicy) -> Blocks | None:
        """What this life of a server journals."""
        return make_blocks(world, policy)

    def _opened(self, world: World, door: Resource) -> None:
        """A node has its part of the resource."""

    async def _call(self, world: World, door: Resource, tenant: str) -> None:
        """One after the other: most requests cost one token, and some are given back."""
        while True:
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
            costly = world.random.random() < COSTLY
            amount = world.random.randrange(1, self.cost_max + 1) if costly else 1
            if world.random.random() < IMPATIENT:
                caller = world.spawn(self._acquire(world, door, tenant, amount), f"{tenant}.impatient")
                await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
                caller.cancel()
            else:
                await self._acquire(world, door, tenant, amount)

    async def _acquire(self, world: World, door: Resource, tenant: str, amount: int) -> None:
        try:
            if world.random.random() < 0.2:
                grant = door.try_acquire(tenant, amount)
                if grant is None:
                    await fetch_lot(door, tenant)
            else:
                grant = await door.acquire(tenant, amount, wait=1.0)
        except (Refused, Unknown):
            return
        if grant is not None:
            await self._use(world, grant)

    async def _use(self, world: World, grant: Grant) -> None:
        if world.random.random() < 0.2:
            grant.settle(world.random.randrange(0, grant.amount))
        used = grant.amount if grant.used is None else grant.used
        period = grant.period
        if period:
            self._counted += 1
            self.told[grant.tenant, period] = self.told.get((grant.tenant, period), 0) + used
            if used and period < self.opened:
                self._note_late(period, f"{grant.tenant} was told of")
        work_max_ns = self.period_ns if world.random.random() < 0.1 else PAUSE_MAX_NS // 10
        await world.clock.sleep(world.random.randrange(0, work_max_ns))
        if world.random.random() < 0.9:
            await grant.release()

    def _count(self, tenant: str, period: int, tokens: int) -> None:
        if period == 0:
            return  # what a server spends on its own is bounded by itself
        key = (tenant, period)
        self._counted += 1
        self.charged[key] = self.charged.get(key, 0) + tokens
        self.returned[key] = self.returned.get(key, 0) + max(0, -tokens)
        if period < self.opened and tokens > 0:
            self._note_late(period, f"{tenant} was served from")

    def _note_late(self, period: int, what: str) -> None:
        self._late = f"{what} period {period} after {self.opened} had begun"

    def crashed(self, name: str) -> None:
        self.deciders.pop(name, None)

    def check(self) -> None:
        for decider in self.deciders.values():
            if decider.book.leading:
                self.opened = max(self.opened, decider.book.state.period)
            for server in decider.servers.values():
                if server.book.alone:
                    self._check_alone(server.book)
                elif server.book.grace.unheard:
                    self._note_begun(server.book.period)
        if self._checked == (self.opened, self._counted):
            return  # most events charge nothing and open nothing
        self._checked = (self.opened, self._counted)
        require(self._late is None, str(self._late))
        if self.sim.now_ns <= self._disturbed_until_ns:
            self._disturbed_period = self.opened
        for tenant in self.tenants():
            self._check_period(tenant, self.opened)

    def _note_begun(self, period: int) -> None:
        """A server that begins a period alone opens it as much as a leader does: nobody may be served from
        the one before any more."""
        self.opened = max(self.opened, period)
        self.begun_alone.add(period)

    def tenants(self) -> Iterable[str]:
        return (*TOKENS, *(GUESTS if self.policy.templates else ()))

    def _check_period(self, tenant: str, period: int) -> None:
        charged, told = self.charged.get((tenant, period), 0), self.told.get((tenant, period), 0)
        limit = self.limit(tenant, period)
        if limit is not None and charged > limit:
            why = f"{tenant} was served {charged} in period {period}, its limit is {limit}"
            raise InvariantError(why)
        if told > charged:
            why = f"{tenant} was told of {told} in period {period}, and {charged} were charged to its limit"
            raise InvariantError(why)

    def _check_alone(self, book: ServerBook) -> None:
        """A server that goes on by itself gives nobody more than it had."""
        most = self.most_alone()
        for tenant, given in zip(book.tenants, book.scheduler.allowance.tolist(), strict=True):
            if given > most.get(tenant, 0):
                why = f"{book.name} allows {tenant} {given} alone, above its limit of {most}"
                raise InvariantError(why)

    def most_alone(self) -> dict[str, int]:
        """By tenant; one without a limit had no more than the server can do in a period."""
        can = max(CAPACITIES) * (self.period_ns + SECOND_NS // 10) // SECOND_NS
        can = UNBOUNDED if self._is_learnt() else can  # then it may have had any number
        limits = {tenant: can if limit is None else limit for tenant, (_, limit) in TOKENS.items()}
        return {**limits, **dict.fromkeys(GUESTS, GUEST_LIMIT)}

    def limit(self, tenant: str, period: int) -> int | None:
        """What the tenant may be served in the period at most."""
        return GUEST_LIMIT if tenant in GUESTS else TOKENS[tenant][1]

    def audit(self) -> None:
        for tenant, period in sorted(self.charged):
            self._check_period(tenant, period)
        # A life that was killed has its standing part of one more period.
        settled = range(self._disturbed_period + 3, self.opened)
        require(
            len(settled) >= 1, f"only {self.opened - self._disturbed_period} periods opened once undisturbed"
        )
        for tenant, (reservation, _) in TOKENS.items():
            self._check_reservation(tenant, reservation, settled)

    def _check_reservation(self, tenant: str, reservation: int, settled: range) -> None:
        """Whoever was granted something and gave it back, perhaps too late for another, was served. Where
        capacities are learnt from callers that hold grants for any time, only over all periods."""
        if self._is_learnt():
            served = [self.charged.get((tenant, period), 0) for period in settled]
            wanted = self.met * reservation * len(settled)
            require(sum(served) >= wanted, f"{tenant} was served {served} of its reservation {reservation}")
            return
        for period in settled:
            charged = self.charged.get((tenant, period), 0) + self.returned.get((tenant, period), 0)
            require(
                charged >= self.met * reservation,
                f"{tenant} was served {charged} of its reservation {reservation} in {period}",
            )


class LearntRateScenario(RateScenario):
    """Nobody says what the servers can do: they find out, by callers that hold grants for any time,
    give some back unused, and never release others. So there is nothing to find out, and reservations are
    not to starve by it."""

    def _draw_policy(self, draw: random.Random) -> RatePolicy:
        policy = super()._draw_policy(draw)
        return msgspec.structs.replace(policy, servers=dict.fromkeys(SERVERS, Server()))


class ChangingRateScenario(RateScenario):
    """The policy changes all the time, at one node sooner than at the other: a period's limit is that
    of the leader that opened it, whoever takes over within it."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[tuple[str, int], int] = {}
        self._seen: set[tuple[int, int]] = set()
        self._calm = False
        self._changes = random.Random()

    def nodes(self) -> Mapping[str, Boot]:
        self._changes = self.sim.chance.stream("changes")
        nodes = super().nodes()
        # So long after the faults the last node may take the policy that stays.
        self._disturbed_until_ns += CHANGE_PERIODS * self.period_ns
        self.settle_ns += CHANGE_PERIODS * self.period_ns
        return nodes

    def _opened(self, world: World, door: Resource) -> None:
        world.spawn(self._change_terms(world, door), "operator")

    async def _change_terms(self, world: World, door: Resource) -> None:
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, CHANGE_PERIODS * self.period_ns))
            await door.reconfigure(self.policy if self._calm else self._draw_changed(world))

    def _draw_changed(self, world: World) -> RatePolicy:
        even = world.random.randrange(0, 20), world.random.randrange(20, EVEN_MAX + 1)
        capped = 0, world.random.randrange(0, CAPPED_MAX + 1)
        tokens = {"even": even, "capped": capped, "free": TOKENS["free"]}
        return change_policy(self._changes, self.policy, tokens)

    def healed(self) -> None:
        self._calm = True

    def check(self) -> None:
        for decider in self.deciders.values():
            book = decider.book
            if book.leading and (book.state.epoch, book.state.period) not in self._seen:
                self._seen.add((book.state.epoch, book.state.period))
                self._note_limits(book)
        super().check()

    def _note_limits(self, book: ControllerBook) -> None:
        for tenant, terms in book.terms.items():
            if terms.limit is not None and book.state.terms == book.digest:
                self._limits[tenant, book.state.period] = terms.limit

    def limit(self, tenant: str, period: int) -> int | None:
        """Of a period that a server began alone, that of the one before."""
        if tenant in GUESTS or TOKENS[tenant][1] is None:
            return super().limit(tenant, period)
        before = self._limits.get((tenant, period - 1), 0) if period in self.begun_alone else 0
        return self._limits.get((tenant, period), before)

    def most_alone(self) -> dict[str, int]:
        """New terms hold from the next period on, here as well."""
        return {**super().most_alone(), "even": EVEN_MAX, "capped": CAPPED_MAX}
