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

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bursar.estimate import estimate_demand
from bursar.rates.allowances import UNLIMITED, Allowances, allocate_allowances
from bursar.rates.capacity import AHEAD_NS, BEHIND_NS
from bursar.rates.fronts import gather
from bursar.rates.learnt import UNSEEN_RATE
from bursar.rates.messages import UNBOUNDED
from bursar.rates.views import Picture, ServerView, Targets
from bursar.world import SECOND_NS

Whole = npt.NDArray[np.int64]

KEPT_FREE = (0.2, 0.1, 0.05, 0.02, 0.0)
"""The part of a period that reservations are not planned into: the first that lets all of them fit,
else none. A reservation planned for the last moment of a full server is missed when demand moves
late, or by the time between two periods, or when a busy machine wakes late; and the tenant may have
no other server. Done early, there is time to make up for all that."""

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
        self.demand: Mapping[str, Mapping[str, int]] = {}
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
        tenants = list(picture.terms)
        capacity = np.array([self._capacity_left(view, picture) for view in picture.servers], np.int64)
        dispatched = _tabulate(tenants, picture, "dispatched")
        served: Whole = dispatched.sum(axis=1)
        reservation = np.array([picture.terms[tenant].reservation for tenant in tenants], np.int64)
        left = _limit_left(tenants, picture, served)
        demand = self._demand(tenants, picture, capacity, left)
        wanted = np.maximum(reservation - served, 0)
        placed = self._place(picture, demand, capacity, wanted, left)
        self.shortfall = {t: int(n) for t, n in zip(tenants, placed.reserved.shortfall, strict=True) if n}
        useful = np.where(placed.unlimited[:, None], 0, placed.allowance)
        spare = np.where(placed.unlimited, 0, left - useful.sum(axis=1))
        useful -= self._beyond_capacity(picture, useful, placed.priority, capacity)
        useful += self._spread(tenants, picture, spare)
        limited = np.where(placed.unlimited, 0, left)
        fronts = np.where(placed.unlimited[:, None], 0, _tabulate(tenants, picture, "front"))
        priority: Whole = placed.priority.copy()
        gather(useful, priority, fronts, _tabulate(tenants, picture, "front_ns"), limited)
        pace = self._find_pace(tenants, picture, useful)
        return _targets(tenants, picture, dispatched + priority, dispatched + useful, pace)

    def _find_pace(self, tenants: Sequence[str], picture: Picture, left: Whole) -> Whole:
        """Each server's share of a tenant's limit, as a pace: by the tokens that are left to be used
        there, so that all of them can be used up by the end, and where there are none by capacity. The
        shares add up to the limit at most; servers that are not seen keep theirs."""
        limits = np.array([picture.terms[tenant].limit or 0 for tenant in tenants], np.int64)
        held = [min(picture.held.get(tenant, 0), UNBOUNDED) for tenant in tenants]
        total = left.sum(axis=1) + np.array(held, np.int64)
        by_tokens = left * (limits / np.maximum(total, 1))[:, None]
        shares = np.where(total[:, None] > 0, by_tokens, self._spread(tenants, picture, limits))
        pace: Whole = np.maximum(shares, 1.0).astype(np.int64)
        return pace

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

    def _demand(self, tenants: Sequence[str], picture: Picture, capacity: Whole, left: Whole) -> Whole:
        """A tenant that waits at a server where nothing more arrives, while elsewhere it does, has turned to
        those: what it left behind is what it still wants there. And nobody wants more than it may have:
        else a queue of a few requests has next to nothing beside one that takes whatever there is."""
        demand = np.zeros((len(tenants), len(picture.servers)), np.int64)
        arrived: Whole = _tabulate(tenants, picture, "arrived").sum(axis=1)
        position = {tenant: index for index, tenant in enumerate(tenants)}
        for column, view in enumerate(picture.servers):
            for row in view.rows.values():
                if row.tenant in position:
                    place = position[row.tenant]
                    demand[place, column] = estimate_demand(
                        row.pending,
                        row.arrived,
                        view.seen_ns,
                        picture.time_left_ns,
                        backlogged=row.backlogged and (row.arrived > 0 or not arrived[place]),
                        capacity_left=min(int(capacity[column]), int(left[place])),
                    )
        names = [view.name for view in picture.servers]
        self.demand = {
            tenant: dict(zip(names, map(int, demand[row]), strict=True)) for row, tenant in enumerate(tenants)
        }
        return demand

    def _spread(self, tenants: Sequence[str], picture: Picture, amounts: Whole) -> Whole:
        """Amounts over each tenant's servers by capacity, by cumulative rounding: exact sums."""
        rates = [max(self.capacity_rate(view.name), 1e-9) for view in picture.servers]
        names = [view.name for view in picture.servers]
        weights = np.zeros((len(tenants), len(names)))
        for row, tenant in enumerate(tenants):
            where = picture.terms[tenant].servers
            for column, name in enumerate(names):
                weights[row, column] = rates[column] if where is None or name in where else 0.0
        total = weights.sum(axis=1, keepdims=True)
        share = np.divide(np.cumsum(weights, axis=1), total, out=np.zeros_like(weights), where=total > 0)
        ends = np.floor(amounts[:, None] * share + 0.5).astype(np.int64)
        spread: Whole = np.diff(ends, axis=1, prepend=0)
        return spread


def _tabulate(tenants: Sequence[str], picture: Picture, column: str) -> Whole:
    """What servers report, tenants x servers. Of what was dispatched in this period, a report from the
    one before tells nothing."""
    table = np.zeros((len(tenants), len(picture.servers)), np.int64)
    position = {tenant: index for index, tenant in enumerate(tenants)}
    for place, view in enumerate(picture.servers):
        present = view.report.period == picture.period or column != "dispatched"
        for row in view.rows.values() if present else ():
            if row.tenant in position:
                table[position[row.tenant], place] = getattr(row, column)
    return table


def _limit_left(tenants: Sequence[str], picture: Picture, served: Whole) -> Whole:
    left = []
    for tenant, tokens in zip(tenants, served, strict=True):
        limit = picture.terms[tenant].limit
        taken = int(tokens) + picture.held.get(tenant, 0)
        left.append(UNLIMITED if limit is None else max(0, limit - taken))
    return np.array(left, np.int64)


def _targets(
    tenants: Sequence[str], picture: Picture, priority: Whole, allowance: Whole, pace: Whole
) -> Targets:
    targets: dict[str, dict[str, tuple[int, int, int]]] = {}
    for column, view in enumerate(picture.servers):
        targets[view.name] = {
            tenant: (UNBOUNDED, int(priority[row, column]), 0)
            if picture.terms[tenant].limit is None
            else (int(allowance[row, column]), int(priority[row, column]), int(pace[row, column]))
            for row, tenant in enumerate(tenants)
        }
    return targets
