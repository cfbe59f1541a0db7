"""Who asks for what, where and when: the workload of section IV-B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from bursar.experiments.instances import Real, Whole, choose_servers, draw_reservations


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an experiment, as in the paper unless told otherwise."""

    servers: int = 64
    tenants: int = 10_000
    active: int = 8
    changes: int = 2
    rate: int = 20_000
    period_s: float = 5.0
    multiple: float = 1.5
    exponent: float = 0.5

    @property
    def capacity(self) -> int:
        """Requests that a server can serve in a period."""
        return round(self.rate * self.period_s)


@dataclass(frozen=True)
class Workload:
    """Flows of requests, in order of server: flow f sends requests of `tenant[f]` to `server[f]`
    at an even pace from `start[f]` to `end[f]` (seconds), the first at `first[f]`."""

    shape: Shape
    reservation: Whole
    changed_at: Real
    tenant: Whole
    server: Whole
    start: Real
    end: Real
    pace: Real
    first: Real

    def count_demand(self) -> Any:
        """All requests of the period, tenants x servers: what someone who knew the future would
        allocate by."""
        before = np.ceil(np.maximum(0.0, -self.first) * self.pace)
        after = np.ceil(np.maximum(0.0, self.end - self.first) * self.pace)
        counts = np.maximum(after - before, 0).astype(np.int64)
        size = (self.shape.tenants, self.shape.servers)
        rows = csr_array((counts, (self.tenant, self.server)), shape=size)
        rows.sum_duplicates()
        return rows


def draw_workload(seed: int, shape: Shape) -> Workload:
    """Every server is reserved whole. Each tenant changes its demand `changes` times, at random
    moments of the period: it then chooses its active servers anew and spreads the same total
    over them by a Zipf distribution. The first flows begin a period earlier, so that
    there is something to estimate the first allocation from."""
    rng = np.random.default_rng(seed)
    reservation = draw_reservations(rng, shape.tenants, shape.servers * shape.capacity, shape.exponent)
    changed_at = np.sort(rng.uniform(0.0, shape.period_s, (shape.tenants, shape.changes)), axis=1)
    begin = np.full((shape.tenants, 1), -shape.period_s)
    finish = np.full((shape.tenants, 1), shape.period_s)
    starts = np.concatenate([begin, changed_at], axis=1)
    ends = np.concatenate([changed_at, finish], axis=1)
    parts = shape.changes + 1
    chosen = choose_servers(rng, shape.tenants * parts, shape.servers, shape.active)
    weights = np.arange(1, shape.active + 1, dtype=np.float64) ** -shape.exponent
    total = reservation * shape.multiple / shape.period_s
    pace = np.outer(np.repeat(total, parts), weights / weights.sum())
    server = chosen.ravel()
    order = np.argsort(server, kind="stable")

    def arrange(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(values.ravel()[order])

    start = arrange(np.repeat(starts.ravel(), shape.active))
    even = arrange(pace)
    return Workload(
        shape=shape,
        reservation=reservation,
        changed_at=changed_at,
        tenant=arrange(np.repeat(np.arange(shape.tenants), parts * shape.active)),
        server=server[order],
        start=start,
        end=arrange(np.repeat(ends.ravel(), shape.active)),
        pace=even,
        first=start + rng.uniform(0.0, 1.0, start.size) / even,
    )
