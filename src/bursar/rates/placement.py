"""Where the tokens should be: the reports of one moment in, targets out. Nothing that safety
rests on: the controller's book checks every target against the limits.

A tenant's tokens in a period are its limit. What it has dispatched stays where it was; of the
rest, first the unfulfilled reservation is placed where it can be consumed (section III-B), then
as much of the limit as demand can use on the capacity that is left (section III-D), gathered so that
the requests that wait can go whole (`fronts`). What nobody
seems to need yet is spread over the servers, so that a tenant that begins to send
need not wait for the next interval: evenly where nothing was seen of it, which takes one number for
all of them, and by capacity where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bursar.allocation.allowances import UNLIMITED, Allowances, allocate_allowances
from bursar.allocation.matrix import Rows
from bursar.rates.capacity import AHEAD_NS, BEHIND_NS
from bursar.rates.cells import Cells, add_rows, arrange, list_seen
from bursar.rates.columns import UNNAMED
from bursar.rates.fronts import gather
from bursar.rates.learnt import UNSEEN_RATE
from bursar.rates.messages import UNBOUNDED
from bursar.rates.roll import NO_TERMS
from bursar.rates.views import NO_TARGETS, Picture, ServerView, Targets
from bursar.rates.views import Rows as TargetRows
from bursar.world import SECOND_NS

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

KEPT_FREE = (0.2, 0.1, 0.05, 0.02, 0.0)
"""The part of a period that reservations are not planned into: the first that lets all of them fit,
else none. A reservation planned for the last moment of a full server is missed when demand moves
late, or by the time between two periods, or when a busy machine wakes late; and the tenant may have
no other server. Done early, there is time to make up for all that."""

GROWTH = 4
"""A queue that is never empty wants as much as its server can do, but no more than so many times what is seen
of it: more than that is not sent in an interval. (Without this a tenant that has few requests at a second
server, where its pace made four of them wait, had half of its tokens moved there, its pace with them, and got
286 of a reservation of 300.) Whoever sends one request after the other is seen to want more each interval."""

LATE_S = (BEHIND_NS + AHEAD_NS) / SECOND_NS
"""How much more than its capacity in the time that is left a server may still serve: what it is behind
with, and what it may do ahead."""


class Placement:
    """Targets for a picture. Keeps what servers last said of capacities that the policy does not give."""

    def __init__(self, capacities: Mapping[str, float | None]) -> None:
        """`capacities` in tokens a second, None where the server finds out."""
        self._given: dict[str, float | None] = {}
        self._learnt: dict[str, float] = {}
        self.set_capacities(capacities)
        self.shortfall: Mapping[str, int] = {}

    def set_capacities(self, capacities: Mapping[str, float | None]) -> None:
        """Servers came or went, or another capacity is given. What was learnt of those that stay, stays."""
        self._given = dict(capacities)
        self._learnt = {name: rate for name, rate in self._learnt.items() if name in capacities}

    def capacity_rate(self, server: str) -> float:
        """Tokens a second, as given or as learnt."""
        given = self._given.get(server)
        return self._learnt.get(server, UNSEEN_RATE) if given is None else given

    def __call__(self, picture: Picture) -> Placing:
        """Begun, for somebody to go on with."""
        return Placing(self, picture)

    def look_at(self, view: ServerView) -> float:
        """What a server can do, by what it has said too."""
        if view.report.capacity:
            self._learnt[view.name] = view.report.capacity
        return self.capacity_rate(view.name)

    def is_given(self, server: str) -> bool:
        """Whether the policy says what the server can do."""
        return bool(self._given.get(server))


class Placing:
    """One placement under way, a few milliseconds at a time where there are thousands of tenants."""

    def __init__(self, placement: Placement, picture: Picture) -> None:
        self._placement = placement
        self._picture = picture
        steps = [self._see, self._arrange, self._allocate, self._share, self._pace]
        self._steps = steps if picture.servers else []
        self._targets = NO_TARGETS

    def finish(self) -> Targets:
        """All at once."""
        while (targets := self.go_on()) is None:
            continue
        return targets

    def go_on(self) -> Targets | None:
        """The next step; the targets once it was the last."""
        if self._steps:
            self._steps.pop(0)()
        return None if self._steps else self._targets

    def _see(self) -> None:
        picture, servers = self._picture, self._picture.servers
        self._rates = np.array([self._placement.look_at(view) for view in servers])
        self._given = np.array([self._placement.is_given(view.name) for view in servers])
        self._capacity = (self._rates * picture.time_left_ns / 1e9).astype(np.int64)
        self._tables = list_seen(picture)

    def _arrange(self) -> None:
        picture = self._picture
        self._cells = cells = arrange(self._tables, picture)
        self._unlimited = picture.limits >= UNBOUNDED
        self._served = add_rows(cells, cells.dispatched)
        self._left = _find_left(picture, self._served, self._unlimited)
        self._demand = _estimate(cells, self._capacity, self._left)

    def _allocate(self) -> None:
        picture = self._picture
        wanted = np.where(picture.named, np.maximum(picture.reservations - self._served, 0), 0)
        self._placed = self._allocate_early(wanted)
        short = self._placed.reserved.shortfall
        named = np.flatnonzero(short).tolist()
        self._placement.shortfall = {picture.names[number]: int(short[number]) for number in named}

    def _allocate_early(self, wanted: Whole) -> Allowances:
        size = (self._left.size, self._capacity.size)
        cells = self._cells
        places = (cells.starts.astype(np.uint64), cells.server.astype(np.uint32))
        rows = Rows(size, *places, self._demand, Rows)
        for part in KEPT_FREE:
            kept: Whole = (part * self._picture.period_ns / 1e9 * self._rates).astype(np.int64)
            placed = allocate_allowances(rows, np.maximum(self._capacity - kept, 0), wanted, self._left)
            if not placed.reserved.overloaded.any():
                break
        return placed

    def _share(self) -> None:
        picture, cells = self._picture, self._cells
        priority: Whole = self._placed.priority.values.copy()
        unlimited = self._unlimited[cells.tenant]
        useful = np.where(unlimited, 0, self._placed.allowance.values)
        left = np.where(self._unlimited, 0, self._left)
        spare = left - add_rows(cells, useful)
        useful -= self._beyond_capacity(useful, priority)
        sharing = _find_sharing(picture, cells, np.maximum(self._rates, 1e-9))
        levels, shares = sharing.spread(spare, picture.before)
        useful += shares
        self.gather(useful, priority, levels, cells, np.where(unlimited, 0, cells.front), left)
        self._sharing, self._useful, self._levels, self._priority = sharing, useful, levels, priority

    def _pace(self) -> None:
        picture, cells, useful = self._picture, self._cells, self._useful
        paces, row_paces = _find_paces(picture, cells, self._sharing, useful, self._levels)
        levels = np.where(self._unlimited, UNBOUNDED, self._levels)
        allowances = np.where(self._unlimited[cells.tenant], UNBOUNDED, cells.dispatched + useful)
        of_rows = (allowances, cells.dispatched + self._priority, row_paces)
        self._targets = _make_targets(picture, cells, (levels, paces), of_rows)

    gather = staticmethod(gather)

    def _beyond_capacity(self, useful: Whole, priority: Whole) -> Whole:
        """Tokens without priority that their servers cannot serve any more: the controller keeps them
        in hand, and has them at once when the tenant turns to other servers. None in the last round
        of a period, after which nobody could have them; and none where the capacity is learnt: a
        server is seen to be faster only if it has tokens."""
        if self._picture.time_left_ns <= self._picture.interval_ns:
            return np.zeros_like(useful)
        server, count = self._cells.server, self._capacity.size
        rest = np.maximum(useful - priority, 0)
        most = self._capacity + LATE_S * np.where(self._given, self._rates, np.inf)
        beyond = np.maximum(np.bincount(server, useful, count) - most, 0.0)
        part = np.minimum(beyond / np.maximum(np.bincount(server, rest, count), 1), 1.0)
        held: Whole = (rest * part[server]).astype(np.int64)
        return held


def _find_left(picture: Picture, served: Whole, unlimited: Flags) -> Whole:
    """What each tenant may still use."""
    limits = np.where(picture.named, np.maximum(picture.limits, 0), 0)
    left = np.maximum(limits - served - np.minimum(picture.held, limits), 0)
    return np.where(unlimited, UNLIMITED, left)


def _estimate(cells: Cells, capacity: Whole, left: Whole) -> Whole:
    """The demand, by cell. A tenant that waits at a server where nothing more arrives, while
    elsewhere it does, has turned to those: what it left behind is what it still wants there. And nobody
    wants more than it may have: else a queue of a few requests has next to nothing beside one that takes
    whatever there is."""
    arrived = add_rows(cells, cells.arrived)
    quiet = (cells.arrived == 0) & (arrived[cells.tenant] > 0)
    most = np.minimum(capacity[cells.server], left[cells.tenant])
    backlogged = (cells.backlogged > 0) & ~quiet
    hungry = np.maximum(cells.expected, np.minimum(most, GROWTH * cells.expected))
    wanted = np.where(backlogged, hungry, cells.expected)
    return _raise_stalled(cells, wanted, most, left, quiet)


def _raise_stalled(cells: Cells, wanted: Whole, most: Whole, left: Whole, quiet: Flags) -> Whole:
    """Whoever sends a request only when the last one was answered sends none where none goes, whether it
    turned away or not. So where nothing went for an interval, what waits there is to go: tokens are shared
    out in the proportion of demands, and beside others that want all there are it would have next to none,
    for as long as these others have arrivals."""
    share = add_rows(cells, wanted) / np.maximum(left, 1)
    raised = np.minimum(most, wanted * np.maximum(share, 1.0)[cells.tenant])
    found: Whole = np.where(quiet & (cells.stalled > 0), raised, wanted).astype(np.int64)
    return np.maximum(found, wanted)


class Sharing(NamedTuple):
    """How amounts of each tenant are spread over its servers: `elsewhere` is how many of them are in no cell
    of it, `of` how many there are, and `ends` what part of what the cells share those up to this one have."""

    cells: Cells
    elsewhere: Whole
    of: int
    ends: Real

    def spread(self, amounts: Whole, before: Whole | None = None) -> tuple[Whole, Whole]:
        """At each server elsewhere; and by cell. Exact sums. Where it is elsewhere it stays what it was
        `before`, if that is about right, so that nothing need be moved."""
        even = np.where(self.elsewhere > 0, amounts // self.of, 0)
        if before is not None:
            even = np.where((before >= 0) & (before <= even) & (even <= 2 * before + 1), before, even)
        rest = amounts - even * self.elsewhere
        ends = np.floor(rest[self.cells.tenant] * self.ends + 0.5).astype(np.int64)
        shares = ends.copy()
        shares[1:] -= np.where(self.cells.first[1:], 0, ends[:-1])
        return even, shares


def _find_sharing(picture: Picture, cells: Cells, weights: Real) -> Sharing:
    heavy = weights[cells.server]
    for number, servers in picture.bound.items():  # who may not use all has a cell wherever it may
        where = slice(int(cells.starts[number]), int(cells.starts[number + 1]))
        may = [picture.servers[server].name in servers for server in cells.server[where].tolist()]
        heavy[where] *= may
    up_to = np.concatenate([[0.0], np.cumsum(heavy)])
    begun, total = up_to[cells.starts[:-1]], up_to[cells.starts[1:]] - up_to[cells.starts[:-1]]
    ends = np.zeros(heavy.size)
    np.divide(up_to[1:] - begun[cells.tenant], total[cells.tenant], out=ends, where=total[cells.tenant] > 0)
    last = np.append(cells.first[1:], True)[: ends.size]
    ends = np.where(last & (total[cells.tenant] > 0), 1.0, np.minimum(ends, 1.0))
    elsewhere = len(picture.servers) - np.diff(cells.starts)
    elsewhere[list(picture.bound)] = 0
    return Sharing(cells, elsewhere, len(picture.servers), ends)


def _find_paces(
    picture: Picture, cells: Cells, sharing: Sharing, useful: Whole, levels: Whole
) -> tuple[Whole, Whole]:
    """Each server's share of a tenant's limit, as a pace: by the tokens that are left to be used
    there, so that all of them can be used up by the end, and where there are none by capacity. The
    shares add up to the limit at most; servers that are not seen keep theirs."""
    total = add_rows(cells, useful) + levels * sharing.elsewhere + picture.held
    even, shares = sharing.spread(picture.paces)
    each = picture.paces / np.maximum(total, 1)
    paces = np.where(total > 0, levels * each, even)
    row_paces = np.where(total[cells.tenant] > 0, useful * each[cells.tenant], shares)
    limited = (picture.limits < UNBOUNDED) & picture.named
    whole: Whole = np.where(limited, np.maximum(paces, 1.0), 0).astype(np.int64)
    of_rows: Whole = np.where(limited[cells.tenant], np.maximum(row_paces, 1.0), 0).astype(np.int64)
    return whole, of_rows


def _make_targets(
    picture: Picture, cells: Cells, everywhere: tuple[Whole, Whole], of_rows: tuple[Whole, Whole, Whole]
) -> Targets:
    table = np.empty((4, cells.order.size), np.int64)
    table[0] = cells.numbers
    for column, values in zip(table[1:], of_rows, strict=True):
        column[cells.order] = values
    sizes = np.bincount(cells.server, minlength=len(picture.servers))
    edges = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    known = picture.named & (picture.limits != NO_TERMS)
    levels, paces = everywhere
    rows = {
        view.name: TargetRows(*table[:, edges[k] : edges[k + 1]]) for k, view in enumerate(picture.servers)
    }
    return Targets(picture.names, np.where(known, levels, UNNAMED), np.where(known, paces, 0), rows)
