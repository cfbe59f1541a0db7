"""Which tokens go to which server: exact, and as near as can be to the proportional split.

The paper's sections III-A to III-C. Each tenant's tokens, min(reservation, demand), start in
proportion to its demand; then only weak excess (tokens above a server's capacity) is moved, along
shortest paths, until no path is left. Then the effective capacity Phi is the maximum, by the
theorem of maximum flow and minimum cut. Of the many optima one near the split is wanted: tokens
piled up by an arbitrary maximum flow leave later intervals of the period without room.

What differs from the paper: no map of movable tokens for each pair of servers is kept (see
`kernels`); the paper's own way is in `bursar_lab.experiments.reference`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bursar.allocation import kernels
from bursar.allocation.matrix import Rows, Whole, read_rows, read_vector
from bursar.errors import UsageError

THREADS_MAX = 64

_FIRST_QUOTA = 16
_QUOTA_GROWTH = 4
_WHOLE_GRAPH = 1 / 2
"""When the search would take more than this part of the rows it takes all, once."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Why not everything fits: even with all their demand elsewhere filled, `tenants` must place
    `required` tokens on `servers`, whose capacity is only `capacity`. The difference is exactly
    what is missing; `tenants` and `servers` are indices."""

    tenants: Whole
    servers: Whole
    required: int
    capacity: int


@dataclass(frozen=True)
class Allocation:
    """Tokens for each tenant on each server. `tokens` never exceed the demand of their cell, and
    a tenant's sum to `granted`: min(reservation, demand)."""

    tokens: Any
    """In the form of the demand: a CSR array with the same cells, or a dense array."""
    granted: Whole
    excess: Whole
    """By server: tokens placed on it less its capacity."""
    capacity: Whole
    reservation: Whole
    exact: bool
    """False only with `top`: then `effective` may be less than the maximum."""
    demand_rows: Rows
    token_values: Whole

    @property
    def outcome(self) -> tuple[Whole, Whole, Whole]:
        """What a warm start needs besides the demand."""
        return self.reservation, self.token_values, self.granted

    @cached_property
    def effective(self) -> int:
        """Phi: the tokens that can be consumed, over all servers."""
        return int(self.granted.sum()) - int(self.overloaded.sum())

    @cached_property
    def overloaded(self) -> Whole:
        """Weak excess by server: the tokens on it that it cannot serve."""
        return np.maximum(self.excess, 0)

    @cached_property
    def shortfall(self) -> Whole:
        """By tenant: the tokens that will not be consumed when each overloaded server serves
        its tokens evenly (max-min: nobody loses one while another has more served)."""
        missing = np.zeros(self.granted.size, np.int64)
        cells = np.flatnonzero(self.excess[self.demand_rows.indices] > 0)
        if cells.size == 0:
            return missing
        cells = cells[np.argsort(self.demand_rows.indices[cells], kind="stable")]
        tenants = self.demand_rows.row_of_cells()[cells]
        servers, starts = np.unique(self.demand_rows.indices[cells], return_index=True)
        ends = np.append(starts[1:], cells.size)
        for server, start, end in zip(servers, starts, ends, strict=True):
            held = self.token_values[cells[start:end]]
            missing[tenants[start:end]] += held - _serve_evenly(held, int(self.capacity[server]))
        return missing

    @cached_property
    def cut(self) -> Cut | None:
        """Which tenants and servers make it infeasible; None if everything fits (or, with
        `top`, if this allocation is no proof)."""
        rows = self.demand_rows
        reached = (self.excess > 0).astype(np.uint8)
        if not reached.any():
            return None
        touched = np.zeros(self.granted.size, np.uint8)
        kernels.spread_reach(rows.indptr, rows.indices, rows.values, self.token_values, reached, touched)
        inside = reached.astype(bool)
        if (self.excess[inside] < 0).any():
            return None
        capacity = int(self.capacity[inside].sum())
        required = capacity + int(self.excess[inside].sum())
        return Cut(np.flatnonzero(touched), np.flatnonzero(inside), required, capacity)


def allocate(
    demand: Any,
    capacity: Any,
    reservation: Any,
    *,
    previous: Allocation | None = None,
    top: int | None = None,
    threads: int = 1,
) -> Allocation:
    """Place min(reservation, demand) tokens of every tenant so that as many as possible can be
    consumed.

    demand       tenants x servers, whole numbers up to 2**53; a dense array, a scipy CSR array or `Rows`
    capacity     what each server can serve
    reservation  what each tenant is to get
    previous     the last allocation: tenants whose demand and reservation have not changed
                 start from their tokens there, the others from the split
    top          the paper's approximation: each server considers only the `top` tenants with
                 the most tokens on it and the `top` with the most spare demand on it. For
                 comparison: choosing them costs more here than the shifting it saves
    threads      share the split and the direct shifts by tenants; only for very many tenants
                 and idle cores (`bursar bench allocation` shows what it brings)
    """
    rows = read_rows("demand", demand)
    capacities = read_vector("capacity", capacity, rows.shape[1], "servers")
    reservations = read_vector("reservation", reservation, rows.shape[0], "tenants")
    return allocate_rows(rows, capacities, reservations, previous, top, threads)


def allocate_rows(
    rows: Rows,
    capacity: Whole,
    reservation: Whole,
    previous: Allocation | None = None,
    top: int | None = None,
    threads: int = 1,
) -> Allocation:
    """`allocate` for input that has been read already; it keeps the arrays it is given."""
    if not 1 <= threads <= THREADS_MAX:
        raise UsageError(f"threads is {threads}: pass 1 to {THREADS_MAX}")
    if top is not None and top < 1:
        raise UsageError(f"top is {top}: pass at least 1, or None for the exact allocation")
    if previous is not None and previous.demand_rows.shape != rows.shape:
        raise UsageError(
            f"previous is for {previous.demand_rows.shape} tenants x servers, demand has {rows.shape}: "
            "pass previous=None when tenants or servers come or go"
        )
    rows, tokens, granted, excess = _split(rows, capacity, reservation, previous, threads)
    if top is None:
        _shift(rows.indptr, rows.indices, rows.values, tokens, granted, excess, threads)
    else:
        _shift_top(rows, tokens, granted, excess, top)
    result = rows.express(tokens)
    return Allocation(result, granted, excess, capacity, reservation, top is None, rows, tokens)


# --- the split ---------------------------------------------------------------------------------


def _split(
    rows: Rows, capacity: Whole, reservation: Whole, previous: Allocation | None, threads: int
) -> tuple[Rows, Whole, Whole, Whole]:
    tenants, servers = rows.shape
    tokens = np.empty(rows.values.size, np.int64)
    granted = np.empty(tenants, np.int64)
    bounds = _share_rows(tenants, threads)
    loads = np.zeros((len(bounds), servers), np.int64)

    old = rows if previous is None else previous.demand_rows
    last = (granted, tokens, granted) if previous is None else previous.outcome
    split: Any = kernels.split_rows

    def work(part: int) -> tuple[int, int]:
        status, row = split(
            *(rows.indptr, rows.indices, rows.values, reservation, *bounds[part]),
            *(tokens, granted, loads[part]),
            *(previous is not None, old.indptr, old.indices, old.values, *last),
        )
        return int(status), int(row)

    answers = _run(work, len(bounds))
    for status, row in answers:
        if status == kernels.BAD_ORDER:
            return _split(_put_in_order(rows, row), capacity, reservation, previous, threads)
        if status != kernels.FINE:
            raise _explain_bad_row(status, rows, row)
    if len(bounds) > 1 and loads.sum(dtype=np.float64) > kernels.TOTAL_MAX:
        raise _explain_bad_row(kernels.BAD_TOTAL, rows, tenants - 1)
    return rows, tokens, granted, loads.sum(axis=0) - capacity


def _put_in_order(rows: Rows, row: int) -> Rows:
    """Sort each row's cells by server and add up cells of the same server."""
    if rows.indices.size and int(rows.indices.max()) >= rows.shape[1]:
        raise UsageError(
            f"demand row {row} names server {rows.indices.max()}: its columns go up to {rows.shape[1] - 1}"
        )
    tidy = rows.express(rows.values)
    tidy.sum_duplicates()
    return read_rows("demand", tidy)


def _explain_bad_row(status: int, rows: Rows, row: int) -> UsageError:
    first, last = int(rows.indptr[row]), int(rows.indptr[row + 1])
    values = rows.values[first:last]
    if status == kernels.BAD_VALUE:
        at = int(np.flatnonzero((values < 0) | (values > kernels.VALUE_MAX))[0])
        server = int(rows.indices[first + at])
        return UsageError(
            f"demand of tenant {row} on server {server} is {values[at]}: pass whole numbers from 0 to 2**53"
        )
    return UsageError(
        f"the tokens up to tenant {row} add up to more than 2**62: "
        "count in a larger unit, or pass smaller demands"
    )


# --- shifting ----------------------------------------------------------------------------------


def _shift(
    indptr: npt.NDArray[np.uint64],
    indices: npt.NDArray[np.uint32],
    demand: Whole,
    tokens: Whole,
    granted: Whole,
    excess: Whole,
    threads: int = 1,
) -> None:
    """Algorithm 5: shift paths in order of length, until there are none."""
    if not _is_unbalanced(excess):
        return
    cells = (indptr, indices, demand, tokens)
    if threads > 1:
        _shift_in_parts(cells, granted, excess, threads)
    kernels.shift_direct(*cells, granted, excess, 0, granted.size)
    if not _is_unbalanced(excess):
        return
    holding, spare = kernels.count_slots(indices, demand, tokens, excess)
    if holding == 0 or spare == 0:
        return
    # Rooted at the side with fewer ways out, the search is over sooner.
    back = bool(spare < holding)
    reached = (excess < 0 if back else excess > 0).astype(np.uint8)
    chosen = np.zeros(granted.size, np.uint8)
    rows = np.empty(granted.size, np.uint32)
    count, quota = 0, _FIRST_QUOTA
    while _is_unbalanced(excess):
        before = reached.copy()
        found = kernels.select_rows(*cells, back, reached, quota, chosen, rows, count)
        if found == count:
            return
        count = found
        if count > granted.size * _WHOLE_GRAPH:
            chosen[:] = 1
            rows = np.arange(granted.size, dtype=np.uint32)
            count = granted.size
        kernels.shift_along_paths(*cells, back, rows[:count], excess, reached)
        if (reached == before).all():
            # Every row that leads out of these servers was in the search, and it found no more.
            return
        quota *= _QUOTA_GROWTH


def _is_unbalanced(excess: Whole) -> bool:
    over, under = kernels.sum_excess(excess)
    return bool(over > 0 and under > 0)


def _shift_in_parts(cells: tuple[Any, ...], granted: Whole, excess: Whole, threads: int) -> None:
    """Direct shifts by several threads, each over its own rows with its part of every server's
    excess. What they leave is the next pass's work."""
    bounds = _share_rows(granted.size, threads)
    parts = np.empty((len(bounds), excess.size), np.int64)
    parts[:] = np.sign(excess) * (np.abs(excess) // len(bounds))
    parts[0] += excess - parts.sum(axis=0)

    def work(part: int) -> None:
        shift: Any = kernels.shift_direct
        shift(*cells, granted, parts[part], *bounds[part])

    _run(work, len(bounds))
    excess[:] = parts.sum(axis=0)


def _shift_top(rows: Rows, tokens: Whole, granted: Whole, excess: Whole, top: int) -> None:
    """Section III-C2: shift only over the cells that their servers consider."""
    kept = _consider_top(rows, tokens, top)
    cells = np.flatnonzero(kept)
    before = np.concatenate(([0], np.cumsum(kept)))
    part = tokens[cells]
    indptr = before[rows.indptr.astype(np.int64)].astype(np.uint64)
    _shift(indptr, rows.indices[cells], rows.values[cells], part, granted, excess)
    tokens[cells] = part


def _consider_top(rows: Rows, tokens: Whole, top: int) -> npt.NDArray[np.bool_]:
    """For each server its `top` cells by tokens and its `top` cells by spare demand."""
    kept = np.zeros(tokens.size, np.bool_)
    order = np.argsort(rows.indices, kind="stable")
    columns = np.searchsorted(rows.indices[order], np.arange(rows.shape[1] + 1))
    for start, end in pairwise(columns):
        cells = order[start:end]
        few = max(cells.size - top, 0)
        for amounts in (tokens[cells], rows.values[cells] - tokens[cells]):
            kept[cells[np.argpartition(amounts, few)[few:] if few else slice(None)]] = True
    return kept


# --- parts -------------------------------------------------------------------------------------


def _share_rows(tenants: int, threads: int) -> list[tuple[int, int]]:
    parts = max(1, min(threads, tenants))
    edges = [tenants * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))


def _run(work: Any, parts: int) -> list[Any]:
    if parts == 1:
        return [work(0)]
    return list(_threads(parts).map(work, range(parts)))


@lru_cache(maxsize=2)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="bursar-allocate")


def _serve_evenly(held: Whole, capacity: int) -> Whole:
    """What is served of each tenant's tokens when the server goes round and gives one to each
    that still has some, until its capacity is used up; the last round ends where it ends."""
    ordered = np.sort(held)
    below = np.concatenate(([0], np.cumsum(ordered)[:-1]))
    sharers = held.size - np.arange(held.size)
    full_rounds = int(np.searchsorted(below + ordered * sharers, capacity, side="right"))
    level = (capacity - int(below[full_rounds])) // int(sharers[full_rounds])
    rest = capacity - int(below[full_rounds]) - level * int(sharers[full_rounds])
    served = np.minimum(held, level)
    served[np.flatnonzero(held > level)[:rest]] += 1
    return served
