"""One reservation over several data nodes: where its tokens are in the next interval.

Each node is a pool of its own, with a monitor of its own, whose periods are *intervals* of the period in
which the reservations hold. Whoever leads a node sees in the words of all nodes what each tenant used
where and where its requests wait, and places every reservation anew for each interval
(`bursar.allocation`); of that it dispatches its own node's part. Nobody needs to agree with anybody: all
of them look at the same words, and a node never promises more than its own capacity, wherever the others
think a reservation is. So what is always true of one node is true of several; that a reservation is met
rests on all seeing about the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bursar.allocation.reservations import allocate
from bursar.pools.layout import Names, Report, tag_of, unpack, unpack_report
from bursar.world import Read

STARTER_PART = 5
"""Of a reservation that nobody asks for one part in so many is kept, over all nodes, for first requests."""

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


class Placing:
    """What one monitor knows of all nodes of its pool. Pure bookkeeping: time is an argument.

    `due` is what each tenant is behind with, up to a period's reservation: what was lost while its requests
    turned to another node is made up for, as soon as there is room. A tenant that waits nowhere is behind
    with nothing. No node is given more than its capacity."""

    def __init__(
        self, nodes: Mapping[str, int], reservations: Mapping[str, int], *, interval_ns: int, period_ns: int
    ) -> None:
        """`nodes`: the pools' names, and what each can do in an interval; `reservations`: tokens a period."""
        self.interval_ns = interval_ns
        self.period_ns = period_ns
        self._names = {node: Names(node) for node in nodes}
        self._capacity = np.array(list(nodes.values()), np.int64)
        self._looked_at: int | None = None
        self._periods = [0] * len(nodes)
        self._tenants: list[str] = []
        self.set_reservations(reservations)

    def set_reservations(self, reservations: Mapping[str, int]) -> None:
        self._tenants = list(reservations)
        self._reserved = np.array(list(reservations.values()), np.float64)
        shape = (len(self._tenants), len(self._names))
        self._spent = np.zeros(shape, np.int64)
        self._recent: Real = np.zeros(shape)
        self._waiting = np.zeros(shape, np.bool_)
        self.due: Real = np.zeros(shape[0])

    def set_capacity(self, node: str, capacity: int) -> None:
        self._capacity[list(self._names).index(node)] = capacity

    # -- looking

    def operations(self) -> list[Read]:
        """What is to be read of all nodes; `receive` takes the values in this order."""
        asked: list[Read] = []
        for names in self._names.values():
            asked.append(Read(names.ceiling))
            for tenant in self._tenants:
                asked += [Read(names.report(tenant, 0)), Read(names.report(tenant, 1))]
        return asked

    def receive(self, now: int, values: Sequence[int]) -> None:
        passed_ns = 0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        used = np.zeros_like(self._spent)
        step = 1 + 2 * len(self._tenants)
        for column in range(len(self._names)):
            self._look_at(column, values[column * step : (column + 1) * step], used[:, column])
        kept = max(0.0, 1 - 2 * passed_ns / self.interval_ns)
        self._recent = self._recent * kept + used
        self.due += self._reserved * passed_ns / self.period_ns - used.sum(axis=1)
        base = self._base()
        self.due = np.where(self._waiting.any(axis=1), np.clip(self.due, -base, self._reserved), 0.0)

    def _look_at(self, column: int, values: Sequence[int], used: Whole) -> None:
        period, before = unpack(values[0]).period, self._periods[column]
        self._periods[column] = period
        for row in range(len(self._tenants)):
            words = values[1 + 2 * row], values[2 + 2 * row]
            present = _read_report(words[period & 1], period)
            last = _read_report(words[(period - 1) & 1], period - 1)
            spent = 0 if present is None else present.spent
            if before == period:
                used[row] = max(0, spent - int(self._spent[row, column]))
            elif before:
                # Of intervals that passed unseen in between nothing is known: the tenant is not charged.
                seen = int(self._spent[row, column]) if before == period - 1 else 0
                used[row] = spent + max(0, (0 if last is None else last.spent) - seen)
            self._spent[row, column] = spent
            told = last if present is None else present
            self._waiting[row, column] = told is not None and told.waiting

    # -- placing

    def _base(self) -> Real:
        return self._reserved * self.interval_ns / self.period_ns

    def place(self) -> dict[str, dict[str, int]]:
        """Tokens of the next interval, by node and tenant."""
        base = np.floor(self._base()).astype(np.int64)
        behind = np.floor(np.maximum(self.due, 0)).astype(np.int64)
        want = self._find_want(base + behind)
        placed = _fit(want, self._capacity, base)
        placed += _fit(want - placed, self._capacity - placed.sum(axis=0), behind)
        starters = np.minimum(base - np.minimum(placed.sum(axis=1), base), base // STARTER_PART)
        placed += self._spread(starters, self._capacity - placed.sum(axis=0))
        return {
            node: dict(zip(self._tenants, placed[:, column].tolist(), strict=True))
            for column, node in enumerate(self._names)
        }

    def _find_want(self, most: Whole) -> Whole:
        """Where a tenant's requests wait it wants all it is due; elsewhere as much as it used of late."""
        recent = np.ceil(2 * self._recent).astype(np.int64)
        return np.where(self._waiting, np.maximum(recent, most[:, None]), recent)

    @staticmethod
    def _spread(amounts: Whole, room: Whole) -> Whole:
        """By the room that nodes have, rounded down: never more than that."""
        part = np.maximum(room, 0) / max(1, int(np.maximum(room, 0).sum()))
        scale = min(1.0, int(np.maximum(room, 0).sum()) / max(1, int(amounts.sum())))
        return np.floor(amounts[:, None] * scale * part[None, :]).astype(np.int64)


def _read_report(word: int, period: int) -> Report | None:
    report = unpack_report(word)
    return report if report.tag == tag_of(period) and word else None


def _fit(want: Whole, capacity: Whole, due: Whole) -> Whole:
    """What is due, where it is wanted; of a node that cannot do all of it each tenant gets its part."""
    tokens: Whole = np.array(allocate(want, np.maximum(capacity, 0), due).tokens, np.int64)
    load = tokens.sum(axis=0)
    over = load > np.maximum(capacity, 0)
    part = np.where(over, np.maximum(capacity, 0) / np.maximum(load, 1), 1.0)
    return np.floor(tokens * part[None, :]).astype(np.int64)
