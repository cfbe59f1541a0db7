"""Clients of a daemon, under every fault: lots at clients that crash, pause, idle and are cut off, and
a daemon that crashes and changes its policy. Everything is opened from a policy, at default settings or
with terms that the seed draws from the schema, and asked through the front door of each client.

The rules of lots are invariants here: what callers were told of is never more than was charged (1, 5),
what is out ahead is bounded (2), demand is what was spent (3), no token of a lot is used after its
end (4), lots come back when the policy changes (7), a refusal is not repeated for long (8).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from bursar.errors import NetworkError, Refused, Unknown, UsageError
from bursar.policy.kinds import RATE
from bursar.policy.values import RatePolicy
from bursar.rates.resource import RateDecider
from bursar.resource import PLACE_NS
from bursar.resource.clients import Clients
from bursar.resource.door import Resource
from bursar.resource.far import Far
from bursar.resource.grants import Grant
from bursar.sim.drawing import CHANCE, PLAIN, Ranges, Terms, draw_terms, read_resource
from bursar.sim.operators import look_often
from bursar.sim.scenario import Boot, Scenario, require
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, World

DAEMON = "daemon"
CLIENTS = ("c1", "c2", "c3")
CAPACITY = 4_000
LIMITS = {"acme": 200, "globex": 40}
CALLERS = 2
COST_MAX = 3
GRACE_NS = SECOND_NS

IMPATIENT = 0.05
GUEST = "guest"
GUEST_LIMIT = 30
"""Whom a template lets in, where one was drawn; tokens a second."""

RANGES: Ranges = {
    "period": ("500ms", "2s"),
    "interval": ("100ms", "auto"),
    "drift_ppm": (500, 5_000),
    "without_bursar": ("keep", "refuse", {"safe": "20/s"}),
    "max_tenants": (len(LIMITS) + 1, 50),
}
TENANT_RANGES: Ranges = {
    "burst": (5, 15),
    "weight": (1, 5),
    "reservation": (),
    "limit": (),
    "servers": (["here"],),
}


def draw_policy(draw: random.Random) -> RatePolicy:
    plain = draw.random() < PLAIN
    terms = {} if plain else draw_terms(draw, RATE, RANGES)
    capacity = "auto" if not plain and draw.random() < CHANCE / 2 else f"{CAPACITY}/s"
    tenants: dict[str, Terms] = {name: {"limit": f"{limit}/s"} for name, limit in LIMITS.items()}
    tenants["globex"]["reservation"] = "20/s"
    if not plain:
        record = RATE.keys["tenant"].shape.shape  # type: ignore[attr-defined]
        for each in tenants.values():
            each |= draw_terms(draw, record, TENANT_RANGES)
        if draw.random() < CHANCE:
            tenants["*"] = {"limit": f"{GUEST_LIMIT}/s"}
    policy: RatePolicy = read_resource("api", "rate", {**terms, "servers": {"here": capacity}}, tenants)
    return policy


class DoorScenario(Scenario):
    """The truth: what was charged at the daemon and what callers were told, by tenant and period."""

    duration_ns = 3 * SECOND_NS
    settle_ns = 4 * SECOND_NS
    drift_ppm = 500
    session_timeout_ns = SECOND_NS
    clients: type[Clients] = Clients
    far: type[Far] = Far
    decider: type[RateDecider] = RateDecider

    def __init__(self) -> None:
        self.terms = RatePolicy(name="api", servers={})
        self.charged: dict[tuple[str, int], int] = {}
        self.told: dict[tuple[str, int], int] = {}
        self.late: str | None = None
        self._opened = 0
        self._decider: RateDecider | None = None
        self._doors: dict[str, Resource] = {}
        self._calm = False
        self._granted_calm = 0

    def nodes(self) -> Mapping[str, Boot]:
        self.terms = draw_policy(self.sim.chance.stream("policy"))
        return {DAEMON: self._boot_daemon, **dict.fromkeys(CLIENTS, self._boot_client)}

    @property
    def tenants(self) -> tuple[str, ...]:
        return (*LIMITS, *([GUEST] if self.terms.templates else []))

    # -- the daemon

    async def _boot_daemon(self, world: World) -> None:
        decider = self.decider(world, "api", self.terms, dispatched=self._count)
        door = Resource(world, decider, self.terms)
        await door.start()
        self._decider = decider
        self.clients(world, {"api": door}, grace_ns=GRACE_NS).start()
        world.spawn(self._change_policy(world, door), "operator")
        world.spawn(look_often(world, door, self.tenants, self.sim.chance.stream("looks")), "looks")

    def _count(self, tenant: str, period: int, tokens: int) -> None:
        if period:
            key = (tenant, period)
            self.charged[key] = self.charged.get(key, 0) + tokens

    async def _change_policy(self, world: World, door: Resource) -> None:
        """Tenants' weights change now and then; lots that are out come back for it."""
        while True:
            await world.clock.sleep(world.random.randrange(SECOND_NS // 2, 3 * SECOND_NS))
            if self._calm:
                return
            weight = world.random.randrange(1, 4)
            tenants = {
                name: msgspec.structs.replace(tenant, weight=weight)
                for name, tenant in self.terms.tenants.items()
            }
            await door.reconfigure(msgspec.structs.replace(self.terms, tenants=tenants))

    # -- the clients

    async def _boot_client(self, world: World) -> None:
        # A client's name is new in every life, as `bursar.connect` makes it.
        far = self.far(world, [DAEMON])
        while True:
            try:
                await far.open(SECOND_NS)
                break
            except NetworkError:
                await world.clock.sleep(50 * MILLISECOND_NS)
        door = far.resources["api"]
        self._doors[world.name] = door
        for tenant in self.tenants:
            for number in range(CALLERS):
                world.spawn(self._call(world, door, tenant), f"{tenant}.{number}")
        looks = self.sim.chance.stream(f"looks/{world.name}")
        world.spawn(look_often(world, door, self.tenants, looks), "looks")

    async def _call(self, world: World, door: Resource, tenant: str) -> None:
        """Busy for a while, idle for a while; waiting, not waiting, giving back, giving up."""
        while True:
            idle = world.random.random() < 0.05 and not self._calm
            await world.clock.sleep(SECOND_NS if idle else world.random.randrange(0, 40 * MILLISECOND_NS))
            amount = world.random.randrange(1, COST_MAX + 1) if world.random.random() < 0.2 else 1
            if world.random.random() < IMPATIENT:
                asking = world.spawn(self._ask(world, door, tenant, amount), f"{tenant}.impatient")
                await world.clock.sleep(world.random.randrange(0, 40 * MILLISECOND_NS))
                asking.cancel()
                continue
            began, calm = world.clock.now(), self._calm
            grant = await self._ask(world, door, tenant, amount)
            took_ns = world.clock.now() - began
            if took_ns > 460 * MILLISECOND_NS and calm:
                self.late = f"a request that waits at most 0.2 s was answered after {took_ns / 1e9:.3f} s"
            if grant is not None:
                await self._use(world, grant)

    async def _ask(self, world: World, door: Resource, tenant: str, amount: int) -> Grant | None:
        try:
            if world.random.random() < 0.3:
                return door.try_acquire(tenant, amount)
            return await door.acquire(tenant, amount, wait=world.random.choice((0.0, 0.2)))
        except (Refused, Unknown):
            return None
        except UsageError as error:
            self.late = f"a plain request is a mistake: {error}"
            return None

    async def _use(self, world: World, grant: Grant) -> None:
        if world.random.random() < 0.2:
            grant.settle(world.random.randrange(0, grant.amount))
        used = grant.amount if grant.used is None else grant.used
        if grant.period and grant.fallback is None:
            # Rule 4: by the holder's own clock a lot is over before the next period can begin.
            if grant._lot is not None and used and grant.period < self._opened:
                self.late = f"{grant.tenant} was told of period {grant.period} when {self._opened} had begun"
            key = (grant.tenant, grant.period)
            self.told[key] = self.told.get(key, 0) + used
        if self._calm and grant.fallback in (None, "shadow"):
            self._granted_calm += used
        await world.clock.sleep(world.random.randrange(0, 5 * MILLISECOND_NS))
        if world.random.random() < 0.9:
            await grant.release()

    # -- what must hold

    def crashed(self, name: str) -> None:
        if name == DAEMON:
            self._decider = None
        self._doors.pop(name, None)

    def check(self) -> None:
        require(self.late is None, str(self.late))
        for tenant in self.tenants:
            key = (tenant, self._opened)
            self._check_told(key, self.told.get(key, 0))
        self._check_ahead()

    def _check_told(self, key: tuple[str, int], told: int) -> None:
        tenant, period = key
        charged = self.charged.get(key, 0)
        require(told <= charged, f"{tenant} was told of {told} tokens of period {period}, {charged} charged")
        limit = LIMITS.get(tenant, GUEST_LIMIT) * self.terms.period_ns // SECOND_NS
        require(charged <= limit, f"{tenant} was charged {charged} in period {period}, its limit is {limit}")

    def _check_ahead(self) -> None:
        """Rule 2: what the daemon counts as out ahead is bounded at the server."""
        if self._decider is not None:
            if self._decider.book.leading:
                self._opened = max(self._opened, self._decider.book.state.period)
            if self.terms.servers["here"].capacity is None:
                return  # of an estimate that moves
            out, most = self._decider.ahead.out, Rate.of(CAPACITY).per(PLACE_NS)
            require(out <= most, f"{out} tokens are out ahead of use, at most {most} may be")

    def healed(self) -> None:
        self._calm = True

    def audit(self) -> None:
        for key, told in sorted(self.told.items()):
            self._check_told(key, told)
        seconds = self.settle_ns // SECOND_NS - 2
        require(
            self._granted_calm >= seconds * 50, f"only {self._granted_calm} were granted in {seconds} calm s"
        )


SCENARIO = DoorScenario
