"""A pool under every fault: clients and monitors that crash, stand still and run on bad clocks.

The shared words outlive them all. The truth is how many tokens were spent in the name of each
period; whatever happens, it never exceeds the capacity that the period was opened with. Two clients
are books that stand still between any two operations, one takes a token for every I/O; the last is a
program at the front door, with lots as they come, of which no more is reported as used than its
callers used.
"""

from __future__ import annotations

from collections.abc import Mapping

from bursar.errors import Refused, Unknown
from bursar.policy import PoolPolicy
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import TICK_NS, perform, unpack_report
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.pools.resource import UNPROFILED_TOKENS, PoolDecider, estimate_capacity
from bursar.resource import PLACE_NS, Granted, Ticket
from bursar.resource.door import Resource
from bursar.resource.grants import Acquisition, Grant
from bursar.sim.faults import Faults
from bursar.sim.operators import fetch_lot, leave, look_often
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.scenarios.pool.policies import CAPACITY, GUESTS, RESERVATIONS, PoolPolicies
from bursar.sim.scenarios.pool.small import Stepped
from bursar.world import MILLISECOND_NS, SECOND_NS, World, Write

BATCH = 10
TWIN, TWINS, TWIN_LIMIT = "twin", ("twin/1", "twin/2"), 30
PAUSE_MAX_NS = 6 * MILLISECOND_NS
HESITATES = 0.2
CHANGES = 0.05
"""How often, before a monitor's round, somebody's reservation changes."""

LAZY = 0.3
"""How often a client has nothing to do for a while."""


COST_MAX = 8
IMPATIENT = 0.05
HASTY = 0.1
WASTEFUL = 0.1
"""How often a caller is cancelled, takes only what is there at once, uses less than it asked for."""

LEAVE_NS = 6 * SECOND_NS
"""A program is stopped and started again once in so long."""


class CountingDecider(PoolDecider):
    """Knows what callers used, by tenant and the period as its engine tells it from others."""

    used: dict[tuple[str, int], int]

    def count(self, tenant: str, granted: Granted, tokens: int) -> None:
        if granted.data is not None:
            key = tenant, granted.data.opening
            self.used[key] = self.used.get(key, 0) + tokens

    def _take(self, ticket: Ticket, ahead: int) -> Granted | None:
        granted = super()._take(ticket, ahead)
        if granted is not None:
            self.count(ticket.tenant, granted, granted.amount)
        return granted

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        super().take_back(tenant, granted, unused)
        self.count(tenant, granted, -unused)


class CountingResource(Resource):
    """The front door; what callers take from lots is used as well."""

    decider: CountingDecider

    def spend(self, tenant: str, amount: int) -> Grant | None:
        return self._count_lot(super().spend(tenant, amount))

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        return self._count_lot(super().try_acquire(tenant, amount))

    def _count_lot(self, grant: Grant | None) -> Grant | None:
        if grant is not None and grant._lot is not None:
            self.decider.count(grant.tenant, grant._lot.granted, grant.amount)
        return grant


class PoolScenario(Scenario):
    """Four clients, two monitors and a third at the program; `spent` is the truth, by period."""

    duration_ns = 1_500 * MILLISECOND_NS
    settle_ns = 700 * MILLISECOND_NS
    engine_book: type[EngineBook] = EngineBook
    monitor_book: type[MonitorBook] = MonitorBook
    decider_class: type[CountingDecider] = CountingDecider
    policies: PoolPolicies

    def __init__(self) -> None:
        self.spent: dict[int, int] = {}
        self._programs: dict[str, CountingDecider] = {}
        self._books: dict[str, MonitorBook] = {}
        self._looked = 0
        self._total = 0
        self._total_when_healed = 0
        self._lives: dict[str, int] = {}
        self._limited: dict[tuple[str, str, int, int], int] = {}
        self._reported: dict[tuple[CountingDecider, str], tuple[int, ...]] = {}
        self._capacities: dict[int, int] = {}
        self._pause_max_ns = PAUSE_MAX_NS

    def faults(self) -> Faults:
        # There is no network, store or disk in this protocol: crashes, pauses and clocks remain.
        return Faults(crashes=4.0, pauses=4.0, drift=True, outage_ns=150 * MILLISECOND_NS)

    @property
    def policy(self) -> PoolPolicy:
        return self.policies.first

    def nodes(self) -> Mapping[str, Boot]:
        self.policies = PoolPolicies(self.sim.chance.stream("policy"))
        period_ns = self.policy.period_ns
        self.duration_ns, self.settle_ns = max(self.duration_ns, 3 * period_ns), period_ns * 7 // 2
        # About as many requests a period, however long it is.
        self._pause_max_ns = PAUSE_MAX_NS * period_ns // (200 * MILLISECOND_NS)
        monitors = dict.fromkeys(("monitor", "standby"), self._boot_monitor)
        clients = {"a": self._boot_client, "b": self._boot_client, "c": self._boot_engine}
        programs = ("program", "another") if self.policies.shared else ("program",)
        twins = dict.fromkeys(TWINS if self.policies.shared else (), self._boot_twin)
        return {**monitors, **clients, **twins, **dict.fromkeys(programs, self._boot_program)}

    async def _boot_monitor(self, world: World) -> None:
        estimate = estimate_capacity(self.policy)
        book = self.monitor_book("pool", estimate, period_ns=self.policy.period_ns)
        for tenant, reservation in RESERVATIONS.items():
            book.join(tenant, reservation)
        self._books[world.name] = book
        monitor = Monitor(world.clock, world.words, book)
        while True:
            if world.random.random() < CHANGES:
                self._change_reservation(world, book)
            await step_through(world, Stepped(book), 0)
            await world.clock.sleep(monitor.wait_ns())

    def _change_reservation(self, world: World, book: MonitorBook) -> None:
        """The policy changes while the pool runs, at one monitor sooner than at the other."""
        tenant = world.random.choice(sorted(RESERVATIONS))
        try:
            book.join(tenant, world.random.randrange(0, CAPACITY))
        except Refused:
            book.join(tenant, 0)

    async def _boot_client(self, world: World) -> None:
        book = self.engine_book("pool", world.name, period_ns=self.policy.period_ns, batch=BATCH)
        while True:
            await self._pause(world)
            wanted = world.random.randrange(0, 4 * BATCH)
            await step_through(world, Stepped(book), wanted)
            self._spend(world, book, min(wanted, book.usable(world.clock.now())))

    async def _boot_twin(self, world: World) -> None:
        """One of two processes that serve one tenant, which has a limit and reserves nothing; it stands
        still between any two operations."""
        book = self.engine_book(
            "pool",
            TWIN,
            period_ns=self.policy.period_ns,
            batch=BATCH,
            limit=TWIN_LIMIT,
            reserves=False,
            shares_limit=True,
        )
        while True:
            await self._pause(world)
            await step_through(world, Stepped(book), world.random.randrange(0, 2 * BATCH))
            if book.take(world.clock.now(), tokens := book.usable(world.clock.now())):
                self._note(world, book.period, tokens, TWIN)

    async def _pause(self, world: World) -> None:
        lazy = world.random.random() < LAZY
        await world.clock.sleep(world.random.randrange(0, self._pause_max_ns) * (10 if lazy else 1))

    async def _boot_engine(self, world: World) -> None:
        """The engine as code uses it that takes a token for every I/O: nothing in its own process can
        interrupt its rounds."""
        book = self.engine_book("pool", world.name, period_ns=self.policy.period_ns, batch=BATCH)
        engine = Engine(world.clock, world.words, book)
        ticked_at = 0
        while True:
            await world.clock.sleep(world.random.randrange(0, self._pause_max_ns))
            if world.clock.now() - ticked_at >= TICK_NS:
                ticked_at = world.clock.now()
                engine.tick()
            for _ in range(world.random.randrange(1, 4 * BATCH)):
                if not engine.take():
                    break
                self._note(world, book.period, 1)

    async def _boot_program(self, world: World) -> None:
        """The pool as programs use it, at the front door; each has an engine of every tenant."""
        parts = {"engine_book_class": self.engine_book, "monitor_book_class": self.monitor_book}
        decider = type("Planted", (self.decider_class,), parts)(world, "pool", self.policy)
        decider.used = {}
        resource = CountingResource(world, decider, self.policy)
        await resource.start()
        self._programs[world.name] = decider
        self._books[world.name] = decider._book
        self._lives[world.name] = self._lives.get(world.name, 0) + 1
        for number in range(3):
            for tenant in (*RESERVATIONS, *GUESTS):
                world.spawn(self._call(world, resource, tenant), f"{tenant}.{number}")
        world.spawn(self._change_policy(world, resource), "policy")
        world.spawn(self._leave(world, resource), "leaving")
        looks = self.sim.chance.stream("looks")
        world.spawn(look_often(world, resource, (*RESERVATIONS, *GUESTS), looks), "looks")

    async def _change_policy(self, world: World, resource: Resource) -> None:
        """Now and then; and the program stops to lead, if it does, without ending."""
        while True:
            await world.clock.sleep(world.random.randrange(0, 4 * self.policy.period_ns))
            await resource.reconfigure(self.policies.change())
            if world.random.random() < 0.3 and world.name in self._programs:
                operation = self._programs[world.name]._book.resign()
                if operation is not None:
                    perform(world.words, operation)

    async def _leave(self, world: World, resource: Resource) -> None:
        await world.clock.sleep(world.random.randrange(0, LEAVE_NS))
        if self.sim.now_ns < self.duration_ns:
            await leave(self.sim, world, resource)

    async def _call(self, world: World, resource: Resource, tenant: str) -> None:
        """A caller that acquires, and now and then changes its mind or uses less than it acquired."""
        while True:
            await self._pause(world)
            amount = world.random.randrange(1, COST_MAX)
            if world.random.random() < HASTY:
                await self._try(world, resource, tenant, amount)
                continue
            acquiring = resource.acquire(tenant, amount, wait=world.random.choice([0.0, 0.01, 0.5]))
            if world.random.random() < IMPATIENT:
                task = world.spawn(self._hold(world, acquiring), f"impatient.{tenant}")
                await world.clock.sleep(world.random.randrange(0, self._pause_max_ns))
                task.cancel()
                continue
            try:
                async with acquiring as grant:
                    self._note(world, grant.period, amount, tenant)
                    if world.random.random() < WASTEFUL:
                        await self._pause(world)
                        used = world.random.randrange(0, amount)
                        grant.settle(used)
                        self._note(world, grant.period, used - amount, tenant)
            except (Refused, Unknown):
                continue

    async def _try(self, world: World, resource: Resource, tenant: str, amount: int) -> None:
        """What there is, at once; if it is not enough, see that there is something next time."""
        grant = resource.try_acquire(tenant, amount)
        if grant is None:
            await fetch_lot(resource, tenant)
            return
        self._note(world, grant.period, amount, tenant)
        await grant.release()

    async def _hold(self, world: World, acquiring: Acquisition) -> None:
        """Acquire, and be cancelled at some moment of it."""
        try:
            grant = await acquiring
        except (Refused, Unknown):
            return
        self._note(world, grant.period, grant.amount, grant.tenant)

    def _spend(self, world: World, book: EngineBook, tokens: int) -> None:
        if book.take(world.clock.now(), tokens):
            self._note(world, book.period, tokens)

    def _note(self, world: World, period: int, tokens: int, tenant: str = "") -> None:
        if period == 0:
            return  # without a monitor, by what the policy says: charged to no period
        limit = TWIN_LIMIT if tenant == TWIN else self.policies.limits.get(tenant)
        if limit is not None:
            # Over all programs and all their lives where they share the words; else in each.
            where = ("", 0) if self.policies.shared else (world.name, self._lives[world.name])
            key = tenant, *where, period
            used = self._limited[key] = self._limited.get(key, 0) + tokens
            require(used <= limit, f"{tenant} got {used} in period {period}, its limit is {limit}")
        self.spent[period] = self.spent.get(period, 0) + tokens
        self._total += tokens

    def crashed(self, name: str) -> None:
        self._programs.pop(name, None)

    def check(self) -> None:
        self._note_capacities()
        self._check_lots()
        if self._total == self._looked:
            return
        self._looked = self._total
        period = max(self.spent)
        for each in (period, period - 1):
            self._check_spent(each, self.spent.get(each, 0))
        for book in self._books.values():
            accounts = book.accounts
            issued = accounts.issued()
            require(issued <= accounts.capacity, f"{issued} were issued of {accounts.capacity}")

    def _note_capacities(self) -> None:
        """What whoever opened a period opened it with: what the policy says, or an estimate."""
        for book in self._books.values():
            if book.leading:
                known = self._capacities.get(book.period, 0)
                self._capacities[book.period] = max(known, book.accounts.capacity)

    def _check_spent(self, period: int, spent: int) -> None:
        capacity = CAPACITY if self.policy.capacity is not None else self._capacities.get(period, 0)
        require(spent <= capacity, f"{spent} tokens were spent in period {period}, of {capacity}")

    def _check_lots(self) -> None:
        for decider in self._programs.values():
            self._check_lots_of(decider)

    def _check_lots_of(self, decider: CountingDecider) -> None:
        ahead, most = decider.ahead.out, self._find_ahead_max()
        require(ahead <= most, f"{ahead} tokens are out ahead of use, at most {most} may be")
        for tenant in RESERVATIONS:
            book = decider._engines.open(tenant).engine.book
            used = decider.used.get((tenant, book.opening), 0)
            state = book.spent, book.lent, book.reserve, book.hand, used
            if self._reported.get((decider, tenant)) == state:
                continue  # most events change nothing that is reported
            self._reported[decider, tenant] = state
            report = book._report()
            assert isinstance(report, Write), "reports are written"
            said = unpack_report(report.value).spent
            require(said <= used, f"{tenant} would report {said} as used, and its callers used {used}")

    def _find_ahead_max(self) -> int:
        auto = self.policy.capacity is None
        capacity = max(self._capacities.values(), default=UNPROFILED_TOKENS) if auto else CAPACITY
        return max(capacity, UNPROFILED_TOKENS if auto else 0) * PLACE_NS // self.policy.period_ns

    def healed(self) -> None:
        self._total_when_healed = self._total

    def audit(self) -> None:
        for period, spent in self.spent.items():
            self._check_spent(period, spent)
        require(self._total > self._total_when_healed, "nothing was spent since all faults were healed")


async def step_through(world: World, stepped: Stepped, wanted: int) -> None:
    """One round, in which other nodes act, and this one may stand still or die, between any two
    operations."""
    stepped.begin(world.clock.now(), wanted)
    while stepped.doing is not None:
        if world.random.random() < HESITATES:
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
        stepped.perform(world.clock.now(), world.words)
