"""A rate under every fault: three servers, two nodes that only stand for leader, tenants that always
want more. Opened from a policy through the front door, as users do, with the defaults; what policies
vary is drawn by the seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import msgspec

from bursar.errors import Refused, Unknown
from bursar.policy.values import KEEP, REFUSE, RatePolicy, RateTenant, Server
from bursar.rates.blocks import Blocks
from bursar.rates.controller import ControllerBook
from bursar.rates.courier import COMPACT_BYTES
from bursar.rates.resource import RateDecider, make_blocks
from bursar.rates.server import ServerBook
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.sim.scenario import Boot, Scenario, require
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, World

SERVERS = ("s1", "s2", "s3")
CONTROLLERS = ("c1", "c2")
CAPACITIES = (100, 1_000)
"""Tokens a second: little enough that tenants contend for it, and enough that lots are handed out."""

PERIOD_NS = 400 * MILLISECOND_NS
INTERVAL_NS = 100 * MILLISECOND_NS
DRIFT_PPM = 10_000
TOKENS: dict[str, tuple[int, int | None]] = {"even": (20, 30), "capped": (0, 12), "free": (15, None)}
"""By tenant, (reservation, limit) in a period."""

PAUSE_MAX_NS = 60 * MILLISECOND_NS
CALLERS = 5
"""Of each tenant at each server."""

COST_MAX = 3
EVEN_MAX, CAPPED_MAX = 40, 24
MET = 0.9


def make_tenant(reservation: int, limit: int | None, period_ns: int = PERIOD_NS) -> RateTenant:
    return RateTenant(
        reservation=_rate(reservation, period_ns), limit=None if limit is None else _rate(limit, period_ns)
    )


def _rate(tokens: int, period_ns: int) -> Rate:
    return Rate.of(Fraction(tokens * SECOND_NS, period_ns))


class RateScenario(Scenario):
    """The truth: what every tenant was charged and what its callers were told, by the period that
    it was charged to."""

    duration_ns = 4 * SECOND_NS
    settle_ns = 6 * SECOND_NS
    session_timeout_ns = SECOND_NS
    drift_ppm = DRIFT_PPM
    period_ns = PERIOD_NS
    interval_ns = INTERVAL_NS
    compact_bytes = COMPACT_BYTES
    server_book: type[ServerBook] = ServerBook
    controller_book: type[ControllerBook] = ControllerBook
    decider: type[RateDecider] = RateDecider

    def __init__(self) -> None:
        self.charged: dict[tuple[str, int], int] = {}
        self.told: dict[tuple[str, int], int] = {}
        self.opened = 0
        self.policy = RatePolicy(name="cache", servers={}, tenants={})
        self.deciders: dict[str, RateDecider] = {}
        # A message that was slow when the faults end may come so late, and keeps later ones back.
        self._disturbed_until_ns = self.duration_ns + self.faults().slow_ns
        self._disturbed_period = 0
        self._late: str | None = None
        self._counted = 0
        self._checked = (0, 0)

    def nodes(self) -> Mapping[str, Boot]:
        self.policy = self._draw_policy()
        return dict.fromkeys((*CONTROLLERS, *SERVERS), self._boot)

    def _draw_policy(self) -> RatePolicy:
        draw = self.sim.chance.stream("policy")
        capacity = Rate.of(draw.choice(CAPACITIES))
        return RatePolicy(
            name="cache",
            servers=dict.fromkeys(SERVERS, Server(capacity=capacity)),
            tenants={tenant: make_tenant(*tokens, self.period_ns) for tenant, tokens in TOKENS.items()},
            period_ns=self.period_ns,
            interval_ns=self.interval_ns,
            drift_ppm=DRIFT_PPM,
            pacing=draw.random() < 0.7,
            without_bursar=draw.choice((KEEP, REFUSE)),
        )

    async def _boot(self, world: World) -> None:
        decider = self.decider(
            world,
            "cache",
            self.policy,
            server_book=self.server_book,
            controller_book=self.controller_book,
            blocks=self.make_blocks,
            compact_bytes=self.compact_bytes,
            dispatched=self._count,
        )
        door = Resource(world, decider, self.policy)
        await door.start()
        self.deciders[world.name] = decider
        self._opened(world, door)
        for tenant in TOKENS if world.name in SERVERS else ():
            for number in range(CALLERS):
                world.spawn(self._call(world, door, tenant), f"{tenant}.{number}")

    def make_blocks(self, world: World, policy: RatePolicy) -> Blocks | None:
        """What this life of a server journals."""
        return make_blocks(world, policy)

    def _opened(self, world: World, door: Resource) -> None:
        """A node has its part of the resource."""

    async def _call(self, world: World, door: Resource, tenant: str) -> None:
        """One after the other: most requests cost one token, and some are given back."""
        while True:
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
            amount = world.random.randrange(1, COST_MAX + 1) if world.random.random() < 0.2 else 1
            try:
                if world.random.random() < 0.2:
                    grant = door.try_acquire(tenant, amount)
                else:
                    grant = await door.acquire(tenant, amount, wait=1.0)
            except (Refused, Unknown):
                continue
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
                self._late = f"{grant.tenant} was told of period {period} after {self.opened} had begun"
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
        if period < self.opened and tokens > 0:
            self._late = f"{tenant} was served from period {period} after {self.opened} had begun"

    def crashed(self, name: str) -> None:
        self.deciders.pop(name, None)

    def check(self) -> None:
        for decider in self.deciders.values():
            if decider.book.leading:
                self.opened = max(self.opened, decider.book.state.period)
            self._check_alone(decider)
        if self._checked == (self.opened, self._counted):
            return  # most events charge nothing and open nothing
        self._checked = (self.opened, self._counted)
        require(self._late is None, str(self._late))
        if self.sim.now_ns <= self._disturbed_until_ns:
            self._disturbed_period = self.opened
        for tenant in self.tenants():
            self._check_period(tenant, self.opened)

    def tenants(self) -> Iterable[str]:
        return TOKENS

    def _check_period(self, tenant: str, period: int) -> None:
        charged, told = self.charged.get((tenant, period), 0), self.told.get((tenant, period), 0)
        limit = self.limit(tenant, period)
        require(
            limit is None or charged <= limit,
            f"{tenant} was served {charged} in period {period}, its limit is {limit}",
        )
        require(
            told <= charged,
            f"{tenant} was told of {told} tokens in period {period}, and {charged} were charged to its limit",
        )

    def _check_alone(self, decider: RateDecider) -> None:
        """A server that goes on by itself gives nobody more than it had."""
        for server in decider.servers.values():
            if server.book.alone:
                book, most = server.book, self.most_alone()
                for tenant, given in zip(book.tenants, book.scheduler.allowance, strict=True):
                    require(
                        int(given) <= most.get(tenant, 0),
                        f"{book.name} allows {tenant} {given} alone, above its limit of {most}",
                    )

    def most_alone(self) -> dict[str, int]:
        """By tenant; one without a limit had no more than the server can do in a period."""
        can = max(CAPACITIES) * (self.period_ns + SECOND_NS // 10) // SECOND_NS
        return {tenant: can if limit is None else limit for tenant, (_, limit) in TOKENS.items()}

    def limit(self, tenant: str, period: int) -> int | None:
        """What the tenant may be served in the period at most."""
        return TOKENS[tenant][1]

    def audit(self) -> None:
        for tenant, period in sorted(self.charged):
            self._check_period(tenant, period)
        settled = range(self._disturbed_period + 2, self.opened)
        require(
            len(settled) >= 2, f"only {self.opened - self._disturbed_period} periods opened once undisturbed"
        )
        for period in settled:
            for tenant, (reservation, _) in TOKENS.items():
                charged = self.charged.get((tenant, period), 0)
                require(
                    charged >= MET * reservation,
                    f"{tenant} was served {charged} of its reservation {reservation} in {period}",
                )


class ChangingRateScenario(RateScenario):
    """The policy changes all the time, at one node sooner than at the other: a period's limit is that
    of the leader that opened it, whoever takes over within it."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[tuple[str, int], int] = {}
        self._seen: set[tuple[int, int]] = set()
        self._calm = False

    def _opened(self, world: World, door: Resource) -> None:
        world.spawn(self._change_terms(world, door), "operator")

    async def _change_terms(self, world: World, door: Resource) -> None:
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, 3 * PERIOD_NS))
            changed = {
                "even": make_tenant(world.random.randrange(0, 20), world.random.randrange(20, EVEN_MAX + 1)),
                "capped": make_tenant(0, world.random.randrange(0, CAPPED_MAX + 1)),
                "free": make_tenant(*TOKENS["free"]),
            }
            await door.reconfigure(
                self.policy if self._calm else msgspec.structs.replace(self.policy, tenants=changed)
            )

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
        return None if TOKENS[tenant][1] is None else self._limits.get((tenant, period), 0)

    def most_alone(self) -> dict[str, int]:
        """New terms hold from the next period on, here as well."""
        return {**super().most_alone(), "even": EVEN_MAX, "capped": CAPPED_MAX}
