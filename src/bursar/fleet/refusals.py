"""Wrong tokens: they cost whoever shows them time, and a node next to none.

Whoever is right is never kept waiting: only the answer to a wrong token is. A few are free, for people
who mistype. Beyond that each further one from the same source waits longer, up to a bound; and so does
every source once there are many wrong ones in all, for who comes under a new name each time. What is
logged is one line a second, however many there were.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from bursar.world import MILLISECOND_NS, SECOND_NS, Trace

STEP_NS = 100 * MILLISECOND_NS
DELAY_MAX_NS = 2 * SECOND_NS
SOURCES_MAX = 1_000
LOG_NS = SECOND_NS

FREE_OF_SOURCE = 5
FREE_OF_ALL = 100
PER_SECOND_OF_SOURCE = 1
PER_SECOND_OF_ALL = 20


@dataclass(slots=True)
class Bucket:
    """Fills by one with each wrong token, and drains with time."""

    level: float = 0.0
    at: int = 0

    def add(self, now: int, per_second: float) -> float:
        self.level = max(0.0, self.level - (now - self.at) * per_second / SECOND_NS) + 1
        self.at = now
        return self.level


class Refusals:
    """Those of one node. `warn` writes a line of the log."""

    def __init__(self, now: Callable[[], int], warn: Trace) -> None:
        self.count = 0
        self._now = now
        self._warn = warn
        self._sources: OrderedDict[str, Bucket] = OrderedDict()
        self._all = Bucket()
        self._logged_at: int | None = None
        self._unsaid = 0

    def note(self, source: str, why: str) -> int:
        """Count a wrong token; how long its answer is to wait, in nanoseconds."""
        now = self._now()
        self.count += 1
        self._log(now, source, why)
        over = max(
            self._bucket(source).add(now, PER_SECOND_OF_SOURCE) - FREE_OF_SOURCE,
            self._all.add(now, PER_SECOND_OF_ALL) - FREE_OF_ALL,
        )
        return min(DELAY_MAX_NS, int(max(0.0, over) * STEP_NS))

    def _bucket(self, source: str) -> Bucket:
        found = self._sources.pop(source, None) or Bucket(at=self._now())
        self._sources[source] = found
        if len(self._sources) > SOURCES_MAX:
            self._sources.popitem(last=False)
        return found

    def _log(self, now: int, source: str, why: str) -> None:
        self._unsaid += 1
        if self._logged_at is None or now - self._logged_at >= LOG_NS:
            self._warn("token.refused", source=source[:100], why=why, since_last=self._unsaid)
            self._logged_at, self._unsaid = now, 0
