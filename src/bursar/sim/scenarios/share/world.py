"""A share through crashes, pauses and tenants that come, go and change their minds.

Callers acquire at the front door, with lots as they come. The truth is what they were told, and what
they asked for: no more goes through than the target can do, and no tenant counts as wanting more than
its callers did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bursar.errors import Refused, UsageError
from bursar.resource import PLACE_NS, Granted, Issue, Ticket
from bursar.resource.door import Resource
from bursar.resource.grants import Acquisition, Grant
from bursar.shares.book import TargetBook
from bursar.shares.gate import SLACK_NS
from bursar.shares.handout import Handout
from bursar.shares.resource import ShareDecider
from bursar.sim.faults import Faults
from bursar.sim.operators import fetch_lot, leave, look_often
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.scenarios.share.policies import CAPACITY, WEIGHTS, SharePolicies
from bursar.world import MILLISECOND_NS, SECOND_NS, World

COST_MAX = 8
STREAMS = 6
MOOD_NS = 700 * MILLISECOND_NS
PAUSE_NS = 5 * MILLISECOND_NS
TRICKLE_NS = 8 * MILLISECOND_NS
"""A tenant that is a little busy asks so often at most, and for little."""

IMPATIENT = 0.05
WASTEFUL = 0.1
"""How often a caller is cancelled, and how often it used less than it asked for."""

FAIR = 0.25
FAIR_NS = 4 * SECOND_NS
"""How near to its part everybody is in the end, over so long."""

LEAVE_NS = 12 * SECOND_NS
"""A target is stopped and started again once in so long."""

SHADOW_NS = 100 * MILLISECOND_NS
"""Where nobody is refused or made to wait, callers rest up to so long after each request."""

ANNOUNCE_NS = 900 * MILLISECOND_NS
BURST_NS = 400 * MILLISECOND_NS
BURST_MAX = 200
"""One or another tenant announces a burst now and then: of so much at most, so far ahead and so long."""

AHEAD_MAX = CAPACITY * PLACE_NS // SECOND_NS


class CountingDecider(ShareDecider):
    """Tells the scenario what went through to callers, at the moment at which it did."""

    passed: list[int]

    def _grant(self, ticket: Ticket, issue: Issue | None, now: int) -> Granted:
        self.passed.append(ticket.amount)
        return super()._grant(ticket, issue, now)

    def waiting_tokens(self) -> dict[str, int]:
        """By tenant."""
        return {tenant: usage.backlog for tenant, usage in self._gate.filter.usage.items()}

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        super().take_back(tenant, granted, unused)
        if granted.data.interval == self.book.number:
            self.passed.append(-unused)


class CountingResource(Resource):
    """The front door; what callers take from lots went through as well."""

    decider: CountingDecider

    def spend(self, tenant: str, amount: int) -> Grant | None:
        return self._count_lot(super().spend(tenant, amount))

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        return self._count_lot(super().try_acquire(tenant, amount))

    def _count_lot(self, grant: Grant | None) -> Grant | None:
        if grant is not None and grant._lot is not None:
            self.decider.passed.append(grant.amount)
        return grant


@dataclass(slots=True)
class Announced:
    """A burst as its tenant knows of it: what it was owed then, and whether it asked for anything since."""

    tokens: int
    record: int
    asked: bool = False


async def _hold(acquiring: Acquisition) -> None:
    """Acquire, and be cancelled at some moment of it."""
    try:
        await acquiring
    except Refused:
        return


class ShareScenario(Scenario):
    """The truth: what was let through, and what every handout said."""

    duration_ns = 4 * SECOND_NS
    settle_ns = 12 * SECOND_NS
    drift_ppm = 1_000
    decider_class: type[CountingDecider] = CountingDecider
    policies: SharePolicies

    def __init__(self) -> None:
        self._resource: CountingResource | None = None
        self._seen = 0
        self._level = 0.0
        self._level_at = 0
        self._served: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._announced: dict[str, Announced] = {}
        self._burst_most: dict[str, int] = {}
        self._calm = False
        self._fair_from: int | None = None
        self._guests = True

    def nodes(self) -> Mapping[str, Boot]:
        self.policies = SharePolicies(self.sim.chance.stream("policy"))
        return {"target": self._boot}

    def faults(self) -> Faults:
        """There is one node and no store: crashes, pauses, its disk and its clock remain."""
        every = Faults.everything()
        return Faults(
            crashes=every.crashes,
            pauses=every.pauses,
            disk_slow=every.disk_slow,
            disk_errors=every.disk_errors,
            drift=True,
        )

    async def _boot(self, world: World) -> None:
        policy = self.policies.first
        decider = self.decider_class(world, "disk", policy)
        decider.passed = []
        resource = CountingResource(world, decider, policy)
        await resource.start()
        self._resource, self._seen, self._guests = resource, 0, True
        # A new life's gate knows nothing of what the last one let through.
        self._level, self._asked, self._announced = 0.0, {}, {}
        for tenant in WEIGHTS:
            world.spawn(self._live(world, resource, tenant), f"tenant.{tenant}")
        looks = self.sim.chance.stream("looks")
        world.spawn(look_often(world, resource, list(WEIGHTS), looks), "looks")
        world.spawn(self._change_tenants(world, resource), "policy")
        world.spawn(self._leave(world, resource), "leaving")
        world.spawn(self._announce(world, resource), "bursts")

    async def _live(self, world: World, resource: Resource, tenant: str) -> None:
        """Idle, a little busy, or backlogged, for a while each; backlogged once all is healed."""
        while True:
            streams = STREAMS if self._calm else world.random.choice([0, 1, 1, STREAMS])
            trickle = streams == 1 and world.random.random() < 0.5
            mood_ns = world.random.randrange(MOOD_NS // 10, MOOD_NS)
            until = world.clock.now() + mood_ns
            for number in range(streams):
                asking = self._ask(world, resource, tenant, until, trickle)
                world.spawn(asking, f"ask.{tenant}.{number}")
            await world.clock.sleep(mood_ns)

    async def _announce(self, world: World, resource: CountingResource) -> None:
        """Bursts are announced by tenants that may be idle, busy, or never come to it."""
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, ANNOUNCE_NS))
            tenant, tokens = world.random.choice(list(WEIGHTS)), world.random.randrange(1, BURST_MAX)
            after, lasting = (world.random.randrange(1, BURST_NS) / SECOND_NS for _ in range(2))
            try:
                await resource.verb("announce", tenant=tenant, tokens=tokens, after=after, lasting=lasting)
            except UsageError:
                continue  # the guest has left
            self._burst_most[tenant] = max(tokens, self._burst_most.get(tenant, 0))
            record, asked = resource.decider.book.record(tenant), tenant in self._asked
            self._announced[tenant] = Announced(tokens, max(0, record), asked)

    def _note_asked(self, tenant: str, amount: int) -> None:
        self._asked[tenant] = self._asked.get(tenant, 0) + amount
        if tenant in self._announced:
            self._announced[tenant].asked = True

    async def _ask(self, world: World, resource: Resource, tenant: str, until: int, trickle: bool) -> None:
        while world.clock.now() < until:
            amount = world.random.randrange(1, 3 if trickle else COST_MAX + 1)
            self._note_asked(tenant, amount)
            if world.random.random() < 0.1:
                resource.try_acquire(tenant, amount)
                await world.clock.sleep(PAUSE_NS)
                self._note_asked(tenant, 1)
                await fetch_lot(resource, tenant)
            else:
                await self._acquire(world, resource, tenant, amount)
            if self.policies.shadow:
                await world.clock.sleep(world.random.randrange(0, SHADOW_NS))
            elif trickle:
                await world.clock.sleep(world.random.randrange(0, TRICKLE_NS))

    async def _acquire(self, world: World, resource: Resource, tenant: str, amount: int) -> None:
        wait = 5.0 if self._calm else world.random.choice([0.0, 0.02, 5.0])
        acquiring = resource.acquire(tenant, amount, wait=wait)
        if world.random.random() < IMPATIENT:
            task = world.spawn(_hold(acquiring), f"impatient.{tenant}")
            await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
            task.cancel()
            return
        try:
            async with acquiring as grant:
                self._served[tenant] = self._served.get(tenant, 0) + amount
                if world.random.random() < WASTEFUL:
                    grant.settle(world.random.randrange(0, amount))
        except Refused:
            await world.clock.sleep(PAUSE_NS)

    async def _change_tenants(self, world: World, resource: Resource) -> None:
        """The guest leaves the policy, with whatever it owes or is owed, and returns, or stays under a
        template; and intervals get longer and shorter."""
        while True:
            await world.clock.sleep(world.random.randrange(0, 2 * SECOND_NS))
            self._guests = self._calm or not self._guests
            open_to_all = world.random.random() < 0.5
            changed = self.policies.change(without_guest=not self._guests, open_to_all=open_to_all)
            await resource.reconfigure(self.policies.first if self._calm else changed)

    async def _leave(self, world: World, resource: Resource) -> None:
        await world.clock.sleep(world.random.randrange(0, LEAVE_NS))
        if not self._calm:
            await leave(self.sim, world, resource)

    def crashed(self, name: str) -> None:
        self._resource = None

    def check(self) -> None:
        resource = self._resource
        if resource is None:
            return
        if self._fair_from is not None and self.sim.now_ns >= self._fair_from:
            # Debts are paid by now: from here on each gets its part and no more.
            self._fair_from, self._served = None, {}
        decider = resource.decider
        self._check_pace(decider)
        ahead = decider.ahead.out
        require(ahead <= AHEAD_MAX, f"{ahead} tokens are out ahead of use, at most {AHEAD_MAX} may be")
        if decider.book.number == self._seen:
            return
        self._seen = decider.book.number
        self._check_records(decider.book)
        self._check_bursts(decider)
        self._check_handout(decider.book.handout, decider.book.interval_ns)
        self._check_demand(decider)

    def _check_pace(self, decider: CountingDecider) -> None:
        """What was let through fits the capacity: a leaky bucket of the slack, what may be out ahead
        and one request."""
        if not decider.passed:
            return
        now = self.sim.node("target").clock.read()
        drained = (now - self._level_at) * CAPACITY / SECOND_NS
        self._level = max(0.0, self._level - max(0.0, drained)) + sum(decider.passed)
        self._level_at = now
        decider.passed.clear()
        bound = CAPACITY * (SLACK_NS + PLACE_NS) / SECOND_NS + 2 * COST_MAX
        require(self._level <= bound, f"{self._level:.1f} tokens went at once, at most {bound:.1f} may")

    def _check_records(self, book: TargetBook) -> None:
        records = book.records()
        require(sum(records.values()) == 0, f"the records sum to {sum(records.values())}: {records}")
        for tenant, terms in self.policies.tenants.items():
            record = records.get(tenant, 0)
            # Caps bind new loans; settling a leaver only ever brings records nearer to zero.
            require(terms.borrow is None or record >= -terms.borrow, f"{tenant} owes {-record}")
            require(terms.lend is None or record <= terms.lend, f"{tenant} is owed {record}")

    def _check_handout(self, handout: Handout, interval_ns: int) -> None:
        given = sum(line.final for line in handout.lines.values())
        require(given == handout.tokens, f"{given} tokens were handed out of {handout.tokens}")
        if handout.lines:
            whole = CAPACITY * interval_ns / SECOND_NS
            require(abs(handout.tokens - whole) < 1, f"an interval has {whole} tokens, not {handout.tokens}")
        for tenant, line in handout.lines.items():
            due = min(line.demand, (line.initial + 1) // 2)
            require(line.final >= due, f"{tenant} wants {line.demand}, is due {due} and gets {line.final}")

    def _check_demand(self, decider: CountingDecider) -> None:
        """A tenant wants what its callers asked for since the last handout and what waited then;
        tokens taken ahead are no part of it."""
        for tenant, line in decider.book.handout.lines.items():
            asked = self._asked.get(tenant, 0)
            if decider.book.bursts.get(tenant) is not None:
                asked = max(asked, self._burst_most.get(tenant, 0))
            require(line.demand <= asked, f"{tenant} counts as wanting {line.demand}, and asked for {asked}")
        self._asked = dict(decider.waiting_tokens())

    def _check_bursts(self, decider: CountingDecider) -> None:
        """Of a tenant that asks for nothing no more is kept than it announced, and nothing once the time
        of its burst is over: announcing is no way to credit."""
        book, waiting = decider.book, decider.waiting_tokens()
        for tenant, announced in list(self._announced.items()):
            is_open = book.bursts.get(tenant) is not None
            if not announced.asked and not waiting.get(tenant):
                most = announced.record + (announced.tokens if is_open else 0)
                record = book.record(tenant)
                require(record <= most, f"{tenant} is owed {record} by a burst of which it used nothing")
            else:
                announced.asked = True
            if not is_open:
                del self._announced[tenant]

    def healed(self) -> None:
        self._calm = True
        # Debts are paid back first: whoever pays gets less than its part meanwhile.
        paying_ns = max(self.settle_ns - FAIR_NS, self._find_paying_ns())
        self._fair_from, self.settle_ns = self.sim.now_ns + paying_ns, paying_ns + FAIR_NS
        self.sim.wake_at(self._fair_from)

    def _find_paying_ns(self) -> int:
        """Who owes pays with half of its part; half as long again for what is lent while everybody
        becomes busy."""
        if self._resource is None:
            return 0
        records, tenants = self._resource.decider.book.records(), self.policies.tenants
        weights = sum(terms.weight for terms in tenants.values())
        parts = {name: CAPACITY * terms.weight / weights for name, terms in tenants.items()}
        owed = [-records.get(name, 0) / (part / 2) for name, part in parts.items()]
        return int(1.5 * max(0.0, *owed) * SECOND_NS)

    def audit(self) -> None:
        """With everyone backlogged all debts are paid, and each gets its weight's part."""
        resource = self._resource
        assert resource is not None, "every node is up when a run is healed"
        if self.policies.shadow:
            return  # nobody waits, so nobody is backlogged, and everybody is told to go
        records = resource.decider.book.records()
        debts = {name: record for name, record in records.items() if abs(record) > COST_MAX}
        require(not debts, f"not paid back after {self.settle_ns // SECOND_NS} s: {debts}")
        weights = sum(terms.weight for terms in self.policies.tenants.values())
        total = sum(self._served.values())
        could = CAPACITY * FAIR_NS // SECOND_NS
        require(total >= 0.8 * could, f"only {total} of {could} tokens were used")
        for tenant, terms in self.policies.tenants.items():
            part = self._served.get(tenant, 0) / total
            due = terms.weight / weights
            require(abs(part - due) <= FAIR * due, f"{tenant} got {part:.3f} of all, its part is {due:.3f}")
