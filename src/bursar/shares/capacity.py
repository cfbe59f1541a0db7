"""What a target can do, where nobody says, or where what was said is too much."""

from __future__ import annotations

from collections import deque

from bursar.world import SECOND_NS

WINDOW_INTERVALS = 10
PROBE_PART = 0.05
FULL_PART = 0.95
USED_PART = 0.9
"""As many tokens must have been used before more are handed out, on an average that lags behind."""

SATURATED_INTERVALS = 3
"""A target must have been saturated for so long before less is handed out: one busy interval is nothing."""

STEP_PART = 0.02
"""How much more is handed out in an interval, while tenants use all of it: towards what was said, and
past what the target was once saturated with. Larger steps would reach the queue again and again."""

SEEK_PART = 0.15
"""The same where nothing was said, until the target is saturated for the first time."""

BELOW_PART = 0.95
"""What is handed out of what a saturated target does: just so little that its queue empties."""


class CapacityProbe:
    """Tokens a second, at most `told`.

    Where the target says whether it is *saturated* (requests wait inside of it, out of reach of any
    weight), what is handed out stays just below: a little less than it did when it is saturated, a
    little more when it is not and all tokens are used.

    Where it does not say, and nothing was told: while tenants wait and nearly all tokens were used, the
    target may be able to do more: hand out a little more. While tenants wait and tokens were left over,
    it cannot: fall back to the most it did of late. While nobody waits, nothing is learnt."""

    def __init__(self, start_rate: int = 1, told: int | None = None) -> None:
        self.told = told
        self._rate = float(told or max(1, start_rate))
        self._recent: deque[float] = deque(maxlen=WINDOW_INTERVALS)
        self._saturated = 0
        self._step = SEEK_PART if told is None else STEP_PART

    @property
    def rate(self) -> int:
        return max(1, round(self._rate))

    def add(
        self,
        served: int,
        elapsed_ns: int,
        *,
        backlogged: bool,
        contended: bool = True,
        saturated: bool | None = None,
    ) -> None:
        """What was served in an interval, whether anyone had to wait in it, whether it was for several
        tenants (one alone has no use for weights), and whether the target was saturated, if it says."""
        if elapsed_ns <= 0 or served <= 0:
            return
        rate = served * SECOND_NS / elapsed_ns
        self._recent.append(rate)
        if saturated is not None:
            self._stay_below(saturated and contended, backlogged)
        elif self.told is None:
            self._find(rate, backlogged)

    def _stay_below(self, saturated: bool, backlogged: bool) -> None:
        late = list(self._recent)[-SATURATED_INTERVALS:]
        done = sum(late) / len(late)
        self._saturated = self._saturated + 1 if saturated else 0
        if self._saturated >= SATURATED_INTERVALS:
            self._saturated, self._step = 0, STEP_PART
            self._rate = min(self._rate, BELOW_PART * done)
        elif not saturated and (done >= USED_PART * self._rate if backlogged else self.told is not None):
            self._rate *= 1 + self._step
        if self.told is not None:
            self._rate = min(self._rate, self.told)

    def _find(self, rate: float, backlogged: bool) -> None:
        if rate > self._rate:
            self._rate = rate
        if not backlogged:
            self._recent.pop()
        elif rate >= FULL_PART * self._rate:
            self._rate = max(self._rate, rate) * (1 + PROBE_PART)
        elif len(self._recent) == WINDOW_INTERVALS:
            self._rate = max(self._recent) * (1 + PROBE_PART)
