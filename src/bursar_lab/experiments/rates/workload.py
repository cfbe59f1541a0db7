"""Who asks for what, where and when: the workload of section IV-B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from bursar.simulate.workload import Shape, Workload
from bursar_lab.experiments.instances import choose_servers, draw_reservations


@dataclass(frozen=True, slots=True)
class Setting:
    """The size of an experiment and what is drawn for it, as in the paper unless told otherwise."""

    servers: int = 64
    tenants: int = 10_000
    active: int = 8
    changes: int = 2
    rate: int = 20_000
    period_s: float = 5.0
    multiple: float = 1.5
    exponent: float = 0.5

    @property
    def shape(self) -> Shape:
        return Shape(self.servers, self.tenants, self.rate, self.period_s)


def count_demand(workload: Workload) -> Any:
    """All requests of the period, tenants x servers: what someone who knew the future would
    allocate by."""
    before = np.ceil(np.maximum(0.0, -workload.first) * workload.pace)
    after = np.ceil(np.maximum(0.0, workload.end - workload.first) * workload.pace)
    counts = np.maximum(after - before, 0).astype(np.int64)
    size = (workload.shape.tenants, workload.shape.servers)
    rows = csr_array((counts, (workload.tenant, workload.server)), shape=size)
    rows.sum_duplicates()
    return rows


def draw_workload(seed: int, setting: Setting) -> Workload:
    """Every server is reserved whole. Each tenant changes its demand `changes` times, at random
    moments of the period: it then chooses its active servers anew and spreads the same total
    over them by a Zipf distribution. The first flows begin a period earlier, so that
    there is something to estimate the first allocation from."""
    rng = np.random.default_rng(seed)
    capacity = setting.servers * setting.shape.capacity
    reservation = draw_reservations(rng, setting.tenants, capacity, setting.exponent)
    changed_at = np.sort(rng.uniform(0.0, setting.period_s, (setting.tenants, setting.changes)), axis=1)
    begin = np.full((setting.tenants, 1), -setting.period_s)
    finish = np.full((setting.tenants, 1), setting.period_s)
    starts = np.concatenate([begin, changed_at], axis=1)
    ends = np.concatenate([changed_at, finish], axis=1)
    parts = setting.changes + 1
    chosen = choose_servers(rng, setting.tenants * parts, setting.servers, setting.active)
    weights = np.arange(1, setting.active + 1, dtype=np.float64) ** -setting.exponent
    total = reservation * setting.multiple / setting.period_s
    pace = np.outer(np.repeat(total, parts), weights / weights.sum())
    server = chosen.ravel()
    order = np.argsort(server, kind="stable")

    def arrange(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(values.ravel()[order])

    start = arrange(np.repeat(starts.ravel(), setting.active))
    even = arrange(pace)
    return Workload(
        shape=setting.shape,
        reservation=reservation,
        changed_at=changed_at,
        tenant=arrange(np.repeat(np.arange(setting.tenants), parts * setting.active)),
        server=server[order],
        start=start,
        end=arrange(np.repeat(ends.ravel(), setting.active)),
        pace=even,
        first=start + rng.uniform(0.0, 1.0, start.size) / even,
    )
