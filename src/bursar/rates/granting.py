"""The grants of one round, made for all servers together: as much of the targets as the bounds allow."""

from __future__ import annotations

from collections.abc import Iterable
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
        self.bounds = bounds
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
        asking = ((seen.pending > 0) | (seen.arrived > 0)) & (seen.numbers < self.rising.size)
        asking[asking] = self.rising[seen.numbers[asking]]
        chosen = np.flatnonzero(asking)
        numbers = seen.numbers[chosen]
        wanted = self.wanted[numbers]
        spent = seen.dispatched[chosen] if present else np.zeros_like(wanted)
        later_ns = max(0, left_ns - HASTE * interval_ns)
        even = wanted - scale(np.maximum(wanted - spent, 0), later_ns, max(1, left_ns))
        return numbers, np.maximum(even, np.minimum(wanted, spent + seen.front[chosen]))


class Round:
    """What a leader grants by some targets, and may not exceed: drafts are made of all servers, then lifted
    as far as there is headroom, then sent. Each of that may be done for a few servers at a time: meanwhile
    bounds can only fall, and it is about nobody who came into the roll since.

    size       how many names of the roll it is about
    headroom   how far bounds may rise yet, by number; None before it is known
    owed       the servers that have less than a tenant may need before the next round
    """

    def __init__(self, roll: Roll, targets: Targets, limits: Whole, views: Iterable[ServerView]) -> None:
        self._roll = roll
        self._targets = targets
        self._common = roll.widen(targets.levels)
        self.size = len(roll)
        self._limited = (self._common != UNNAMED) & (limits < UNBOUNDED)
        self._paces = np.zeros(len(roll), np.int64)
        self._paces[: targets.paces.size] = targets.paces
        self._columns = pack(self._common), pack(self._paces)
        self.limits = limits
        self.headroom: Whole | None = None
        self.owed: set[str] = set()
        self.drafts: list[Draft] = []
        self.unseen = list(views)
        self.unlifted: list[tuple[Draft, bool]] = []

    def make_drafts(self, count: int) -> None:
        """Of so many more."""
        views, self.unseen = self.unseen[:count], self.unseen[count:]
        self.drafts += [Draft(view, self._want(view), self._cut(view), self._limited) for view in views]

    def _cut(self, holding: Holding) -> Whole:
        return holding.count_all(self._roll)[: self.size]

    def _want(self, view: ServerView) -> Whole:
        wanted = self._common.copy()
        rows = self._targets.rows.get(view.name, NO_ROWS)
        wanted[rows.numbers] = rows.allowances
        return wanted

    def count_bounds(self, others: Iterable[Holding]) -> Whole:
        """What the servers that it is about, as they were drafted, and others may have in all."""
        total = np.minimum(count_bounds(self._roll, others)[: self.size], BOUND_MAX)
        for draft in self.drafts:
            total += np.minimum(draft.bounds, BOUND_MAX)
        return total

    def begin_lifting(self, headroom: Whole) -> None:
        """First what is needed soon, everywhere; then what can wait."""
        self.headroom = headroom
        rising = [draft for draft in self.drafts if draft.rising.any()]
        self.unlifted = [*((draft, True) for draft in rising), *((draft, False) for draft in rising)]

    def lift(self, count: int, period: int, left_ns: int, interval_ns: int) -> None:
        """So many more. Falls are sent at once. A rise that has no headroom yet waits for the next round,
        unless the tenant may lack it before then: that is owed, and follows once all have acknowledged."""
        assert self.headroom is not None, "it is known before anything is lifted"
        lifted, self.unlifted = self.unlifted[:count], self.unlifted[count:]
        for draft, soon in lifted:
            if soon:
                present = draft.view.report.period == period
                places, wanted = draft.find_needed(present, left_ns, interval_ns)
            else:
                places = np.flatnonzero(draft.rising)
                wanted = draft.wanted[places]
            draft.lift(places, wanted, self.headroom)
            if soon and (draft.levels[places] < wanted).any():
                self.owed.add(draft.view.name)

    def finish(self, draft: Draft) -> tuple[Allowances, Held]:
        """What the grant says, and what whoever takes it has."""
        view, roll = draft.view, self._roll
        rows = self._targets.rows.get(view.name, NO_ROWS)
        other = draft.levels != self._common
        told = other[rows.numbers] | (rows.priorities > 0) | (rows.paces != self._paces[rows.numbers])
        here = rows.numbers[told]
        other[rows.numbers] = False
        elsewhere = np.flatnonzero(other)  # where what is in force cannot be changed at once
        numbers = np.concatenate([here, elsewhere])
        levels = draft.levels[numbers]
        priorities = np.concatenate([rows.priorities[told], np.zeros_like(elsewhere)])
        paces = np.concatenate([rows.paces[told], self._paces[elsewhere]])
        allowances = Allowances(
            roll.key,
            view.known,
            tuple(roll.names[view.known : self.size]),
            *self._columns,
            pack(numbers),
            pack(levels),
            pack(np.minimum(priorities, levels)),
            pack(paces),
        )
        return allowances, Held(view.name, draft.levels, view.part)


@dataclass
class Work:
    """A round that is under way: the placement (`steps`), if it is not done, and then the grants, to `only`
    these servers or to all. It is dropped when another begins: nothing counts but what was sent."""

    steps: Steps | None = None
    only: frozenset[str] | None = None
    round: Round | None = None
