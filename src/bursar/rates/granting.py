"""The grants of one round, made for all servers together: as much of the targets as the bounds allow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bursar.rates.columns import UNNAMED, pack
from bursar.rates.messages import UNBOUNDED, Allowances
from bursar.rates.roll import Roll
from bursar.rates.views import NO_ROWS, Held, ServerView, Steps, Targets, scale

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

HASTE = 2
"""How many times as fast as evenly a tenant may spend its tokens at a server and still be sure that
they last until the next round. Tokens that it lacks for more than that are sent at once, with an
exchange of their own; the others with the next round's, by which time there is headroom for them."""

BOUND_MAX = 2**53
"""More than any limit. Where there is none a bound counts as so much: sums must fit in 64 bits."""


class Holding(Protocol):
    """A server as it is known, or what one that is gone may hold."""

    def count_all(self, roll: Roll) -> Whole: ...


def count_bounds(roll: Roll, holdings: Iterable[Holding]) -> Whole:
    """What all of them together may have; UNBOUNDED where one of them may have any number."""
    total, most = np.zeros(len(roll), np.int64), np.zeros(len(roll), np.int64)
    for each in holdings:
        bounds = each.count_all(roll)
        total += np.minimum(bounds, BOUND_MAX)
        np.maximum(most, bounds, out=most)
    return np.where(most >= UNBOUNDED, UNBOUNDED, total)


class Draft:
    """A grant in the making. `levels` are its allowances: a fall goes all the way to the target at
    once, a rise (`rising`) begins at the bound, and is lifted as far as there is headroom."""

    def __init__(self, view: ServerView, wanted: Whole, bounds: Whole, limited: Flags) -> None:
        """`limited`: who is named and has a limit."""
        self.view = view
        self.wanted = wanted
        self.grew = False
        self.rising = (wanted > bounds) & limited
        self.levels = np.where(self.rising, bounds, wanted)

    def lift(self, places: Whole, levels: Whole, headroom: Whole) -> None:
        """Raise allowances to these levels, as far as there is headroom, which that takes."""
        present = self.levels[places]
        growth = np.maximum(np.minimum(levels - present, headroom[places]), 0)
        self.levels[places] = present + growth
        headroom[places] -= growth
        self.grew = self.grew or bool(growth.any())

    def find_needed(self, present: bool, left_ns: int, interval_ns: int) -> tuple[Whole, Whole]:
        """The allowances that last until the next round even if they are spent `HASTE` times as fast as
        evenly over the rest of the period, and cover the first request that waits: of the tenants that rise
        and send anything, by their numbers. `present`: the server has said what it spent in this period."""
        seen = self.view.seen
        asking = (seen.pending > 0) | (seen.arrived > 0)
        seen = seen.keep(asking & self.rising[seen.numbers])
        wanted = self.wanted[seen.numbers]
        spent = seen.dispatched if present else np.zeros_like(wanted)
        later_ns = max(0, left_ns - HASTE * interval_ns)
        even = wanted - scale(np.maximum(wanted - spent, 0), later_ns, max(1, left_ns))
        return seen.numbers, np.maximum(even, np.minimum(wanted, spent + seen.front))


class Round:
    """What a leader grants by some targets, and may not exceed.

    owed   the servers that have less than a tenant may need before the next round
    """

    def __init__(self, roll: Roll, targets: Targets, limits: Whole) -> None:
        self._roll = roll
        self._targets = targets
        self._common = roll.widen(targets.levels)
        self._limited = (self._common != UNNAMED) & (limits < UNBOUNDED)
        self._paces = np.zeros(len(roll), np.int64)
        self._paces[: targets.paces.size] = targets.paces
        self._columns = pack(self._common), pack(self._paces)
        self.owed: set[str] = set()
        self.drafts: list[Draft] = []

    def make_drafts(self, views: Collection[ServerView]) -> None:
        self.drafts = [
            Draft(view, self._want(view), view.count_all(self._roll), self._limited) for view in views
        ]

    def _want(self, view: ServerView) -> Whole:
        wanted = self._common.copy()
        rows = self._targets.rows.get(view.name, NO_ROWS)
        wanted[rows.numbers] = rows.allowances
        return wanted

    def lift(self, headroom: Whole, period: int, left_ns: int, interval_ns: int) -> None:
        """Falls are sent at once. A rise that has no headroom yet waits for the next round, unless the
        tenant may lack it before then: that is owed, and follows once all have acknowledged."""
        rising = [draft for draft in self.drafts if draft.rising.any()]
        for draft in rising:  # first what is needed soon, everywhere
            places, needed = draft.find_needed(draft.view.report.period == period, left_ns, interval_ns)
            draft.lift(places, needed, headroom)
            if (draft.levels[places] < needed).any():
                self.owed.add(draft.view.name)
        for draft in rising:  # then what can wait
            places = np.flatnonzero(draft.rising)
            draft.lift(places, draft.wanted[places], headroom)

    def finish(self, draft: Draft) -> tuple[Allowances, Held]:
        """What the grant says, and what whoever takes it has."""
        view, roll = draft.view, self._roll
        rows = self._targets.rows.get(view.name, NO_ROWS)
        priorities, paces = np.zeros(len(roll), np.int64), self._paces.copy()
        priorities[rows.numbers], paces[rows.numbers] = rows.priorities, rows.paces
        other = draft.levels != self._common
        other[rows.numbers] |= (rows.priorities > 0) | (rows.paces != self._paces[rows.numbers])
        numbers = np.flatnonzero(other)
        levels = draft.levels[numbers]
        allowances = Allowances(
            roll.key,
            view.known,
            tuple(roll.names[view.known :]),
            *self._columns,
            pack(numbers),
            pack(levels),
            pack(np.minimum(priorities[numbers], levels)),
            pack(paces[numbers]),
        )
        return allowances, Held(view.name, draft.levels, view.part)


@dataclass
class Work:
    """A round that is under way: the placement (`steps`), if it is not done, and then the grants, to `only`
    these servers or to all. It is dropped when another begins: nothing counts but what was sent."""

    steps: Steps | None = None
    only: frozenset[str] | None = None
    round: Round | None = None
