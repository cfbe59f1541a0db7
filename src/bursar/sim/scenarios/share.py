"""A share resource through crashes, pauses and tenants that come, go and change their minds."""

from __future__ import annotations

from collections.abc import Mapping

from bursar.errors import Refused, UsageError
from bursar.policy import SharePolicy, ShareTenant
from bursar.shares.book import TargetBook
from bursar.shares.gate import SLACK_NS
from bursar.shares.resource import ShareResource
from bursar.sim.scenario import Boot, Scenario, require
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, World

CAPACITY = 205
INTERVAL_NS = 100 * MILLISECOND_NS
TENANTS = {
    "small": ShareTenant(weight=2),
    "even": ShareTenant(weight=2, borrow=60),
    "large": ShareTenant(weight=5, lend=200),
    "guest": ShareTenant(weight=2),
}
COST_MAX = 8
STREAMS = 6
MOOD_NS = 700 * MILLISECOND_NS
PAUSE_NS = 20 * MILLISECOND_NS
FAIR = 0.25


def make_policy(tenants: Mapping[str, ShareTenant]) -> SharePolicy:
    return SharePolicy(
        name="disk",
        tenants=tenants,
        capacity=Rate.of(CAPACITY),
        interval_ns=INTERVAL_NS,
        half_life_ns=60 * SECOND_NS,
    )


class CountingResource(ShareResource):
    """Tells the scenario of every grant, at the moment at which it is made."""

    passed: list[int]

    def _count(self, tenant: str, amount: int, granted: bool) -> None:
        super()._count(tenant, amount, granted)
        if granted:
            self.passed.append(amount)


class ShareScenario(Scenario):
    """The truth: what was let through, and what every handout said."""

    duration_ns = 4 * SECOND_NS
    settle_ns = 8 * SECOND_NS
    drift_ppm = 1_000
    resource_class: type[CountingResource] = CountingResource

    def __init__(self) -> None:
        self._resource: CountingResource | None = None
        self._seen = 0
        self._level = 0.0
        self._level_at = 0
        self._served: dict[str, int] = {}
        self._calm = False
        self._fair_from: int | None = None
        self._guests = True

    def nodes(self) -> Mapping[str, Boot]:
        return {"target": self._boot}

    async def _boot(self, world: World) -> None:
        resource = self.resource_class(world, "disk", make_policy(TENANTS))
        resource.passed = []
        await resource.start()
        self._resource, self._seen, self._guests = resource, 0, True
        # A new life's gate knows nothing of what the last one let through.
        self._level = 0.0
        for tenant in TENANTS:
            world.spawn(self._live(world, resource, tenant), f"tenant.{tenant}")
        world.spawn(self._change_tenants(world, resource), "policy")

    async def _live(self, world: World, resource: ShareResource, tenant: str) -> None:
        """Idle, a little busy, or backlogged, for a while each; backlogged once all is healed."""
        while True:
            streams = STREAMS if self._calm else world.random.choice([0, 1, STREAMS])
            mood_ns = world.random.randrange(MOOD_NS // 10, MOOD_NS)
            until = world.clock.now() + mood_ns
            for number in range(streams):
                world.spawn(self._ask(world, resource, tenant, until), f"ask.{tenant}.{number}")
            await world.clock.sleep(mood_ns)

    async def _ask(self, world: World, resource: ShareResource, tenant: str, until: int) -> None:
        while world.clock.now() < until:
            amount = world.random.randrange(1, COST_MAX + 1)
            try:
                if world.random.random() < 0.1:
                    resource.try_acquire(tenant, amount)
                    await world.clock.sleep(PAUSE_NS)
                else:
                    await resource.acquire(tenant, amount, wait=world.random.choice([0.02, 5.0]))
                    self._served[tenant] = self._served.get(tenant, 0) + amount
            except Refused:
                await world.clock.sleep(PAUSE_NS)
            except UsageError:
                return  # the guest is not in the policy just now

    async def _change_tenants(self, world: World, resource: ShareResource) -> None:
        """The guest leaves the policy, with whatever it owes or is owed, and returns."""
        while True:
            await world.clock.sleep(world.random.randrange(0, 2 * SECOND_NS))
            self._guests = self._calm or not self._guests
            named = [name for name in TENANTS if self._guests or name != "guest"]
            await resource.reconfigure(make_policy({name: TENANTS[name] for name in named}))

    def crashed(self, name: str) -> None:
        self._resource = None

    def check(self) -> None:
        resource = self._resource
        if resource is None:
            return
        if self._fair_from is not None and self.sim.now_ns >= self._fair_from:
            # Debts are paid by now: from here on each gets its part and no more.
            self._fair_from, self._served = None, {}
        self._check_pace(resource)
        book = resource.book
        if book.number == self._seen:
            return
        self._seen = book.number
        self._check_records(book)
        self._check_handout(book)

    def _check_pace(self, resource: CountingResource) -> None:
        """What was let through fits the capacity: a leaky bucket of the slack and one request."""
        if not resource.passed:
            return
        now = self.sim.node("target").clock.read()
        drained = (now - self._level_at) * CAPACITY / SECOND_NS
        self._level = max(0.0, self._level - max(0.0, drained)) + sum(resource.passed)
        self._level_at = now
        resource.passed.clear()
        bound = CAPACITY * SLACK_NS / SECOND_NS + 2 * COST_MAX
        require(self._level <= bound, f"{self._level:.1f} tokens went at once, at most {bound:.1f} may")

    def _check_records(self, book: TargetBook) -> None:
        records = book.records()
        require(sum(records.values()) == 0, f"the records sum to {sum(records.values())}: {records}")
        for tenant, terms in TENANTS.items():
            record = records.get(tenant, 0)
            # Caps bind new loans; settling a leaver only ever brings records nearer to zero.
            require(terms.borrow is None or record >= -terms.borrow, f"{tenant} owes {-record}")
            require(terms.lend is None or record <= terms.lend, f"{tenant} is owed {record}")

    def _check_handout(self, book: TargetBook) -> None:
        handout = book.handout
        given = sum(line.final for line in handout.lines.values())
        require(given == handout.tokens, f"{given} tokens were handed out of {handout.tokens}")
        if handout.lines:
            whole = CAPACITY * INTERVAL_NS / SECOND_NS
            require(abs(handout.tokens - whole) < 1, f"an interval has {whole} tokens, not {handout.tokens}")
        for tenant, line in handout.lines.items():
            due = min(line.demand, (line.initial + 1) // 2)
            require(line.final >= due, f"{tenant} wants {line.demand}, is due {due} and gets {line.final}")

    def healed(self) -> None:
        self._calm = True
        self._fair_from = self.sim.now_ns + self.settle_ns // 2
        self.sim.wake_at(self._fair_from)

    def audit(self) -> None:
        """With everyone backlogged all debts are paid, and each gets its weight's part."""
        resource = self._resource
        assert resource is not None, "every node is up when a run is healed"
        debts = {name: record for name, record in resource.book.records().items() if abs(record) > COST_MAX}
        require(not debts, f"not paid back after {self.settle_ns // SECOND_NS} s: {debts}")
        weights = sum(terms.weight for terms in TENANTS.values())
        total = sum(self._served.values())
        could = CAPACITY * self.settle_ns // 2 // SECOND_NS
        require(total >= 0.8 * could, f"only {total} of {could} tokens were used")
        for tenant, terms in TENANTS.items():
            part = self._served.get(tenant, 0) / total
            due = terms.weight / weights
            require(abs(part - due) <= FAIR * due, f"{tenant} got {part:.3f} of all, its part is {due:.3f}")


SCENARIO = ShareScenario
