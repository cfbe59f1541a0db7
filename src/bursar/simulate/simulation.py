"""One period of a policy's servers: the cluster with limits, weights and servers that differ."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar.allocation.allowances import UNLIMITED
from bursar.errors import UsageError
from bursar.policy.values import RatePolicy
from bursar.rates.columns import Seen
from bursar.rates.messages import Report
from bursar.rates.observation import BACKLOGGED_EMPTY_PART
from bursar.rates.placement import Placement
from bursar.rates.promises import find_burst_ns
from bursar.rates.roll import Roll
from bursar.rates.scheduler import kernels as scheduler
from bursar.rates.terms import Terms as Promised
from bursar.rates.terms import make_terms
from bursar.rates.views import ServerView, draw_picture
from bursar.simulate import kernels
from bursar.simulate.cluster import Control, Simulation
from bursar.simulate.demand import Flows
from bursar.simulate.workload import Real, Shape, Whole, Workload
from bursar.units import Rate
from bursar.world import SECOND_NS

REQUESTS_MAX = 50_000_000
"""In one period; more would take minutes and gigabytes."""

BEFORE, PERIOD = 0, 1
"""The numbers of the period that is simulated, and of the one before it."""

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
    burst: Whole
    paced: bool

    def promise(self) -> dict[str, Promised]:
        """As the controller knows them."""
        return {
            tenant: Promised(
                int(self.reservation[k]),
                None if self.limit[k] == UNLIMITED else int(self.limit[k]),
                int(self.weight[k]),
                int(self.burst[k]),
                None if self.may_use[k].all() else tuple(self._find_servers(k)),
            )
            for k, tenant in enumerate(self.tenants)
        }

    def _find_servers(self, tenant: int) -> list[str]:
        return [self.servers[j] for j in np.flatnonzero(self.may_use[tenant])]


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
    promised = [make_terms(tenant, period_ns) for tenant in tenants]
    limits = [UNLIMITED if t.limit is None else t.limit for t in promised]
    names = list(policy.servers)
    allowed = [[t.servers is None or name in t.servers for name in names] for t in tenants]
    return Terms(
        tenants=list(policy.tenants),
        servers=names,
        capacity=np.array(capacity),
        reservation=np.array([t.reservation for t in promised], np.int64),
        limit=np.array(limits, np.int64),
        weight=np.array([t.weight for t in tenants], np.int64),
        may_use=np.array(allowed, bool),
        period_s=period_ns / SECOND_NS,
        intervals=max(1, round(period_ns / policy.interval_ns)),
        burst=np.array([t.burst for t in promised], np.int64),
        paced=policy.pacing,
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
    """The live placement, its estimates and its pacing, on simulated servers."""

    def __init__(self, terms: Terms, flows: Flows, seed: int, opening: tuple[ServerView, ...] = ()) -> None:
        """`opening` is what servers last said in the period before; without any, one is simulated."""
        self.terms = terms
        self._opening = opening
        workload = _make_workload(terms, flows, seed)
        # Without delay: in the live protocol no token is at two places while grants are under way.
        super().__init__(workload, _make_control(terms, flows), seed, threads=os.cpu_count() or 1)
        self._flowing, self._seed = flows, seed
        self._period_ns = round(terms.period_s * SECOND_NS)
        self._interval_ns = self._period_ns // terms.intervals
        self._promised = terms.promise()
        self._roll = Roll(1, self._promised)
        self._roll.number_all(terms.tenants)
        self._placement = Placement(dict(zip(terms.servers, terms.capacity.tolist(), strict=True)))
        self._told_s = np.zeros_like(self._empty_s)
        self._service_s = 1.0 / terms.capacity
        self._tables[:, :, scheduler.WEIGHT] = terms.weight
        self._tables[:, terms.limit < UNLIMITED, scheduler.ALLOWANCE] = 0
        if terms.paced:
            self._states[:, scheduler.PERIOD] = self._period_ns
            bursts = [find_burst_ns(each, self._period_ns) for each in self._promised.values()]
            self._tables[:, :, scheduler.BURST] = bursts

    def serve(self) -> Served:
        """A period that comes after one like it: what was seen in that one is known."""
        if not self._opening:
            before = PolicySimulation(self.terms, self._flowing, self._seed, self._see_all(0, BEFORE))
            before.run()
            self._opening = before.see_end()
        outcome = self.run()
        return Served(outcome.served, self._done.sum(axis=1).astype(np.int64), outcome.simulated_s)

    def see_end(self) -> tuple[ServerView, ...]:
        """What servers say when the period is over."""
        return self._see_all(self._period_ns, BEFORE)

    def _allocate(self, start: float, interval_s: float) -> Any:
        """What the controller would see now, placed as it would."""
        now, left_ns = round(start * SECOND_NS), round((self.shape.period_s - start) * SECOND_NS)
        views = self._see_all(now, PERIOD) if now else self._opening
        picture = draw_picture(now, left_ns, self._period_ns, self._interval_ns, views, self._roll, PERIOD)
        return self._placement(picture).finish()

    def _see_all(self, now: int, period: int) -> tuple[ServerView, ...]:
        """The reports of all servers, which count from here on anew."""
        queues = (self._empty_s, self._empty_since, self._told_s)
        kernels.tell_empty(0, self.shape.servers, self._tables, now / SECOND_NS, *queues)
        return tuple(self._see(j, now, period) for j in range(self.shape.servers))

    def _see(self, server: int, now: int, period: int) -> ServerView:
        """Of whoever has or wants anything there."""
        table, arrived = self._tables[server], self._history[:, server].sum(axis=0)
        waiting, dispatched = table[:, scheduler.WAITING], table[:, scheduler.DISPATCHED]
        backlogged = self._told_s[server] * SECOND_NS <= BACKLOGGED_EMPTY_PART * self._interval_ns
        seen = np.flatnonzero((waiting > 0) | (arrived > 0) | (dispatched > 0))
        columns = (table[:, scheduler.ALLOWANCE], dispatched, waiting, arrived, backlogged, waiting > 0)
        told = [column[seen].astype(np.int64) for column in columns]
        name = self.terms.servers[server]
        report = Report(name, 1, now, now, now, 1, 0, period, 0, self._interval_ns, 0.0, None)
        rows = Seen(*[seen, *told, np.zeros(seen.size, np.int64)])
        return ServerView(name, 1, now, now, report, rows, seen_ns=self._interval_ns)

    def _place(self, allocation: Any) -> None:
        filled = [allocation.fill(name)[1:] for name in self.terms.servers]
        targets = np.ascontiguousarray(np.array(filled, np.int64).transpose(0, 2, 1))
        self._share(kernels.place_targets, (self._tables, self._heads, self._states, targets))


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
