"""How often to place tokens anew: shorter while demand moves, longer while it does not.

The paper leaves this to future work (section VI) and says what to look at: whether the demand
changed beyond a threshold (section V). What a tenant is *served* moves all the time, and tokens
move it; so only the wish is compared: whether a tenant wants anything of a server, whether it wants
all it can get, and otherwise how much arrives.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from bursar.estimate import MOVED_FLOOR
from bursar.rates.cells import extrapolate_all
from bursar.rates.columns import Whole
from bursar.rates.views import ServerView
from bursar.world import SECOND_NS

SHORTEST, LONGEST = 0.5, 2.5
"""Of the first interval, a fifth of the period: a tenth to a half of a period. Longer than that, a
tenant that moves late in a period could not be helped any more."""

MOVED_MUCH = 0.05
"""Shorten when more than this part of all wishes has changed; lengthen when none has."""

RATE_CHANGED = 0.5


class AdaptiveInterval:
    """The interval to use next, from what servers report. Nothing that safety rests on."""

    def __init__(self, first_ns: int) -> None:
        self.now_ns = first_ns
        self._shortest_ns = max(1, int(first_ns * SHORTEST))
        self._longest_ns = int(first_ns * LONGEST)
        self._roll: int | None = None
        self._wishes: dict[str, Whole] = {}

    def look(self, roll: int, views: Collection[ServerView]) -> int:
        """Every server as it was last heard, with the tenants' numbers in that roll -> the next interval."""
        wishes = {view.name: _list_wishes(view) for view in views}
        known, before = self._roll == roll, self._wishes
        self._roll, self._wishes = roll, wishes
        if not known:
            return self.now_ns
        names = {**before, **wishes}
        changed = sum(_count_changed(before.get(each, _NONE), wishes.get(each, _NONE)) for each in names)
        if changed > MOVED_MUCH * max(1, sum(each.shape[1] for each in wishes.values())):
            self.now_ns = max(self._shortest_ns, self.now_ns // 2)
        elif changed == 0:
            self.now_ns = min(self._longest_ns, self.now_ns + self.now_ns // 2)
        return self.now_ns


_NONE: Whole = np.zeros((3, 0), np.int64)


def _list_wishes(view: ServerView) -> Whole:
    """Of whoever wants anything: its number, whether it wants all that there is, requests a second that
    arrive. By number."""
    seen = view.seen.keep((view.seen.pending > 0) | (view.seen.arrived > 0))
    rates = extrapolate_all(seen.arrived, view.seen_ns, SECOND_NS)
    order = np.argsort(seen.numbers)
    return np.stack([seen.numbers, seen.backlogged, rates])[:, order]


def _count_changed(before: Whole, after: Whole) -> int:
    _, here, there = np.intersect1d(before[0], after[0], assume_unique=True, return_indices=True)
    all_before, all_after = before[1, here], after[1, there]
    moved = np.abs(after[2, there] - before[2, here])
    moved_far = moved > np.maximum(RATE_CHANGED * np.maximum(before[2, here], after[2, there]), MOVED_FLOOR)
    # One that wants everything and one whose queue ran empty for a moment are told apart
    # by the rate alone: a queue of few requests is empty by chance.
    counts = ((all_before == 0) & (all_after == 0)) | (all_before != all_after)
    gone_or_new: int = before.shape[1] + after.shape[1] - 2 * here.size
    return gone_or_new + int((counts & moved_far).sum())
