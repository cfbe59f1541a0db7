"""A data node in virtual time, under the engines and the monitor that run live.

The node serves what clients have tokens for, each at most at the speed of one client, all together
at most its capacity, shared evenly: what a network card does. Everything about tokens is the real
code of `bursar.pools`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from bursar.pools.capacity import Capacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import CHECK_NS, TICK_NS
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.world import MILLISECOND_NS, SECOND_NS

STEP_NS = MILLISECOND_NS
Pattern = Literal["burst", "constant"]


class VirtualClock:
    """Time that is set."""

    def __init__(self) -> None:
        self.ns = SECOND_NS

    def now(self) -> int:
        return self.ns

    def origin(self) -> str:
        return ""

    def wall(self) -> int:
        return self.ns

    async def sleep(self, duration_ns: int) -> None:
        raise NotImplementedError("virtual time is set, not waited for")


class PlainWords:
    """Words of one process, for virtual time."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}

    def read(self, name: str) -> int:
        return self._words.get(name, 0)

    def write(self, name: str, value: int) -> None:
        self._words[name] = value

    def fetch_add(self, name: str, amount: int) -> int:
        before = self._words.get(name, 0)
        self._words[name] = before + amount
        return before

    def compare_and_swap(self, name: str, expected: int, value: int) -> int:
        before = self._words.get(name, 0)
        if before == expected:
            self._words[name] = value
        return before

    async def wait(self, name: str, value: int, timeout_ns: int) -> int:
        raise NotImplementedError("virtual time is set, not waited for")


@dataclass(frozen=True, slots=True)
class Setup:
    """One run. Rates are a second; `capacity_at(s)` is what the node can really do then.

    demand      requests of each client in a period; None: as many as it can get
    bare        no tokens: whoever asks is served
    """

    periods: int
    capacity_at: Callable[[float], float]
    client_capacity: float
    reservations: Sequence[int]
    demand: Sequence[int | None]
    pattern: Pattern = "burst"
    estimate: Capacity | None = None
    bare: bool = False
    convert: bool = True
    printed: bool = False
    paced: bool | None = False
    period_ns: int = SECOND_NS


@dataclass(slots=True)
class Run:
    """done[period, client], estimates and actual capacities a period, latencies in seconds."""

    done: Any
    estimates: list[int] = field(default_factory=list)
    issued: list[int] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def throughput(self, skip: int = 1) -> float:
        """Requests a period, after a warm-up."""
        return float(self.done[skip:].sum(axis=1).mean())


def share_evenly(wanted: Any, capacity: float) -> Any:
    """What each gets of a capacity that is shared evenly among those who want more."""
    given = np.zeros(len(wanted))
    left, open_ones = capacity, wanted > 0
    while left > 1e-9 and open_ones.any():
        part = left / open_ones.sum()
        more = np.where(open_ones, np.minimum(wanted - given, part), 0.0)
        given += more
        left -= more.sum()
        open_ones &= wanted - given > 1e-9
    return given


class Node:
    """Clients, engines, a monitor and the node, stepped by the millisecond."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.clock = VirtualClock()
        words = PlainWords()
        self.count = len(setup.reservations)
        self._ready = np.zeros(self.count)
        self._backlog = np.zeros(self.count)
        self._served = np.zeros(self.count)
        self._arrived: list[list[tuple[int, float]]] = [[] for _ in range(self.count)]
        self.engines: list[Engine] = []
        self.monitor: Monitor | None = None
        if not setup.bare:
            self._add_tokens(words)

    def _add_tokens(self, words: PlainWords) -> None:
        setup = self.setup
        assert setup.estimate is not None, "tokens need an estimate of the capacity"
        book = MonitorBook(
            "node",
            setup.estimate,
            period_ns=setup.period_ns,
            client_capacity=int(setup.client_capacity * setup.period_ns / SECOND_NS),
            convert=setup.convert,
            printed=setup.printed,
        )
        for k, reservation in enumerate(setup.reservations):
            name = f"C{k + 1}"
            book.join(name, reservation)
            engine_book = EngineBook("node", name, period_ns=setup.period_ns, paced=setup.paced)
            self.engines.append(Engine(self.clock, words, engine_book))
        self.monitor = Monitor(self.clock, words, book)

    def run(self) -> Run:
        setup = self.setup
        run = Run(np.zeros((setup.periods, self.count)))
        begun = self.clock.ns
        for period in range(setup.periods):
            self._arrive_burst()
            for offset in range(0, setup.period_ns, STEP_NS):
                self.clock.ns = begun + period * setup.period_ns + offset
                self._look(offset)
                run.done[period] += self._serve(run)
            if self.monitor is not None:
                accounts = self.monitor.book.accounts
                run.estimates.append(accounts.capacity)
                run.issued.append(accounts.issued())
        return run

    def _arrive_burst(self) -> None:
        """A client that makes all its requests at once; what the last period left is dropped."""
        if self.setup.pattern != "burst":
            return
        for k, demand in enumerate(self.setup.demand):
            self._backlog[k] = 1e12 if demand is None else demand
            self._arrived[k] = [(self.clock.ns + STEP_NS, self._backlog[k])]

    def _arrive_constant(self) -> None:
        for k, demand in enumerate(self.setup.demand):
            arriving = (demand or 0) * STEP_NS / self.setup.period_ns
            self._backlog[k] += arriving
            self._arrived[k].append((self.clock.ns, arriving))

    def _look(self, offset_ns: int) -> None:
        if self.setup.pattern == "constant":
            self._arrive_constant()
        if self.monitor is None:
            return
        if offset_ns % CHECK_NS == 0:
            self.monitor.check()
        for k, engine in enumerate(self.engines):
            engine.book.pending = int(min(self._backlog[k], 2**27))
            # Clients tick in turn, as they would: nothing makes them tick together.
            if (offset_ns + k * MILLISECOND_NS) % TICK_NS == 0 or offset_ns == 0:
                engine.tick()

    def _serve(self, run: Run) -> Any:
        setup = self.setup
        seconds = STEP_NS / SECOND_NS
        most = setup.client_capacity * seconds
        wanted = np.minimum(self._backlog, most)
        if self.monitor is None:
            self._ready = wanted
        else:
            # In turn: nobody is always the first to find the pool filled.
            first = self.clock.ns // STEP_NS
            for k in ((first + each) % self.count for each in range(self.count)):
                need = int(min(self._backlog[k], most + 1) - self._ready[k])
                if need >= 1:
                    self._ready[k] += self.engines[k].take_up_to(need)
        at_s = (self.clock.ns - SECOND_NS) / SECOND_NS
        given = share_evenly(np.minimum(self._ready, wanted), setup.capacity_at(at_s) * seconds)
        self._ready -= given
        self._backlog -= given
        self._note_latencies(run, given)
        return given

    def _note_latencies(self, run: Run, given: Any) -> None:
        """First come, first served at each client: one sample for each client and millisecond."""
        for k in range(self.count):
            left = given[k]
            waiting = self._arrived[k]
            if left > 0 and waiting:
                run.latencies.append((self.clock.ns + STEP_NS - waiting[0][0]) / SECOND_NS)
            while waiting and left > 1e-9:
                at, count = waiting[0]
                served = min(count, left)
                left -= served
                if served >= count - 1e-9:
                    waiting.pop(0)
                else:
                    waiting[0] = (at, count - served)
