"""Several data nodes in virtual time: 4 nodes, 8 clients whose requests move, beside one node of four
times the capacity. The nodes are modelled (`node`), the tokens and their placement are the real code."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bursar.policy.values import POOL_INTERVALS
from bursar.pools.capacity import FixedCapacity
from bursar.pools.engine import Engine
from bursar.pools.engine_book import EngineBook
from bursar.pools.layout import CHECK_NS, TICK_NS, perform
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.pools.placing import Placing
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.experiments.pools.bars import Findings, at_least, check, conclude
from bursar_lab.experiments.pools.node import STEP_NS, PlainWords, VirtualClock, share_evenly

NODES, CLIENTS = 4, 8
CAPACITY = 1_570_000
"""Of all nodes together, as the paper's one."""

RESERVED_PART = 0.9
WANTED = 1.25
"""What a client asks for, of its reservation: it always has requests waiting."""

MAIN_PART = 0.6
MOVE_S = 2.7
LOOK_NS = SECOND_NS // POOL_INTERVALS // 5
ZIPF = 0.6
LOST_PART = 0.75
"""Of the reservations that fit into four nodes, what fits into three."""

NEAR = 0.01
"""The bar: so near to one node of the whole capacity."""

Where = Callable[[float], Any]
"""The part of each client's requests that goes to each node at a time: clients x nodes."""


def moving(at_s: float) -> Any:
    """A client's requests go to two nodes, and to the next two after each move."""
    turn = int(at_s / MOVE_S)
    parts = np.zeros((CLIENTS, NODES))
    for client in range(CLIENTS):
        parts[client, (client + turn) % NODES] += MAIN_PART
        parts[client, (client + turn + 1) % NODES] += 1 - MAIN_PART
    return parts


def losing(lost_s: float, back_s: float) -> Where:
    """Node 0 is lost for a while: what went to it goes to the others."""

    def where(at_s: float) -> Any:
        parts = np.full((CLIENTS, NODES), 1 / NODES)
        if lost_s <= at_s < back_s:
            parts[:, 0], parts[:, 1:] = 0, 1 / (NODES - 1)
        return parts

    return where


class Nodes:
    """Nodes, clients and their engines, stepped by the millisecond. With one node there is one pool, whose
    period is that of the reservations."""

    def __init__(self, reservations: Sequence[int], count: int, where: Where) -> None:
        self.clock = VirtualClock()
        self.words = PlainWords()
        self.count = count
        self.where = where
        self.reserved = np.array(reservations, np.float64)
        self.period_ns = SECOND_NS if count == 1 else SECOND_NS // POOL_INTERVALS
        self.capacity = CAPACITY / count
        self.tenants = [f"C{k + 1}" for k in range(len(reservations))]
        self.names = [f"records.{k}" for k in range(count)]
        self.monitors = [self._make_monitor(name) for name in self.names]
        self.engines = [[self._make_engine(name, tenant) for name in self.names] for tenant in self.tenants]
        each = int(self.capacity * self.period_ns / SECOND_NS)
        self.placing = Placing(
            dict.fromkeys(self.names, each),
            dict(zip(self.tenants, reservations, strict=True)),
            interval_ns=self.period_ns,
            period_ns=SECOND_NS,
        )
        shape = (len(reservations), count)
        self._backlog, self._ready = np.zeros(shape), np.zeros(shape)
        self._parts = np.zeros(shape)
        self.issued_most = 0.0

    def _make_monitor(self, name: str) -> Monitor:
        tokens = int(self.capacity * self.period_ns / SECOND_NS)
        book = MonitorBook(name, FixedCapacity(tokens), period_ns=self.period_ns)
        for tenant, reserved in zip(self.tenants, self.reserved, strict=True):
            book.join(tenant, int(reserved * self.period_ns / SECOND_NS / self.count))
        return Monitor(self.clock, self.words, book)

    def _make_engine(self, name: str, tenant: str) -> Engine:
        return Engine(
            self.clock, self.words, EngineBook(name, tenant, period_ns=self.period_ns, paced=self.count == 1)
        )

    def run(self, periods: int) -> Any:
        """Done in each period, by client."""
        done = np.zeros((periods, len(self.tenants)))
        begun = self.clock.ns
        for step in range(periods * SECOND_NS // STEP_NS):
            self.clock.ns = begun + step * STEP_NS
            self._arrive()
            self._look(step * STEP_NS)
            done[step * STEP_NS // SECOND_NS] += self._serve()
        return done

    def _arrive(self) -> None:
        """What waits at a node that a client turned away from is dropped."""
        parts = self.where((self.clock.ns - SECOND_NS) / SECOND_NS)[:, : self.count]
        if self.count == 1:
            parts = np.ones_like(parts)
        self._backlog[(parts == 0) & (self._parts > 0)] = 0
        self._parts = parts
        self._backlog += self.reserved[:, None] * WANTED * parts * STEP_NS / SECOND_NS
        most = self.reserved[:, None] * parts  # a client does not pile up more than a second's
        self._backlog = np.minimum(self._backlog, np.maximum(most, 1))

    def _look(self, elapsed_ns: int) -> None:
        if self.count > 1 and elapsed_ns % LOOK_NS == 0:
            self._place()
        if elapsed_ns % CHECK_NS == 0:
            for monitor in self.monitors:
                monitor.check()
                accounts = monitor.book.accounts
                self.issued_most = max(self.issued_most, accounts.issued() / accounts.capacity)
        for row, engines in enumerate(self.engines):
            for column, engine in enumerate(engines):
                engine.book.pending = int(self._backlog[row, column])
                if (elapsed_ns + row * MILLISECOND_NS) % TICK_NS == 0:
                    engine.tick()

    def _place(self) -> None:
        values = [perform(self.words, each) for each in self.placing.operations()]
        self.placing.receive(self.clock.ns, values)
        for name, reservations in self.placing.place().items():
            book = self.monitors[self.names.index(name)].book
            book.set_terms(reservations, book.estimate, None)

    def _serve(self) -> Any:
        given = np.zeros_like(self._backlog)
        for row, engines in enumerate(self.engines):
            for column, engine in enumerate(engines):
                need = int(self._backlog[row, column] - self._ready[row, column])
                if need >= 1:
                    self._ready[row, column] += engine.take_up_to(need)
        for column in range(self.count):
            wanted = np.minimum(self._ready[:, column], self._backlog[:, column])
            given[:, column] = share_evenly(wanted, self.capacity * STEP_NS / SECOND_NS)
        self._ready -= given
        self._backlog -= given
        return given.sum(axis=1)


def met(done: Any, reservations: Sequence[int], skip: int = 2) -> float:
    """The part of what was reserved that was done, of the client for which it was least."""
    reserved = np.array(reservations)
    return float((np.minimum(done[skip:], reserved) / reserved).mean(axis=0).min())


def uniform() -> list[int]:
    return [int(RESERVED_PART * CAPACITY / CLIENTS)] * CLIENTS


def zipf() -> list[int]:
    """By a Zipf law, placed so that what two clients reserve together is much the same everywhere."""
    weights = np.array([1 / (group + 1) ** ZIPF for group in (0, 1, 0, 1, 3, 2, 3, 2)])
    return [int(share) for share in RESERVED_PART * CAPACITY * weights / weights.sum()]


def several(out: pathlib.Path, quick: bool) -> Findings:
    """Set 2 over four nodes; and a node that is lost and comes back."""
    periods = 10 if quick else 40
    table, bars = [], []
    cases: list[tuple[str, list[int], Where]] = [
        ("Uniform", uniform(), moving),
        ("Zipf", zipf(), moving),
        ("a node lost and back", [int(part * LOST_PART) for part in uniform()], losing(3.3, 6.6)),
    ]
    for name, reservations, where in cases:
        one, four = Nodes(reservations, 1, where), Nodes(reservations, NODES, where)
        alone, spread = met(one.run(periods), reservations), met(four.run(periods), reservations)
        issued = max(one.issued_most, four.issued_most)
        table.append({"requests": name, "one node": alone, "four nodes": spread, "issued": issued})
        bars.append(
            at_least(f"{name}: reservations met over four nodes, beside one", spread / alone, 1 - NEAR)
        )
        bars.append(check(f"{name}: issued, of a node's capacity", issued, issued <= 1))
    return conclude({"table": table, "figures": []}, *bars)
