"""One period of a cluster, request by request: real allocation, the live scheduler's choices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bursar.allocation.matrix import Rows
from bursar.allocation.reservations import Allocation, allocate
from bursar.errors import UsageError
from bursar.rates.scheduler import UNBOUNDED
from bursar.rates.scheduler import kernels as scheduler
from bursar.simulate import kernels
from bursar.simulate.workload import Real, Whole, Workload
from bursar.world import SECOND_NS


@dataclass(frozen=True, slots=True)
class Control:
    """How the controller works.

    intervals   allocations in a period
    parts       a server counts arrivals in this many parts of an interval
    window      how many parts it looks back
    surprise    it looks no further back than a change of this many standard deviations
    delay_s     from the reports to the tokens' arrival; meanwhile servers use the old ones
    tokens      False: none are placed, and servers take turns among all who wait
    """

    intervals: int = 5
    parts: int = 1
    window: int = 1
    surprise: float = math.inf
    delay_s: float = 0.010
    tokens: bool = True


SERVICE_SPREAD = 0.2
"""Service times are even between 80 % and 120 % of the mean."""


@dataclass(frozen=True)
class Outcome:
    """What a period brought. `served` is intervals x tenants."""

    reservation: Whole
    served: Whole
    changed_at: Real
    overloaded: Whole
    simulated_s: float
    cpu_s: float
    allocation_s: list[float]

    @property
    def part_met(self) -> Real:
        return np.asarray(self.served.sum(axis=0) / np.maximum(self.reservation, 1), dtype=np.float64)

    def miss(self, part: float = 0.95) -> float:
        """The fraction of tenants that got less than `part` of their reservation."""
        return float((self.part_met < part).mean())


class Simulation:
    """Servers with their queues, between the moments at which tokens are placed."""

    def __init__(self, workload: Workload, control: Control, seed: int, threads: int = 1) -> None:
        shape = workload.shape
        self.workload, self.control, self.shape = workload, control, shape
        self._tables = np.zeros((shape.servers, shape.tenants, scheduler.FIELDS), dtype=np.int64)
        self._tables[:, :, scheduler.COST] = 1
        self._tables[:, :, scheduler.WEIGHT] = 1
        self._heads = np.full((shape.servers, scheduler.RINGS), scheduler.NOBODY, dtype=np.int64)
        self._states = np.zeros((shape.servers, scheduler.STATES), dtype=np.int64)
        for j in range(shape.servers):
            scheduler.open_period(self._tables[j], self._heads[j], self._states[j])
        # Nobody has a limit, so servers have something to do before the first tokens are there.
        self._tables[:, :, scheduler.ALLOWANCE] = UNBOUNDED
        self._bounds = np.searchsorted(workload.server, np.arange(shape.servers + 1)).astype(np.int64)
        self._next_at = workload.first.copy()
        self._history = np.zeros((control.window, shape.servers, shape.tenants), dtype=np.uint16)
        self._newest = 0
        self._dispatched = np.zeros((shape.servers, shape.tenants), dtype=np.int64)
        self._cells = np.zeros_like(self._dispatched)
        self._done = np.zeros((shape.servers, shape.tenants), dtype=np.int32)
        self._free_at = np.full(shape.servers, -math.inf)
        self._busy_s = np.zeros(shape.servers)
        self._empty_s = np.zeros((shape.servers, shape.tenants))
        self._empty_since = np.zeros_like(self._empty_s)
        self._seeds = np.random.default_rng(seed).integers(0, 2**64, shape.servers, dtype=np.uint64)
        self._service_s = np.full(shape.servers, 1.0 / shape.rate)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self.overloaded: list[int] = []
        self.allocation_s: list[float] = []

    def run(self) -> Outcome:
        """The whole period."""
        began, began_cpu = time.perf_counter(), time.process_time()
        control, period_s = self.control, self.shape.period_s
        interval_s = period_s / control.intervals
        if not 0.0 <= control.delay_s <= interval_s / control.parts:
            raise UsageError(f"a delay of {control.delay_s} s: it must fit in a part of an interval")
        self._watch_before(interval_s)
        served = np.zeros((control.intervals, self.shape.tenants), dtype=np.int64)
        for k in range(control.intervals):
            before = self._done.sum(axis=0)
            self._pass_interval(k * interval_s, interval_s)
            served[k] = self._done.sum(axis=0) - before
        if self._pool:
            self._pool.shutdown()
        return Outcome(
            self.workload.reservation,
            served,
            self.workload.changed_at,
            np.array(self.overloaded),
            time.perf_counter() - began,
            time.process_time() - began_cpu,
            self.allocation_s,
        )

    def _watch_before(self, interval_s: float) -> None:
        part_s = interval_s / self.control.parts
        for p in range(self.control.window, 0, -1):
            work = (*self._flows(), self._begin_part(), -p * part_s, (1 - p) * part_s)
            self._share(kernels.watch, work)

    def _pass_interval(self, start: float, interval_s: float) -> None:
        """Report, serve with the old tokens until the new ones are there, then with those."""
        self._share(kernels.read_dispatched, (self._tables, self._dispatched))
        allocation = self._allocate(start, interval_s)
        part_s = interval_s / self.control.parts
        placed_at = start + self.control.delay_s
        for p in range(self.control.parts):
            arrived = self._begin_part()
            begin = start + p * part_s
            if p == 0:
                self._serve(arrived, begin, placed_at)
                if self.control.tokens:
                    self._place(allocation)
                begin = placed_at
            self._serve(arrived, begin, start + (p + 1) * part_s)

    def _allocate(self, start: float, interval_s: float) -> Allocation:
        left_ns = round((self.shape.period_s - start) * SECOND_NS)
        demand = self._estimate_demand(interval_s, left_ns)
        remaining = np.maximum(self.workload.reservation - self._dispatched.sum(axis=0), 0)
        began = time.perf_counter()
        allocation = allocate(demand, self._estimate_capacity(left_ns), remaining)
        self.allocation_s.append(time.perf_counter() - began)
        self.overloaded.append(int(allocation.overloaded.sum()))
        return allocation

    def _estimate_demand(self, interval_s: float, left_ns: int) -> Rows:
        part_ns = round(interval_s / self.control.parts * SECOND_NS)
        seen = (self._tables, self._history, self._newest, part_ns, left_ns, self.control.surprise)
        self._share(kernels.estimate_demands, (*seen, self._cells))
        indptr, indices, values = kernels.gather_rows(self._cells)
        return Rows((self.shape.tenants, self.shape.servers), indptr, indices, values, form=Rows)

    def _estimate_capacity(self, left_ns: int) -> Whole:
        """From the service rate while busy; before the first request what the server is known
        to do."""
        left_s = left_ns / SECOND_NS
        served = self._done.sum(axis=1)
        rate = np.where(served > 0, served / np.maximum(self._busy_s, 1e-9), self.shape.rate)
        return np.rint(rate * left_s).astype(np.int64)

    def _place(self, allocation: Allocation) -> None:
        self._scatter(allocation.tokens, self._cells)
        schedulers = (self._tables, self._heads, self._states)
        self._share(kernels.place, (*schedulers, self._dispatched, self._cells))

    def _scatter(self, tokens: Rows, cells: Whole) -> None:
        kernels.scatter_rows(tokens.indptr, tokens.indices, tokens.values, cells)

    def _serve(self, arrived: Any, start: float, stop: float) -> None:
        if stop <= start:
            return
        schedulers = (self._tables, self._heads, self._states)
        seen = (arrived, self._done, self._free_at, self._busy_s, self._seeds)
        queues = (self._empty_s, self._empty_since, self._service_s)
        self._share(kernels.serve, (*schedulers, *self._flows(), *seen, *queues, SERVICE_SPREAD, start, stop))

    def _flows(self) -> tuple[Any, ...]:
        w = self.workload
        return self._bounds, w.tenant, w.end, w.pace, self._next_at

    def _begin_part(self) -> Any:
        """The oldest part of the history makes room for the next."""
        self._newest = (self._newest + 1) % self.control.window
        arrived = self._history[self._newest]
        arrived[:] = 0
        return arrived

    def _share(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Servers do not see one another between two placements: any thread may run any."""
        if self._pool is None:
            work(0, self.shape.servers, *arguments)
            return
        edges = [self.shape.servers * k // self._threads for k in range(self._threads + 1)]
        for future in [self._pool.submit(work, a, b, *arguments) for a, b in pairwise(edges)]:
            future.result()
