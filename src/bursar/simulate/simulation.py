"""One period of a policy's servers: the cluster with limits, weights and servers that differ."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar.errors import UsageError
from bursar.policy.values import RatePolicy
from bursar.rates.allowances import UNLIMITED, Allowances, allocate_allowances
from bursar.rates.matrix import Rows
from bursar.rates.scheduler import kernels as scheduler
from bursar.simulate import kernels
from bursar.simulate.cluster import Control, Simulation
from bursar.simulate.demand import Flows
from bursar.simulate.workload import Real, Shape, Whole, Workload
from bursar.units import Rate
from bursar.world import SECOND_NS

REQUESTS_MAX = 50_000_000
"""In one period; more would take minutes and gigabytes."""

PART_REQUESTS_MAX = 50_000
"""Arrivals of one tenant at one server are counted in 16 bits for each part of an interval."""


@dataclass(frozen=True)
class Terms:
    """A policy in arrays: tokens of a period by tenant, requests a second by server."""

    tenants: list[str]
    servers: list[str]
    capacity: Real
    reservation: Whole
    limit: Whole
    weight: Whole
    may_use: Any
    """Tenants x servers."""
    period_s: float
    intervals: int


def read_terms(policy: RatePolicy, assumed: Rate | None = None) -> Terms:
    """Raises UsageError where a capacity is not known and none is assumed."""
    capacity = []
    for name, server in policy.servers.items():
        rate = server.capacity or assumed
        if rate is None:
            raise UsageError(
                f'{policy.name}: the capacity of server {name} is "auto"; say what to assume: --assume 100k/s'
            )
        capacity.append(float(rate.per_second))
    period_ns, tenants = policy.period_ns, policy.tenants.values()
    limits = [UNLIMITED if t.limit is None else t.limit.per(period_ns) for t in tenants]
    names = list(policy.servers)
    allowed = [[t.servers is None or name in t.servers for name in names] for t in tenants]
    return Terms(
        tenants=list(policy.tenants),
        servers=names,
        capacity=np.array(capacity),
        reservation=np.array([t.reservation.per(period_ns) for t in tenants], np.int64),
        limit=np.array(limits, np.int64),
        weight=np.array([t.weight for t in tenants], np.int64),
        may_use=np.array(allowed, bool),
        period_s=period_ns / SECOND_NS,
        intervals=max(1, round(period_ns / policy.interval_ns)),
    )


@dataclass(frozen=True)
class Served:
    """What a period brought: requests by interval and tenant, and by server."""

    by_interval: Whole
    by_server: Whole
    simulated_s: float

    @property
    def by_tenant(self) -> Whole:
        total: Whole = self.by_interval.sum(axis=0)
        return total


class PolicySimulation(Simulation):
    def __init__(self, terms: Terms, flows: Flows, seed: int) -> None:
        self.terms = terms
        workload = _make_workload(terms, flows, seed)
        # Without delay: in the live protocol no token is at two places while grants are under way.
        super().__init__(workload, _make_control(terms, flows), seed, threads=os.cpu_count() or 1)
        self._limited = terms.limit < UNLIMITED
        self._service_s = 1.0 / terms.capacity
        self._tables[:, :, scheduler.WEIGHT] = terms.weight
        self._tables[:, self._limited, scheduler.ALLOWANCE] = 0

    def serve(self) -> Served:
        outcome = self.run()
        return Served(outcome.served, self._done.sum(axis=1).astype(np.int64), outcome.simulated_s)

    def _estimate_capacity(self, left_ns: int) -> Whole:
        return np.rint(self.terms.capacity * left_ns / SECOND_NS).astype(np.int64)

    def _allocate(self, start: float, interval_s: float) -> Any:
        left_ns = round((self.shape.period_s - start) * SECOND_NS)
        demand = self._estimate_demand(interval_s, left_ns)
        taken = self._dispatched.sum(axis=0)
        remaining = np.maximum(self.terms.reservation - taken, 0)
        left = np.where(self._limited, np.maximum(self.terms.limit - taken, 0), UNLIMITED)
        return allocate_allowances(demand, self._estimate_capacity(left_ns), remaining, left)

    def _place(self, allocation: Any) -> None:
        priority = self._spread_cells(allocation.priority)
        allowance = self._spread_cells(allocation.allowance)
        allowance += self._spread_spare(allocation, allowance)
        schedulers = (self._tables, self._heads, self._states)
        self._share(
            kernels.place_within_limits,
            (*schedulers, self._dispatched, priority, allowance, self._limited),
        )

    def _spread_cells(self, tokens: Rows) -> Whole:
        cells = np.empty((self.shape.servers, self.shape.tenants), np.int64)
        self._scatter(tokens, cells)
        cells[:, ~self._limited] = np.minimum(cells[:, ~self._limited], 2**53)
        return cells

    def _spread_spare(self, allocation: Allowances, allowance: Whole) -> Whole:
        """What nobody seems to need yet, by capacity over each tenant's servers, as live."""
        taken = self._dispatched.sum(axis=0)
        spare = np.where(self._limited, self.terms.limit - taken - allowance.sum(axis=0), 0).clip(0)
        weights = self.terms.may_use * self.terms.capacity
        share = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
        ends = np.floor(spare[:, None] * share + 0.5).astype(np.int64)
        spread: Whole = np.diff(ends, axis=1, prepend=0).T
        return spread


def _make_control(terms: Terms, flows: Flows) -> Control:
    interval_s = terms.period_s / terms.intervals
    cells = np.bincount(flows.tenant * len(terms.servers) + flows.server, weights=flows.pace)
    parts = max(1, math.ceil(float(cells.max()) * interval_s / PART_REQUESTS_MAX))
    return Control(intervals=terms.intervals, parts=parts, window=parts, delay_s=0.0)


def _make_workload(terms: Terms, flows: Flows, seed: int) -> Workload:
    requests = int(flows.demand(len(terms.tenants), terms.period_s).sum())
    if requests > REQUESTS_MAX:
        raise UsageError(
            f"{requests:,} requests in a period of {terms.period_s:g} s; at most {REQUESTS_MAX:,} are "
            "simulated: shorten the period in the policy"
        )
    order = np.argsort(flows.server, kind="stable")
    sorted_flows = flows.select(order)
    rate = max(1, round(float(terms.capacity.mean())))
    shape = Shape(servers=len(terms.servers), tenants=len(terms.tenants), rate=rate, period_s=terms.period_s)
    late = np.random.default_rng(seed).uniform(0.0, 1.0, order.size)
    return Workload(
        shape=shape,
        reservation=terms.reservation,
        changed_at=np.zeros((len(terms.tenants), 0)),
        tenant=sorted_flows.tenant,
        server=sorted_flows.server,
        start=sorted_flows.start,
        end=sorted_flows.end,
        pace=sorted_flows.pace,
        first=sorted_flows.start + late / sorted_flows.pace,
    )
