"""The paper's allocation as it is written: algorithms 2 to 5, in plain NumPy.

For tests, and for the experiments that measure what the paper measured: the dense map of movable
tokens, its updates, the threads that share them and the approximation by the top M tenants. It
is exact and slow; `allocation.allocate` is what bursar runs.

Names follow the paper: TM[j][k] holds, for each tenant, the tokens that can move from server j to
server k without exceeding the tenant's demand there; TMS[j][k] is their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]

_PRODUCT_MAX = 2**30


def split_in_proportion(demand: Whole, reservation: Whole) -> Whole:
    """Algorithm 3, InitialTokenAllocation, in whole tokens: the running sums are rounded."""
    totals = demand.sum(axis=1)
    granted = np.minimum(totals, reservation)
    fits = totals.max(initial=0) < _PRODUCT_MAX and granted.max(initial=0) < _PRODUCT_MAX
    # Where a product would not fit a word, Python's own whole numbers take over.
    upto, totals, granted = (
        numbers if fits else numbers.astype(object) for numbers in (demand.cumsum(axis=1), totals, granted)
    )
    rounded = (2 * upto * granted[:, None] + totals[:, None]) // np.maximum(2 * totals, 1)[:, None]
    tokens: Whole = np.diff(rounded.astype(np.int64), axis=1, prepend=0)
    return tokens


@dataclass
class Shifter:
    """Algorithms 4 and 5 and the state they work on; use it in a `with` statement.

    threads  share the building of the map, and each update of it, by servers (III-C1)
    top      each server considers only the tenants with the most tokens on it and those with
             the most spare demand on it, so many of each (III-C2); None: all
    """

    demand: Whole
    capacity: Whole
    reservation: Whole
    threads: int = 1
    top: int | None = None
    tokens: Whole = field(init=False)
    load: Whole = field(init=False)
    movable: Whole = field(init=False)
    sums: Whole = field(init=False)
    shifts: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None
        self.tokens = split_in_proportion(self.demand, self.reservation)
        self.load = self.tokens.sum(axis=0)
        self._considered = _consider_top(self.tokens, self.demand - self.tokens, self.top)
        self.make_map()

    def __enter__(self) -> Shifter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    @property
    def effective(self) -> int:
        """Phi."""
        return int(np.minimum(self.load, self.capacity).sum())

    def make_map(self) -> None:
        """Algorithm 4, MakeTokenMovementMap: TM as servers x servers x tenants, and TMS."""
        tenants, servers = self.demand.shape
        self.movable = np.empty((servers, servers, tenants), np.int64)
        self.sums = np.empty((servers, servers), np.int64)
        held, spare = self._find_movable(np.arange(tenants))

        def work(part: Whole) -> None:
            for j in part:
                np.minimum(held[j], spare, out=self.movable[j])
                self.movable[j, j] = 0
                self.sums[j] = self.movable[j].sum(axis=1)

        self._share(work)

    def shift(self) -> None:
        """Algorithm 5, ProgressiveShifting: paths in order of length."""
        for longest in range(1, self.capacity.size):
            for source in np.flatnonzero(self.load > self.capacity):
                while self.load[source] > self.capacity[source]:
                    path = self.find_path(int(source), longest)
                    if path is None:
                        break
                    self.shift_along(path)

    def find_path(self, source: int, longest: int) -> list[int] | None:
        """Breadth first from an overloaded server to the nearest underloaded one."""
        came_from = np.full(self.capacity.size, -1)
        came_from[source] = source
        edge = np.array([source])
        for _ in range(longest):
            leads = (self.sums[edge] > 0) & (came_from < 0)
            found = np.flatnonzero(leads.any(axis=0))
            if found.size == 0:
                return None
            came_from[found] = edge[leads[:, found].argmax(axis=0)]
            targets = found[self.load[found] < self.capacity[found]]
            if targets.size:
                return _trace_back(came_from, int(targets[0]))
            edge = found
        return None

    def shift_along(self, path: list[int]) -> None:
        """Move Omega tokens over each step of the path, and bring the map up to date."""
        first, last = path[0], path[-1]
        steps = list(pairwise(path))
        omega = min(self.load[first] - self.capacity[first], self.capacity[last] - self.load[last])
        omega = min(omega, *(self.sums[step] for step in steps))
        for j, k in steps:
            self._move(j, k, int(omega))
        self.load[first] -= omega
        self.load[last] += omega
        self.shifts += 1

    def _move(self, j: int, k: int, amount: int) -> None:
        moved = np.diff(np.minimum(np.cumsum(self.movable[j, k]), amount), prepend=0)
        tenants = np.flatnonzero(moved)
        self.tokens[tenants, j] -= moved[tenants]
        self.tokens[tenants, k] += moved[tenants]
        self._update_map(j, k, tenants)

    def _update_map(self, j: int, k: int, tenants: Whole) -> None:
        """TM of these tenants on all edges into and out of servers j and k."""
        held, spare = self._find_movable(tenants)

        def renew(sources: Whole, targets: Whole) -> None:
            edges = np.ix_(sources, targets)
            cells = np.ix_(sources, targets, tenants)
            fresh = np.minimum(held[sources][:, None], spare[targets][None])
            self.sums[edges] += (fresh - self.movable[cells]).sum(axis=2)
            self.movable[cells] = fresh

        def work(part: Whole) -> None:
            others = part[(part != j) & (part != k)]
            for end in (j, k):
                # An edge between j and k belongs to the part of the server it leaves.
                renew(part[part != end], np.array([end]))
                renew(np.array([end]), others)

        self._share(work)

    def _find_movable(self, tenants: Whole) -> tuple[Whole, Whole]:
        """(tokens held, spare demand) of these tenants, servers x tenants, as far as considered."""
        considered = self._considered[tenants]
        held = self.tokens[tenants] * considered
        spare = self.demand[tenants] * considered - held
        return np.ascontiguousarray(held.T), np.ascontiguousarray(spare.T)

    def _share(self, work: Callable[[Whole], None]) -> None:
        servers = np.arange(self.capacity.size)
        if self._pool is None:
            work(servers)
        else:
            list(self._pool.map(work, np.array_split(servers, self.threads)))


def _consider_top(tokens: Whole, spare: Whole, top: int | None) -> npt.NDArray[np.bool_]:
    """For each server (column) the `top` tenants by tokens and the `top` by spare demand."""
    tenants = tokens.shape[0]
    if top is None or top >= tenants:
        return np.ones(tokens.shape, np.bool_)
    marks = np.zeros(tokens.shape, np.bool_)
    for amounts in (tokens, spare):
        largest = np.argpartition(amounts, tenants - top, axis=0)[tenants - top :]
        np.put_along_axis(marks, largest, True, axis=0)
    return marks


def _trace_back(came_from: Whole, k: int) -> list[int]:
    path = [k]
    while came_from[path[-1]] != path[-1]:
        path.append(int(came_from[path[-1]]))
    return path[::-1]


def allocate_as_written(
    demand: Whole, capacity: Whole, reservation: Whole, *, threads: int = 1, top: int | None = None
) -> tuple[Whole, int]:
    """Algorithm 2, the whole of it: (tokens, Phi)."""
    with Shifter(demand, capacity, reservation, threads, top) as shifter:
        shifter.shift()
        return shifter.tokens, shifter.effective
