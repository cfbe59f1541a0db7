"""The allocation problems of the paper's section IV, and harder ones.

Every generator takes a seed and gives the same problem for it on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

_CHUNK_CELLS = 4_194_304


@dataclass(frozen=True, slots=True)
class Instance:
    """One allocation problem: `demand` is tenants x servers, the others one number each."""

    demand: Any
    capacity: Whole
    reservation: Whole


def draw_instance(
    seed: int,
    *,
    servers: int = 64,
    tenants: int = 10_000,
    active: int = 8,
    capacity: int = 100_000,
    reserved: float = 1.0,
    multiple: float = 1.1,
    exponent: float = 0.5,
    spread: float = 0.5,
    heat: float = 0.0,
    unevenness: float = 0.0,
) -> Instance:
    """A problem as in section IV-C.

    reserved    r: the reserved part of the cluster's capacity
    multiple    m: each tenant's demand over its reservation
    exponent    of the Zipf distribution of the reservations (0: all equal)
    spread      of the Zipf distribution of a tenant's demand over its `active` servers
    heat        0: every server is as likely to be active as any other; above, server j is
                chosen with weight 1/(j+1)^heat
    unevenness  0: equal capacities; above, log-normal with this sigma, the same total
    """
    rng = np.random.default_rng(seed)
    capacities = draw_capacities(rng, servers, capacity, unevenness)
    reservation = draw_reservations(rng, tenants, round(reserved * int(capacities.sum())), exponent)
    chosen = choose_servers(rng, tenants, servers, active, heat)
    demand = spread_demand(rng, chosen, np.rint(reservation * multiple).astype(np.int64), servers, spread)
    return Instance(demand, capacities, reservation)


def draw_capacities(rng: np.random.Generator, servers: int, mean: int, unevenness: float = 0.0) -> Whole:
    """Capacities with this mean: equal, or log-normal where `unevenness` is above zero."""
    if unevenness == 0.0:
        return np.full(servers, mean, dtype=np.int64)
    weights = rng.lognormal(0.0, unevenness, servers)
    return round_shares(weights, mean * servers)


def draw_reservations(rng: np.random.Generator, tenants: int, total: int, exponent: float) -> Whole:
    """Section IV-B, figure 3(a): every tenant draws a weight 1/k^s with probability in
    proportion to it, and the total is shared by weight; highest first."""
    if exponent == 0.0:
        return round_shares(np.ones(tenants), total)
    weights = np.arange(1, tenants + 1, dtype=np.float64) ** -exponent
    drawn = rng.choice(weights, size=tenants, p=weights / weights.sum())
    return round_shares(np.sort(drawn)[::-1], total)


def round_shares(weights: Real, total: int) -> Whole:
    """Whole numbers in proportion to the weights, with exactly this sum."""
    upto = np.floor(np.cumsum(weights) * (total / weights.sum()) + 0.5).astype(np.int64)
    upto[-1] = total
    parts: Whole = np.diff(upto, prepend=0)
    return parts


def choose_servers(
    rng: np.random.Generator, tenants: int, servers: int, active: int, heat: float = 0.0
) -> Whole:
    """For each tenant `active` different servers, in random order."""
    weights = np.arange(1, servers + 1, dtype=np.float64) ** -heat
    if active * 4 >= servers or heat > 0.0:
        chunk = max(_CHUNK_CELLS // servers, 1)
        counts = [min(chunk, tenants - start) for start in range(0, tenants, chunk)]
        return np.concatenate([_choose_by_keys(rng, count, weights, active) for count in counts])
    chosen = rng.integers(0, servers, size=(tenants, active))
    while True:
        ordered = np.sort(chosen, axis=1)
        repeated = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if repeated.size == 0:
            return chosen
        chosen[repeated] = rng.integers(0, servers, size=(repeated.size, active))


def _choose_by_keys(rng: np.random.Generator, rows: int, weights: Real, active: int) -> Whole:
    """Weighted choice without replacement: the smallest of exponential keys divided by weight."""
    keys = rng.exponential(size=(rows, weights.size)) / weights
    nearest = np.argpartition(keys, active - 1, axis=1)[:, :active] if active < weights.size else None
    if nearest is None:
        nearest = np.tile(np.arange(weights.size), (rows, 1))
    return rng.permuted(nearest, axis=1).astype(np.int64)


def spread_demand(
    rng: np.random.Generator, chosen: Whole, totals: Whole, servers: int, exponent: float
) -> Any:
    """Each tenant's total over its chosen servers by a Zipf distribution, as a CSR array."""
    tenants, active = chosen.shape
    weights = np.arange(1, active + 1, dtype=np.float64) ** -exponent
    upto = np.floor(np.outer(totals, np.cumsum(weights) / weights.sum()) + 0.5).astype(np.int64)
    upto[:, -1] = totals
    parts = np.diff(upto, axis=1, prepend=0)
    order = np.argsort(chosen, axis=1)
    data = np.take_along_axis(parts, order, axis=1).ravel()
    indices = np.take_along_axis(chosen, order, axis=1).ravel().astype(np.int32)
    indptr = np.arange(0, tenants * active + 1, active, dtype=np.int32)
    return csr_array((data, indices, indptr), shape=(tenants, servers))
