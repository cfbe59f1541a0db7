"""What a target can do, where nobody says: found by asking for a little more than it gave."""

from __future__ import annotations

from collections import deque

from bursar.world import SECOND_NS

WINDOW_INTERVALS = 10
PROBE_PART = 0.05
FULL_PART = 0.95


class CapacityProbe:
    """Tokens a second. While tenants wait and nearly all tokens were used, the target may be able
    to do more: hand out a little more. While tenants wait and tokens were left over, it cannot:
    fall back to the most it did of late. While nobody waits, nothing is learnt."""

    def __init__(self, start_rate: int = 1) -> None:
        self._rate = float(max(1, start_rate))
        self._recent: deque[float] = deque(maxlen=WINDOW_INTERVALS)

    @property
    def rate(self) -> int:
        return max(1, round(self._rate))

    def add(self, served: int, elapsed_ns: int, *, backlogged: bool) -> None:
        """What was served in an interval, and whether anyone had to wait in it."""
        if elapsed_ns <= 0 or served <= 0:
            return
        rate = served * SECOND_NS / elapsed_ns
        if rate > self._rate:
            self._rate = rate
        if not backlogged:
            return
        self._recent.append(rate)
        if rate >= FULL_PART * self._rate:
            self._rate = max(self._rate, rate) * (1 + PROBE_PART)
        elif len(self._recent) == WINDOW_INTERVALS:
            self._rate = max(self._recent) * (1 + PROBE_PART)
