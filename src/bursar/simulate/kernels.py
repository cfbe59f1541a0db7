"""The compiled parts of the simulation. Requests are chosen by the live server's own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from bursar import estimate
from bursar.rates.scheduler import UNBOUNDED
from bursar.rates.scheduler import kernels as scheduler
from bursar.rates.scheduler.kernels import DISPATCHED, NOBODY, PRIORITY, WAITING

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

BINS = 16_384
"""Arrivals between two grants are put in order in this many steps: for one second at 20,000
requests a second a step is about the service time of one request."""

_MOMENT_S = 1e-6
"""What the server waits at least before it looks again whether pacing still holds everybody back."""

_count_recent: Any = njit(cache=True, nogil=True)(estimate.count_recent)
_extrapolate: Any = njit(cache=True, nogil=True)(estimate.extrapolate)


@njit(cache=True, nogil=True, inline="always")
def _draw(seeds: npt.NDArray[np.uint64], server: int) -> Any:
    """A number from 0 to 1: splitmix64, one stream a server, so that servers can be simulated in
    any order and by any number of threads."""
    seeds[server] += np.uint64(0x9E3779B97F4A7C15)
    z = seeds[server]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def draw_arrivals(
    first: int, last: int, tenant: Whole, end: Real, pace: Real, next_at: Real, start: float, stop: float
) -> Any:
    """Requests of flows first to last between start and stop, in order: (tenants, bins).
    Those that were due before start are dropped."""
    count = 0
    for f in range(first, last):
        if next_at[f] < start:
            next_at[f] = max(start, next_at[f] + np.ceil((start - next_at[f]) * pace[f]) / pace[f])
        until = min(end[f], stop)
        if next_at[f] < until:
            count += int(np.ceil((until - next_at[f]) * pace[f])) + 1
    tenants = np.empty(count, np.int32)
    bins = np.empty(count, np.int32)
    starts = np.zeros(BINS + 1, np.int64)
    scale = BINS / (stop - start)
    found = 0
    for f in range(first, last):
        until = min(end[f], stop)
        at = next_at[f]
        step = 1.0 / pace[f]
        while at < until:
            place = min(int((at - start) * scale), BINS - 1)
            tenants[found] = tenant[f]
            bins[found] = place
            starts[place + 1] += 1
            found += 1
            at += step
        next_at[f] = at
    for k in range(BINS):
        starts[k + 1] += starts[k]
    ordered = np.empty(found, np.int32)
    when = np.empty(found, np.int32)
    for k in range(found):
        place = bins[k]
        ordered[starts[place]] = tenants[k]
        when[starts[place]] = place
        starts[place] += 1
    return ordered, when


@njit(cache=True, nogil=True)
def watch(
    first_server: int, last_server: int, bounds: Whole, tenant: Whole, end: Real, pace: Real,
    next_at: Real, arrived: npt.NDArray[np.uint16], start: float, stop: float,
) -> None:  # fmt: skip
    """Count what arrives and serve nothing: the time before the period."""
    for j in range(first_server, last_server):
        tenants, _ = draw_arrivals(bounds[j], bounds[j + 1], tenant, end, pace, next_at, start, stop)
        for i in tenants:
            arrived[j, i] += 1


@njit(cache=True, nogil=True)
def serve(
    first_server: int, last_server: int, tables: Whole, heads: Whole, states: Whole,
    bounds: Whole, tenant: Whole, end: Real, pace: Real, next_at: Real,
    arrived: npt.NDArray[np.uint16], done: npt.NDArray[np.int32], free_at: Real, busy: Real,
    seeds: npt.NDArray[np.uint64], empty: Real, empty_since: Real, service: Real, spread: float,
    start: float, stop: float,
) -> Any:  # fmt: skip
    """Each server from start to stop: requests join the queues as they arrive; whenever the
    server is free it asks the scheduler and is busy for a random time. How many were served.
    `empty` adds up how long each queue was."""
    total = 0
    for j in range(first_server, last_server):
        table, head, state = tables[j], heads[j], states[j]
        tenants, when = draw_arrivals(bounds[j], bounds[j + 1], tenant, end, pace, next_at, start, stop)
        step = (stop - start) / BINS
        now = max(free_at[j], start)
        k = 0
        while True:
            while k < when.size and start + (when[k] + 1) * step <= now:
                if table[tenants[k], WAITING] == 0:
                    empty[j, tenants[k]] += max(
                        0.0, start + (when[k] + 1) * step - empty_since[j, tenants[k]]
                    )
                scheduler.arrive(table, head, state, tenants[k], 1)
                arrived[j, tenants[k]] += 1
                k += 1
            if now >= stop:
                break
            chosen = scheduler.choose(table, head, state, int(now * 1e9), False)
            if chosen != NOBODY:
                if table[chosen, WAITING] == 0:
                    empty_since[j, chosen] = now
                taken = service[j] * (1.0 + spread * (2.0 * _draw(seeds, j) - 1.0))
                now += taken
                busy[j] += taken
                done[j, chosen] += 1
                total += 1
            else:
                then = start + (when[k] + 1) * step if k < when.size else stop
                release = scheduler.find_release(head, state)
                if release != NOBODY:  # pacing holds somebody back, and for how long is known
                    then = min(then, max(release * 1e-9, now + _MOMENT_S))
                now = min(then, stop) if k >= when.size else then
        # A sum of floats may leave the last bin a hair after `stop`.
        while k < when.size:
            scheduler.arrive(table, head, state, tenants[k], 1)
            arrived[j, tenants[k]] += 1
            k += 1
        free_at[j] = now
    return total


@njit(cache=True, nogil=True)
def estimate_demands(
    first_server: int, last_server: int, tables: Whole, history: npt.NDArray[np.uint16], newest: int,
    part_ns: int, left_ns: int, surprise: float, demand: Whole,
) -> None:  # fmt: skip
    """Demand till the end of the period, servers x tenants. `history` holds arrivals by part of
    time, server and tenant, the parts in a circle that ends at `newest`."""
    parts = history.shape[0]
    counts = np.zeros(parts, np.int64)
    for j in range(first_server, last_server):
        for i in range(history.shape[2]):
            for p in range(parts):
                counts[p] = history[(newest + 1 + p) % parts, j, i]
            arrivals, seen = _count_recent(counts, surprise)
            demand[j, i] = tables[j, i, WAITING] + _extrapolate(arrivals, seen * part_ns, left_ns)


@njit(cache=True, nogil=True)
def gather_rows(demand: Whole) -> Any:
    """Servers x tenants, as the rows of a sparse matrix of tenants x servers."""
    servers, tenants = demand.shape
    indptr = np.zeros(tenants + 1, np.uint64)
    indices = np.empty(tenants * servers, np.uint32)
    data = np.empty(tenants * servers, np.int64)
    found = 0
    for i in range(tenants):
        for j in range(servers):
            if demand[j, i] > 0:
                indices[found] = j
                data[found] = demand[j, i]
                found += 1
        indptr[i + 1] = found
    return indptr, indices[:found], data[:found]


@njit(cache=True, nogil=True)
def scatter_rows(
    indptr: npt.NDArray[np.uint64], indices: npt.NDArray[np.uint32], data: Whole, cells: Whole
) -> None:
    """The way back: `cells` is servers x tenants."""
    cells[:] = 0
    for i in range(indptr.size - 1):
        for c in range(indptr[i], indptr[i + 1]):
            cells[indices[c], i] = data[c]


@njit(cache=True, nogil=True)
def place(
    first_server: int, last_server: int, tables: Whole, heads: Whole, states: Whole,
    dispatched: Whole, tokens: Whole,
) -> None:  # fmt: skip
    """Priority tokens to the servers, counted from what each had dispatched when it reported;
    nobody has a limit."""
    for j in range(first_server, last_server):
        for i in range(tokens.shape[1]):
            priority = dispatched[j, i] + tokens[j, i] if tokens[j, i] > 0 else 0
            if tables[j, i, PRIORITY] != priority:
                scheduler.grant(tables[j], heads[j], states[j], i, UNBOUNDED, priority, 0)


@njit(cache=True, nogil=True)
def place_targets(
    first_server: int, last_server: int, tables: Whole, heads: Whole, states: Whole, targets: Whole
) -> None:
    """Allowance, priority part and pace of each tenant at each server. An allowance is never set below
    what was dispatched since."""
    for j in range(first_server, last_server):
        for i in range(targets.shape[1]):
            most, first, pace = targets[j, i]
            most = max(most, tables[j, i, DISPATCHED])
            scheduler.grant(tables[j], heads[j], states[j], i, most, min(first, most), pace)


@njit(cache=True, nogil=True)
def tell_empty(
    first_server: int, last_server: int, tables: Whole, now: float, empty: Real, empty_since: Real, told: Real
) -> None:
    """How long each queue was empty since the last time, and begin anew."""
    for j in range(first_server, last_server):
        for i in range(told.shape[1]):
            told[j, i] = empty[j, i]
            if tables[j, i, WAITING] == 0:
                told[j, i] += max(0.0, now - empty_since[j, i])
            empty[j, i] = 0.0
            empty_since[j, i] = now


@njit(cache=True, nogil=True)
def read_dispatched(first_server: int, last_server: int, tables: Whole, dispatched: Whole) -> None:
    """What each tenant was served at each server."""
    for j in range(first_server, last_server):
        for i in range(dispatched.shape[1]):
            dispatched[j, i] = tables[j, i, DISPATCHED]
