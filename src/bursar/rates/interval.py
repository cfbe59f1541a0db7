"""How often to place tokens anew: shorter while demand moves, longer while it does not.

The paper leaves this to future work (section VI) and says what to look at: whether the demand
changed beyond a threshold (section V). What a tenant is *served* moves all the time, and tokens
move it; so only the wish is compared: whether a tenant wants anything of a server, whether it wants
all it can get, and otherwise how much arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bursar.estimate import extrapolate, has_moved
from bursar.rates.messages import Row
from bursar.world import SECOND_NS

SHORTEST, LONGEST = 0.5, 2.5
"""Of the first interval, a fifth of the period: a tenth to a half of a period. Longer than that, a
tenant that moves late in a period could not be helped any more."""

MOVED_MUCH = 0.05
"""Shorten when more than this part of all wishes has changed; lengthen when none has."""

RATE_CHANGED = 0.5

Wish = tuple[bool, int]
"""(wants all that there is, requests a second that arrive)."""


class AdaptiveInterval:
    """The interval to use next, from the rows that servers report. Nothing that safety rests on."""

    def __init__(self, first_ns: int) -> None:
        self.now_ns = first_ns
        self._shortest_ns = max(1, int(first_ns * SHORTEST))
        self._longest_ns = int(first_ns * LONGEST)
        self._wishes: dict[tuple[str, str], Wish] | None = None

    def look(self, reports: Iterable[tuple[str, Mapping[str, Row], int]]) -> int:
        """(server, its rows, nanoseconds that they cover) of every server -> the next interval."""
        wishes = {
            (server, row.tenant): (row.backlogged, extrapolate(row.arrived, seen_ns, SECOND_NS))
            for server, rows, seen_ns in reports
            for row in rows.values()
            if row.pending or row.arrived
        }
        before, self._wishes = self._wishes, wishes
        if before is None:
            return self.now_ns
        changed = _count_changed(before, wishes)
        if changed > MOVED_MUCH * max(1, len(wishes)):
            self.now_ns = max(self._shortest_ns, self.now_ns // 2)
        elif changed == 0:
            self.now_ns = min(self._longest_ns, self.now_ns + self.now_ns // 2)
        return self.now_ns


def _count_changed(before: Mapping[tuple[str, str], Wish], after: Mapping[tuple[str, str], Wish]) -> int:
    count = len(before.keys() ^ after.keys())
    for cell, (all_now, rate_now) in after.items():
        if cell in before:
            all_before, rate_before = before[cell]
            fewer = not all_now and not all_before
            # One that wants everything and one whose queue ran empty for a moment are told apart
            # by the rate alone: a queue of few requests is empty by chance.
            count += (fewer or all_now != all_before) and has_moved(rate_before, rate_now, RATE_CHANGED)
    return count
