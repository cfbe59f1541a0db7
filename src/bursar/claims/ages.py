"""How long a task has waited, told without anybody's wall clock.

The store numbers its changes, so the revision that created a task's record says what came before what,
whoever submitted it and however wrong that one's clock is. An instance notes now and then which revision
the store has reached; a record that is older than a revision noted a minute ago has waited for a minute.
What an instance did not live to see began, for it, when it began.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter

from bursar.world import SECOND_NS

MOMENTS_MAX = 4096
"""Past these, every second one is forgotten, and they are noted half as often."""


class Ages:
    """Moments of this instance's clock, each with the revision that the store had reached by then."""

    def __init__(self) -> None:
        self._moments: list[tuple[int, int]] = []
        self._every_ns = SECOND_NS

    def note(self, revision: int, now_ns: int) -> None:
        if self._moments and (
            revision <= self._moments[-1][0] or now_ns < self._moments[-1][1] + self._every_ns
        ):
            return
        self._moments.append((revision, now_ns))
        if len(self._moments) > MOMENTS_MAX:
            self._moments = self._moments[::2]
            self._every_ns *= 2

    def since(self, created: int, now_ns: int) -> int:
        """A moment by which the record of that revision was there."""
        position = bisect_left(self._moments, created, key=itemgetter(0))
        return self._moments[position][1] if position < len(self._moments) else now_ns
