"""Servers of a rate in virtual time, with the real books, couriers, elections and messages; only requests are
not asked for one by one. What each server's tenants send in a fiftieth of a second is added to its queues,
and goes as far as tokens and capacity do, those with priority first.

Where a server is decides how long a message takes, with zones or without: within a place hardly any time,
between places `FAR_NS`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bursar.policy.values import RatePolicy
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.resource import RateDecider
from bursar.resource.door import Resource
from bursar.sim.packets import Packet
from bursar.sim.scenario import Boot, Scenario
from bursar.world import MILLISECOND_NS, SECOND_NS, World

FAR_NS = 20 * MILLISECOND_NS
STEP_NS = 20 * MILLISECOND_NS
BEHIND_S = 0.05
"""How much unused time a server may make up for, as `bursar.rates.capacity` has it."""

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


class Demand:
    """Tokens a second, tenants x servers. At times some tenants turn to other servers."""

    def __init__(self, rates: Real, moving: float, seed: int) -> None:
        """`moving`: the part of all tenants that moves in a second."""
        self.rates = rates
        self._moving = moving
        self._rng = np.random.default_rng(seed)
        self._due = 0.0

    def pass_time(self, seconds: float) -> None:
        self._due += self._moving * len(self.rates) * seconds
        many = int(self._due)
        self._due -= many
        for tenant in self._rng.choice(len(self.rates), many, replace=False):
            self.rates[tenant] = self._rng.permutation(self.rates[tenant])


class ZonesWorld(Scenario):
    """One node a server; the truth is what was served, by period and tenant."""

    settle_ns = 0
    session_timeout_ns = 10 * SECOND_NS

    def __init__(
        self, policy: RatePolicy, places: Mapping[str, str], demand: Demand, periods: int, rate: float
    ) -> None:
        """`places`: where each server is; `rate`: what each can do, in tokens a second."""
        self.policy = policy
        self.places = places
        self.demand = demand
        self.rate = rate
        self.duration_ns = periods * policy.period_ns
        self.tenants = list(policy.tenants)
        self.served: dict[int, Whole] = {}
        self.served_at: Counter[tuple[str, int]] = Counter()
        self.messages: Counter[str] = Counter()
        self.size: Counter[str] = Counter()
        self.cut_place: str | None = None
        self._passed_ns = 0

    def nodes(self) -> Mapping[str, Boot]:
        return dict.fromkeys(self.places, self._boot)

    def watch(self) -> None:
        """Count messages between places and let them take their time; lose those of a place cut off."""
        fabric = self.sim.fabric
        transmit = fabric.transmit

        def slowly(packet: Packet) -> None:
            here, there = self.places.get(packet.sender), self.places.get(packet.to)
            if here == there or here is None or there is None:
                transmit(packet)
            elif self.cut_place not in (here, there):
                self.messages[packet.topic.split("/")[0]] += 1
                self.size[packet.topic.split("/")[0]] += len(packet.data)
                self.sim.loop.call_at_ns(self.sim.now_ns + FAR_NS, transmit, packet)

        fabric.transmit = slowly  # type: ignore[method-assign]

    async def _boot(self, world: World) -> None:
        decider = RateDecider(world, "cache", self.policy)
        await Resource(world, decider, self.policy).start()
        server = Server(self, world, decider, list(self.places).index(world.name))
        while True:
            await world.clock.sleep(STEP_NS)
            self._pass_time()
            server.step()

    def _pass_time(self) -> None:
        seconds = (self.sim.now_ns - self._passed_ns) / SECOND_NS
        self._passed_ns = self.sim.now_ns
        self.demand.pass_time(seconds)

    def note(self, place: str, period: int, tenants: Whole, tokens: Whole) -> None:
        counts = self.served.setdefault(period, np.zeros(len(self.tenants), np.int64))
        np.add.at(counts, tenants, tokens)
        self.served_at[place, period] += int(tokens.sum())


class Server:
    """The load of one server, and what it can do."""

    def __init__(self, owner: ZonesWorld, world: World, decider: RateDecider, column: int) -> None:
        self._owner, self._world, self._decider, self._column = owner, world, decider, column
        many = len(owner.tenants)
        self._numbers: Whole = np.full(many, -1, np.int64)
        """Of each tenant, in the server's book."""
        self._part: Real = np.random.default_rng(column).random(many)
        self._queue: Whole = np.zeros(many, np.int64)
        self._budget = 0.0
        self._turn = 0

    @property
    def _dispatcher(self) -> Dispatcher:
        return self._decider.servers[self._world.name]

    def step(self) -> None:
        self._arrive()
        self._serve()

    def _arrive(self) -> None:
        owner = self._owner
        self._part += owner.demand.rates[:, self._column] * (STEP_NS / SECOND_NS)
        arrived: Whole = self._part.astype(np.int64)
        self._part -= arrived
        self._queue += arrived
        for tenant in np.flatnonzero(self._queue).tolist():
            self._find(tenant)
        for tenant in np.flatnonzero(arrived).tolist():
            self._tell(tenant, int(arrived[tenant]))

    def _find(self, tenant: int) -> None:
        """Its number in the server's book; another, if it was forgotten meanwhile."""
        name = self._owner.tenants[tenant]
        number = self._dispatcher.book.index(name)
        if number is None:
            self._decider.find_servers(name)
            number = self._dispatcher._find(name)
        self._numbers[tenant] = number

    def _tell(self, tenant: int, tokens: int) -> None:
        """As a dispatcher does of a request that comes."""
        number, book = int(self._numbers[tenant]), self._dispatcher.book
        observed, tokens_here = book.observed, book.scheduler
        left = tokens_here.read_allowance(number) - tokens_here.read_dispatched(number)
        if observed.quiet[number] and left < self._queue[tenant]:
            observed.quiet[number] = False
            self._dispatcher.wanted()
        observed.arrived[number] += tokens

    def _serve(self) -> None:
        book, now = self._dispatcher.book, self._world.clock.now()
        book.begin_next(now)
        step_s = STEP_NS / SECOND_NS
        self._budget = min(self._budget + self._owner.rate * step_s, self._owner.rate * BEHIND_S)
        waiting = np.flatnonzero(self._queue)
        if waiting.size and book.may_dispatch(now) and not book.alone:
            self._spend(np.roll(waiting, -self._turn % waiting.size))
            self._turn += waiting.size // 3 + 1
        for tenant in waiting.tolist():
            number = int(self._numbers[tenant])
            book.observed.queued[number] = int(self._queue[tenant])
            if self._queue[tenant]:
                book.observed.began_to_wait(number, now)
            else:
                book.observed.ran_empty(number, now)

    def _spend(self, tenants: Whole) -> None:
        """In turn, those with priority first."""
        scheduler: Any = self._dispatcher.book.scheduler
        numbers = self._numbers[tenants]
        dispatched = np.asarray(scheduler.dispatched)[numbers]
        may = np.minimum(self._queue[tenants], np.asarray(scheduler.allowance)[numbers] - dispatched)
        may = np.maximum(may, 0)
        first = np.clip(np.asarray(scheduler.priority)[numbers] - dispatched, 0, may)
        gone = self._cut(first)
        gone = gone + self._cut(may - first)
        went = np.flatnonzero(gone)
        for number, tokens in zip(numbers[went].tolist(), gone[went].tolist(), strict=True):
            scheduler.spend(number, tokens)
        self._queue[tenants] -= gone
        owner = self._owner
        place = owner.places[self._world.name]
        owner.note(place, self._dispatcher.book.charged_to, tenants[went], gone[went])

    def _cut(self, wanted: Whole) -> Whole:
        """As much of it, in order, as the server can still do."""
        ends = np.minimum(np.cumsum(wanted), int(self._budget))
        cut: Whole = np.diff(ends, prepend=0)
        self._budget -= int(cut.sum())
        return cut
