"""Where the tokens should be: the reports of one moment in, targets out. Nothing that safety
rests on: the controller's book checks every target against the limits.

A tenant's tokens in a period are its limit. What it has dispatched stays where it was; of the
rest, first the unfulfilled reservation is placed where it can be consumed (section III-B), then
as much of the limit as demand can use on the capacity that is left (section III-D), gathered so that
the requests that wait can go whole (`fronts`). What nobody
seems to need yet is spread over the servers by capacity, so that a tenant that begins to send
need not wait for the next interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bursar.allocation.allowances import UNLIMITED, Allowances, allocate_allowances
from bursar.allocation.matrix import VALUE_MAX
from bursar.estimate import estimate_demand
from bursar.rates.capacity import AHEAD_NS, BEHIND_NS
from bursar.rates.fronts import gather
from bursar.rates.learnt import UNSEEN_RATE
from bursar.rates.messages import UNBOUNDED
from bursar.rates.terms import Terms
from bursar.rates.views import Columns, Picture, ServerView, Targets
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
        self._tenants: list[str] = []
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

    def __call__(self, picture: Picture) -> Targets:
        if not picture.servers:
            return {}
        # One list from round to round, for as long as it is of the same tenants: columns are known by it.
        if self._tenants != (tenants := list(picture.terms)):
            self._tenants = tenants
        seen = _tabulate(picture, self._tenants)
        capacity = np.array([self._capacity_left(view, picture) for view in picture.servers], np.int64)
        dispatched = seen.table(seen.dispatched)
        left = seen.find_left(dispatched.sum(axis=1))
        demand = _estimate(seen, picture, capacity, left)
        wanted = np.maximum(seen.reservation - dispatched.sum(axis=1), 0)
        placed = self._place(picture, demand, capacity, wanted, left)
        short = placed.reserved.shortfall
        self.shortfall = {seen.tenants[row]: int(short[row]) for row in np.flatnonzero(short)}
        useful = np.where(placed.unlimited[:, None], 0, placed.allowance)
        spare = np.where(placed.unlimited, 0, left - useful.sum(axis=1))
        useful -= self._beyond_capacity(picture, useful, placed.priority, capacity)
        shares = self._find_shares(seen, picture)
        useful += _spread(spare, shares)
        limited = np.where(placed.unlimited, 0, left)
        fronts = np.where(placed.unlimited[:, None], 0, seen.table(seen.front))
        priority: Whole = placed.priority.copy()
        gather(useful, priority, fronts, seen.table(seen.front_ns), limited)
        pace = _find_pace(seen, useful, shares)
        return _targets(seen, picture, dispatched + priority, dispatched + useful, pace)

    def _place(
        self, picture: Picture, demand: Whole, capacity: Whole, wanted: Whole, left: Whole
    ) -> Allowances:
        rates = np.array([self.capacity_rate(view.name) for view in picture.servers])
        for part in KEPT_FREE:
            kept: Whole = (part * picture.period_ns / 1e9 * rates).astype(np.int64)
            placed = allocate_allowances(demand, np.maximum(capacity - kept, 0), wanted, left)
            if not placed.reserved.shortfall.any():
                break
        return placed

    def _beyond_capacity(self, picture: Picture, useful: Whole, priority: Whole, capacity: Whole) -> Whole:
        """Tokens without priority that their servers cannot serve any more: the controller keeps them
        in hand, and has them at once when the tenant turns to other servers. None in the last round
        of a period, after which nobody could have them; and none where the capacity is learnt: a
        server is seen to be faster only if it has tokens."""
        if picture.time_left_ns <= picture.interval_ns:
            return np.zeros_like(useful)
        rest = np.maximum(useful - priority, 0)
        rates = np.array([self._given.get(view.name) or np.inf for view in picture.servers])
        most = capacity + LATE_S * rates
        beyond = np.maximum(useful.sum(axis=0) - most, 0.0)
        part = np.minimum(beyond / np.maximum(rest.sum(axis=0), 1), 1.0)
        held: Whole = (rest * part).astype(np.int64)
        return held

    def _capacity_left(self, view: ServerView, picture: Picture) -> int:
        if view.report.capacity:
            self._learnt[view.name] = view.report.capacity
        return int(self.capacity_rate(view.name) * picture.time_left_ns / 1e9)

    def _find_shares(self, seen: Seen, picture: Picture) -> Real:
        """Each tenant's servers by capacity: what part of its tokens the servers up to this one have."""
        rates = [max(self.capacity_rate(view.name), 1e-9) for view in picture.servers]
        names = [view.name for view in picture.servers]
        weights: Real = np.tile(np.array(rates, np.float64), (len(seen.tenants), 1))
        for row, where in seen.bound.items():
            weights[row] = [rate if name in where else 0.0 for name, rate in zip(names, rates, strict=True)]
        total = weights.sum(axis=1, keepdims=True)
        shares: Real = np.cumsum(weights, axis=1)
        np.divide(shares, total, out=shares, where=total > 0)
        return shares


class Seen(NamedTuple):
    """What a picture says, as columns: of each tenant; and of each cell, a tenant at a server (`tenant`,
    `server`), where anything was seen of it.

    pace    what each tenant goes through in a period at most, all servers together
    bound   the servers of those tenants that may not use all
    held    what each tenant may have at servers that are not in the picture
    expected   the demand until the end of the period, of a tenant that is not backlogged
    stalled    nothing of its queue went for an interval
    """

    tenants: list[str]
    limit: Whole
    reservation: Whole
    pace: Whole
    held: Whole
    bound: Mapping[int, tuple[str, ...]]
    servers: int
    tenant: Whole
    server: Whole
    dispatched: Whole
    arrived: Whole
    expected: Whole
    backlogged: Whole
    stalled: Whole
    front: Whole
    front_ns: Whole

    def table(self, column: Whole) -> Whole:
        """Tenants x servers."""
        table = np.zeros((len(self.tenants), self.servers), np.int64)
        table[self.tenant, self.server] = column
        return table

    def find_left(self, served: Whole) -> Whole:
        """What each tenant may still use."""
        left = np.maximum(self.limit - served - np.minimum(self.held, self.limit), 0)
        return np.where(self.limit == UNLIMITED, UNLIMITED, left)


def _tabulate(picture: Picture, tenants: list[str]) -> Seen:
    """Of what was dispatched in this period, a report from the one before tells nothing."""
    terms = list(picture.terms.values())
    position = {tenant: index for index, tenant in enumerate(tenants)}
    cells = np.concatenate(
        [_list_cells(view, column, picture, position) for column, view in enumerate(picture.servers)]
    )
    return Seen(
        tenants,
        np.array([UNLIMITED if each.limit is None else each.limit for each in terms], np.int64),
        np.array([each.reservation for each in terms], np.int64),
        np.array([_find_whole_pace(each) for each in terms], np.int64),
        np.array([min(picture.held.get(tenant, 0), UNBOUNDED) for tenant in tenants], np.int64),
        {row: each.servers for row, each in enumerate(terms) if each.servers is not None},
        len(picture.servers),
        *cells.T,
    )


def _find_whole_pace(terms: Terms) -> int:
    return (terms.limit or 0) if terms.pace is None else terms.pace


def _list_cells(view: ServerView, column: int, picture: Picture, position: Mapping[str, int]) -> Whole:
    """In the order of `Seen`; of tenants of which nothing was seen there is none."""
    present = view.report.period == picture.period
    rows = [row for row in view.list_asking() if row.tenant in position]
    cells = np.empty((len(rows), 9), np.int64)
    cells[:, 0] = [position[row.tenant] for row in rows]
    cells[:, 1] = column
    cells[:, 2] = [row.dispatched for row in rows] if present else 0
    cells[:, 3] = [row.arrived for row in rows]
    seen_ns, left_ns = view.seen_ns, picture.time_left_ns
    pending = np.array([row.pending for row in rows], np.int64)
    if int(cells[:, 3].max(initial=0)) <= (2**62 - seen_ns) // max(1, 2 * left_ns):
        arriving = extrapolate_all(cells[:, 3], seen_ns, left_ns)
        cells[:, 4] = np.minimum(pending + arriving, VALUE_MAX)
    else:  # more than 64 bits hold
        demands = (estimate_demand(row.pending, row.arrived, seen_ns, left_ns) for row in rows)
        cells[:, 4] = [min(demand, VALUE_MAX) for demand in demands]
    cells[:, 5] = [row.backlogged for row in rows]
    cells[:, 6] = [row.front_ns >= picture.interval_ns for row in rows]
    cells[:, 7] = [row.front for row in rows]
    cells[:, 8] = [row.front_ns for row in rows]
    return cells


def extrapolate_all(counts: Whole, seen_ns: int, left_ns: int) -> Whole:
    """`extrapolate`, of a column of small enough counts."""
    if seen_ns <= 0 or left_ns <= 0:
        return np.zeros_like(counts)
    found: Whole = (2 * counts * left_ns + seen_ns) // (2 * seen_ns)
    return found


def _estimate(seen: Seen, picture: Picture, capacity: Whole, left: Whole) -> Whole:
    """The demand, tenants x servers. A tenant that waits at a server where nothing more arrives, while
    elsewhere it does, has turned to those: what it left behind is what it still wants there. And nobody
    wants more than it may have: else a queue of a few requests has next to nothing beside one that takes
    whatever there is."""
    arrived: Whole = seen.table(seen.arrived).sum(axis=1)
    quiet = (seen.arrived == 0) & (arrived[seen.tenant] > 0)
    most = np.minimum(capacity[seen.server], left[seen.tenant])
    backlogged = (seen.backlogged > 0) & ~quiet
    hungry = np.maximum(seen.expected, np.minimum(most, GROWTH * seen.expected))
    wanted = np.where(backlogged, hungry, seen.expected)
    return seen.table(_raise_stalled(seen, wanted, most, left, quiet))


def _raise_stalled(seen: Seen, wanted: Whole, most: Whole, left: Whole, quiet: Flags) -> Whole:
    """Whoever sends a request only when the last one was answered sends none where none goes, whether it
    turned away or not. So where nothing went for an interval, what waits there is to go: tokens are shared
    out in the proportion of demands, and beside others that want all there are it would have next to none,
    for as long as these others have arrivals."""
    share = seen.table(wanted).sum(axis=1) / np.maximum(left, 1)
    raised = np.minimum(most, wanted * np.maximum(share, 1.0)[seen.tenant])
    found: Whole = np.where(quiet & (seen.stalled > 0), raised, wanted).astype(np.int64)
    return np.maximum(found, wanted)


def _spread(amounts: Whole, shares: Real) -> Whole:
    """Amounts over each tenant's servers, by cumulative rounding: exact sums."""
    ends = np.floor(amounts[:, None] * shares + 0.5).astype(np.int64)
    spread: Whole = np.diff(ends, axis=1, prepend=0)
    return spread


def _find_pace(seen: Seen, left: Whole, shares: Real) -> Whole:
    """Each server's share of a tenant's limit, as a pace: by the tokens that are left to be used
    there, so that all of them can be used up by the end, and where there are none by capacity. The
    shares add up to the limit at most; servers that are not seen keep theirs."""
    limits = seen.pace
    total = left.sum(axis=1) + seen.held
    pace = left * (limits / np.maximum(total, 1))[:, None]
    unplaced = np.flatnonzero(total <= 0)
    pace[unplaced] = _spread(limits[unplaced], shares[unplaced])
    whole: Whole = np.maximum(pace, 1.0).astype(np.int64)
    return whole


def _targets(seen: Seen, picture: Picture, priority: Whole, allowance: Whole, pace: Whole) -> Targets:
    unlimited = seen.limit == UNLIMITED
    allowance[unlimited], pace[unlimited] = UNBOUNDED, 0
    columns = [np.ascontiguousarray(table.T) for table in (allowance, priority, pace)]
    return {
        view.name: Columns(seen.tenants, (columns[0][place], columns[1][place], columns[2][place]))
        for place, view in enumerate(picture.servers)
    }
