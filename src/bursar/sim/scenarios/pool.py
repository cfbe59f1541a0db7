"""A pool under every fault: clients and monitors that crash, stand still and run on bad clocks.

The shared words outlive them all. The truth is how many tokens were spent in the name of each
period; whatever happens, it never exceeds the capacity that the period was opened with. Two clients
are books that stand still between any two operations, one takes a token for every I/O; the last is a
program at the front door, with lots as they come, of which no more is reported as used than its
callers used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from bursar.book import Effects
from bursar.errors import Refused, Unknown
from bursar.policy import PoolPolicy, PoolTenant
from bursar.pools.capacity import FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import TICK_NS, Add, Operation, Read, Swap, Write, perform, unpack_report
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.pools.resource import PoolDecider
from bursar.resource import PLACE_NS, Granted, Ticket
from bursar.resource.door import Resource
from bursar.resource.grants import Acquisition, Grant
from bursar.sim.faults import Faults
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.search import Budget, Move, SmallWorld, State
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS, Words, World

PERIOD_NS = 200 * MILLISECOND_NS
CAPACITY = 400
BATCH = 10
RESERVATIONS = {"a": 160, "b": 80, "c": 0}
PAUSE_MAX_NS = 6 * MILLISECOND_NS
HESITATES = 0.2
CHANGES = 0.05
"""How often, before a monitor's round, somebody's reservation changes."""

LAZY = 0.3
"""How often a client has nothing to do for a while."""


COST_MAX = 8
IMPATIENT = 0.05
WASTEFUL = 0.1
"""How often a caller is cancelled, and how often it used less than it asked for."""

GUESTS = ("guest/1", "guest/2")
GUEST_LIMIT = 25
"""Tokens a period of each tenant that a template lets in."""

AHEAD_MAX = CAPACITY * PLACE_NS // PERIOD_NS


def make_policy(*, pacing: bool = False, batch: int = BATCH) -> PoolPolicy:
    return PoolPolicy(
        name="pool",
        templates={"guest/*": PoolTenant(limit=Rate.of(GUEST_LIMIT * SECOND_NS // PERIOD_NS))},
        pacing=pacing,
        tenants={
            name: PoolTenant(reservation=Rate.of(tokens * SECOND_NS // PERIOD_NS))
            for name, tokens in RESERVATIONS.items()
        },
        capacity=Rate.of(CAPACITY * SECOND_NS // PERIOD_NS),
        period_ns=PERIOD_NS,
        batch=batch,
    )


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
        grant = super().spend(tenant, amount)
        if grant is not None and grant._lot is not None:
            self.decider.count(tenant, grant._lot.granted, amount)
        return grant


class PoolScenario(Scenario):
    """Four clients, two monitors and a third at the program; `spent` is the truth, by period."""

    duration_ns = 1_500 * MILLISECOND_NS
    settle_ns = 700 * MILLISECOND_NS
    engine_book: type[EngineBook] = EngineBook
    monitor_book: type[MonitorBook] = MonitorBook
    decider_class: type[CountingDecider] = CountingDecider

    def __init__(self) -> None:
        self.spent: dict[int, int] = {}
        self._program: CountingDecider | None = None
        self._books: dict[str, MonitorBook] = {}
        self._looked = 0
        self._total = 0
        self._total_when_healed = 0
        self._lives = 0
        self._guests: dict[tuple[str, int, int], int] = {}

    def faults(self) -> Faults:
        # There is no network, store or disk in this protocol: crashes, pauses and clocks remain.
        return Faults(crashes=4.0, pauses=4.0, drift=True, outage_ns=150 * MILLISECOND_NS)

    def nodes(self) -> Mapping[str, Boot]:
        monitors = dict.fromkeys(("monitor", "standby"), self._boot_monitor)
        clients = {"a": self._boot_client, "b": self._boot_client, "c": self._boot_engine}
        return {**monitors, **clients, "program": self._boot_program}

    async def _boot_monitor(self, world: World) -> None:
        book = self.monitor_book("pool", FixedCapacity(CAPACITY), period_ns=PERIOD_NS)
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
        book = self.engine_book("pool", world.name, period_ns=PERIOD_NS, batch=BATCH)
        while True:
            await self._pause(world)
            wanted = world.random.randrange(0, 4 * BATCH)
            await step_through(world, Stepped(book), wanted)
            self._spend(book, book.period, min(wanted, book.usable(world.clock.now())), world.clock.now())

    async def _pause(self, world: World) -> None:
        lazy = world.random.random() < LAZY
        await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS) * (10 if lazy else 1))

    async def _boot_engine(self, world: World) -> None:
        """The engine as code uses it that takes a token for every I/O: nothing in its own process can
        interrupt its rounds."""
        book = self.engine_book("pool", world.name, period_ns=PERIOD_NS, batch=BATCH)
        engine = Engine(world.clock, world.words, book)
        ticked_at = 0
        while True:
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
            if world.clock.now() - ticked_at >= TICK_NS:
                ticked_at = world.clock.now()
                engine.tick()
            for _ in range(world.random.randrange(1, 4 * BATCH)):
                if not engine.take():
                    break
                self._note(book.period, 1)

    async def _boot_program(self, world: World) -> None:
        """The pool as programs use it, at the front door; each has an engine of every tenant."""
        parts = {"engine_book_class": self.engine_book, "monitor_book_class": self.monitor_book}
        decider = type("Planted", (self.decider_class,), parts)(world, "pool", make_policy())
        decider.used = {}
        resource = CountingResource(world, decider, make_policy())
        await resource.start()
        self._program = decider
        self._books[world.name] = decider._book
        self._lives += 1
        for number in range(3):
            for tenant in (*RESERVATIONS, *GUESTS):
                world.spawn(self._call(world, resource, tenant), f"{tenant}.{number}")
        world.spawn(self._change_policy(world, resource), "policy")

    async def _change_policy(self, world: World, resource: Resource) -> None:
        """Now and then; and the program stops to lead, if it does, without ending."""
        while True:
            await world.clock.sleep(world.random.randrange(0, 4 * PERIOD_NS))
            pacing, batch = world.random.random() < 0.3, world.random.choice([1, BATCH, 5 * BATCH])
            await resource.reconfigure(make_policy(pacing=pacing, batch=batch))
            if world.random.random() < 0.3 and self._program is not None:
                operation = self._program._book.resign()
                if operation is not None:
                    perform(world.words, operation)

    async def _call(self, world: World, resource: Resource, tenant: str) -> None:
        """A caller that acquires, and now and then changes its mind or uses less than it acquired."""
        while True:
            await self._pause(world)
            amount = world.random.randrange(1, COST_MAX)
            acquiring = resource.acquire(tenant, amount, wait=world.random.choice([0.0, 0.01, 0.5]))
            if world.random.random() < IMPATIENT:
                task = world.spawn(self._hold(acquiring), f"impatient.{tenant}")
                await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
                task.cancel()
                continue
            try:
                async with acquiring as grant:
                    self._note(grant.period, amount, tenant)
                    if world.random.random() < WASTEFUL:
                        await self._pause(world)
                        used = world.random.randrange(0, amount)
                        grant.settle(used)
                        self._note(grant.period, used - amount, tenant)
            except (Refused, Unknown):
                continue

    async def _hold(self, acquiring: Acquisition) -> None:
        """Acquire, and be cancelled at some moment of it."""
        try:
            grant = await acquiring
        except (Refused, Unknown):
            return
        self._note(grant.period, grant.amount, grant.tenant)

    def _spend(self, book: EngineBook, period: int, tokens: int, now: int) -> None:
        if book.take(now, tokens):
            self._note(period, tokens)

    def _note(self, period: int, tokens: int, tenant: str = "") -> None:
        if period == 0:
            return  # without a monitor, by what the policy says: charged to no period
        if tenant in GUESTS:
            key = tenant, self._lives, period
            used = self._guests[key] = self._guests.get(key, 0) + tokens
            require(
                used <= GUEST_LIMIT, f"{tenant} got {used} in period {period}, its limit is {GUEST_LIMIT}"
            )
        self.spent[period] = self.spent.get(period, 0) + tokens
        self._total += tokens

    def crashed(self, name: str) -> None:
        if name == "program":
            self._program = None

    def check(self) -> None:
        self._check_lots()
        if self._total == self._looked:
            return
        self._looked = self._total
        period = max(self.spent)
        for each in (period, period - 1):
            spent = self.spent.get(each, 0)
            require(spent <= CAPACITY, f"{spent} tokens were spent in period {each}, of {CAPACITY}")
        for book in self._books.values():
            accounts = book.accounts
            require(accounts.issued() <= accounts.capacity, f"{accounts.issued()} were issued of {CAPACITY}")

    def _check_lots(self) -> None:
        decider = self._program
        if decider is None:
            return
        ahead = decider.ahead.out
        require(ahead <= AHEAD_MAX, f"{ahead} tokens are out ahead of use, at most {AHEAD_MAX} may be")
        for tenant in RESERVATIONS:
            book = decider._engines.open(tenant).engine.book
            report = book._report()
            assert isinstance(report, Write), "reports are written"
            said = unpack_report(report.value).spent
            used = decider.used.get((tenant, book.opening), 0)
            require(said <= used, f"{tenant} would report {said} as used, and its callers used {used}")

    def healed(self) -> None:
        self._total_when_healed = self._total

    def audit(self) -> None:
        for period, spent in self.spent.items():
            require(spent <= CAPACITY, f"{spent} tokens were spent in period {period}, of {CAPACITY}")
        require(self._total > self._total_when_healed, "nothing was spent since all faults were healed")


async def step_through(world: World, stepped: Stepped, wanted: int) -> None:
    """One round, in which other nodes act, and this one may stand still or die, between any two
    operations."""
    stepped.begin(world.clock.now(), wanted)
    while stepped.doing is not None:
        if world.random.random() < HESITATES:
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
        stepped.perform(world.clock.now(), world.words)


# -- every order of operations of a small world


class Ground(NamedTuple):
    """What is true: the shared words, and what was spent in each period, both in order."""

    words: tuple[tuple[str, int], ...] = ()
    spent: tuple[tuple[int, int], ...] = ()


def apply(words: dict[str, int], operation: Operation) -> int:
    """One operation on words that are a plain dict; what the word was."""
    before = words.get(operation.word, 0)
    match operation:
        case Write(word, value):
            words[word] = value
            return 0
        case Add(word, amount):
            words[word] = before + amount
        case Swap(word, expected, value) if before == expected:
            words[word] = value
        case Read() | Swap():
            return before
    return before


class Stepped:
    """A book whose every operation on a word is a step of its own, so that all others may come in
    between."""

    def __init__(self, book: Any) -> None:
        self.book = book
        self.doing: Operation | None = None

    def step(self, now_ns: int, words: dict[str, int]) -> None:
        assert self.doing is not None, "there is an operation to do"
        self._receive(now_ns, apply(words, self.doing))

    def perform(self, now_ns: int, words: Words) -> None:
        assert self.doing is not None, "there is an operation to do"
        self._receive(now_ns, perform(words, self.doing))

    def _receive(self, now_ns: int, value: int) -> None:
        if isinstance(self.book, MonitorBook):
            self.book.receive(now_ns, self.doing, value)  # type: ignore[arg-type]
        else:
            self.book.receive(now_ns, value)
        self._plan(now_ns)

    def begin(self, now_ns: int, wanted: int) -> None:
        if isinstance(self.book, MonitorBook):
            self.book.begin(now_ns)
        else:
            self.book.begin(now_ns, wanted)
        self._plan(now_ns)

    def _plan(self, now_ns: int) -> None:
        if isinstance(self.book, MonitorBook):
            self.doing = self.book.operation(now_ns)
        else:
            self.doing = self.book.operation()

    def is_quiet(self) -> bool:
        """Whether the next operation is on a word that no other book's choice depends on here:
        nothing that may come before it is lost by doing it at once."""
        return self.doing is not None and ("/report/" in self.doing.word or "/asked" in self.doing.word)

    def spend(self, now_ns: int) -> int:
        """Spend everything there is; how much that was."""
        book: EngineBook = self.book
        usable = book.usable(now_ns)
        book.take(now_ns, usable)
        return usable

    # What a book of messages has, and this one has not.

    def receive(self, now: int, sender: str, message: object) -> Effects:
        raise AssertionError("nobody sends messages here")

    def synced(self, now: int, records: int) -> Effects:
        return []

    def tick(self, now: int) -> Effects:
        return []

    def wake_at(self) -> int | None:
        return None

    def replay(self, records: Iterable[bytes]) -> None:
        """It remembers nothing across its lives but what the words say."""


class SmallPool(SmallWorld):
    """Two clients that have spent their reservations and race for the pool, and the monitor that
    fills it: in a period that is open already, and into the next. A client spends what it gets at
    once. One of them may crash."""

    capacity = 40
    reservations: Mapping[str, int] = {"a": 18, "b": 18}
    batch = 2
    period_ns = 100 * MILLISECOND_NS
    horizon_ns = 100 * MILLISECOND_NS
    budget = Budget(crashes=1, duplicates=0, moves=12)
    stable = frozenset({"monitor"})
    engine_book: type[EngineBook] = EngineBook
    monitor_book: type[MonitorBook] = MonitorBook

    def __init__(self) -> None:
        words: dict[str, int] = {}
        self._monitor = Stepped(self._make_monitor())
        self._run(self._monitor, words)
        self._clients = {name: Stepped(self._make_engine(name)) for name in self.reservations}
        for client in self._clients.values():
            self._run(client, words)
            client.spend(0)
            self._run(client, words)
        self.ground = Ground(tuple(sorted(words.items())), ((1, sum(self.reservations.values())),))

    def _make_monitor(self) -> MonitorBook:
        book = self.monitor_book("pool", FixedCapacity(self.capacity), period_ns=self.period_ns)
        for tenant, reservation in self.reservations.items():
            book.join(tenant, reservation)
        return book

    def _make_engine(self, name: str) -> EngineBook:
        return self.engine_book("pool", name, period_ns=self.period_ns, batch=self.batch, adaptive=False)

    def _run(self, stepped: Stepped, words: dict[str, int]) -> None:
        stepped.begin(0, 0)
        while stepped.doing is not None:
            stepped.step(0, words)

    def nodes(self) -> Mapping[str, Callable[[int], Any]]:
        def make_client(name: str) -> Callable[[int], Stepped]:
            return lambda life: self._clients[name] if life == 1 else Stepped(self._make_engine(name))

        return {"monitor": lambda life: self._monitor, **{name: make_client(name) for name in self._clients}}

    def moves(self, name: str, book: Stepped, now_ns: int) -> Iterable[Move]:
        if book.doing is not None:
            yield Move(" ".join(map(str, book.doing)), _step)
        else:
            yield Move("looks", _look)

    def moments(self, state: State) -> Iterable[int]:
        return (self.period_ns,)

    def check(self, state: State) -> None:
        for period, spent in state.ground.spent:
            require(spent <= self.capacity, f"{spent} spent in period {period}, of {self.capacity}")
        book: MonitorBook = state.nodes[0].book.book  # type: ignore[attr-defined]
        require(book.accounts.issued() <= book.accounts.capacity, "more was issued than there is")


def _look(book: Stepped, now_ns: int, ground: Ground) -> tuple[Effects, Ground]:
    """Begin a round, and do its first operation: beginning touches no word."""
    book.begin(now_ns, 1)
    return _step(book, now_ns, ground)


def _step(book: Stepped, now_ns: int, ground: Ground) -> tuple[Effects, Ground]:
    words = dict(ground.words)
    book.step(now_ns, words)
    while book.doing is not None and book.is_quiet():
        book.step(now_ns, words)
    spent = dict(ground.spent)
    if book.doing is None and isinstance(book.book, EngineBook):
        spent[book.book.period] = spent.get(book.book.period, 0) + book.spend(now_ns)
    return [], Ground(tuple(sorted(words.items())), tuple(sorted(spent.items())))


SCENARIO = PoolScenario
SMALL_WORLD = SmallPool
