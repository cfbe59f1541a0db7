"""What the data node can do in a period, learnt from what it did (II-E, algorithm 1).

The data node sees no request, so its capacity shows only in the tokens that clients spent. Too low
an estimate leaves it idle; too high a one hands out pool tokens whose requests delay the reserved
ones. All numbers are tokens a period.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from bursar.errors import UsageError

WINDOW = 5
RISE_PPM = 10_000
EQUAL_PPM = 5_000
RISE_MAX_PPM = 80_000
PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a period ended.

    capacity    the estimate it was run with
    used        tokens that were spent
    saturated   requests were waiting when it ended, of clients that were neither at the limit of
                what a client can do nor at its limit: if tokens were left, the node was too slow
    """

    capacity: int
    used: int
    saturated: bool = False


class Capacity(Protocol):
    """`value` is the estimate; `close` takes in how a period ended."""

    value: int

    def close(self, outcome: Outcome) -> None: ...


class FixedCapacity:
    """What the policy says, whatever is seen."""

    def __init__(self, value: int) -> None:
        self.value = _checked(value)

    def close(self, outcome: Outcome) -> None:
        """Nothing is learnt."""


class PrintedCapacity:
    """Algorithm 1, with the parts that the paper leaves open filled in: M = 5, eta = 1 % of the
    profiled capacity, used up to within 0.5 % counts as used up, and a rise clears the window
    (what was seen before it was bounded by tokens, not by the node).

    Below the profiled capacity less three deviations nothing is learnt, so that a quiet period is
    not taken for a slow node; a drop beyond that is never followed.
    """

    def __init__(self, profiled: int, sigma: int, window: int = WINDOW) -> None:
        self.value = _checked(profiled)
        self._lowest = profiled - 3 * sigma
        self._rise = max(1, profiled * RISE_PPM // PPM)
        self._window: deque[int] = deque(maxlen=window)

    def close(self, outcome: Outcome) -> None:
        if is_used_up(outcome):
            self.value = outcome.capacity + self._rise
            self._window.clear()
        elif outcome.used >= self._lowest:
            self._window.append(outcome.used)
            self.value = sum(self._window) // len(self._window)


class AdaptiveCapacity:
    """bursar's own. In a quiet period nobody waits; if requests waited although not everything was
    used up, the node was saturated, and what was used is what it can do: the mean of the last few
    such periods, and at once the last one alone if it lies three deviations off. While everything
    is used up the estimate rises, by 1 % and then twice as fast each time, up to 8 %. It never
    falls below `floor`, what was promised to clients.
    """

    def __init__(self, initial: int, sigma: int = 0, window: int = WINDOW) -> None:
        self.value = _checked(initial)
        self.floor = 0
        self._sigma = max(sigma, initial // 200)
        self._rise_ppm = RISE_PPM
        self._window: deque[int] = deque(maxlen=window)

    def close(self, outcome: Outcome) -> None:
        if is_used_up(outcome):
            self._window.clear()
            self.value = outcome.capacity + max(1, outcome.capacity * self._rise_ppm // PPM)
            self._rise_ppm = min(2 * self._rise_ppm, RISE_MAX_PPM)
            return
        self._rise_ppm = RISE_PPM
        if outcome.saturated:
            self._follow(outcome.used)

    def _follow(self, used: int) -> None:
        known = sum(self._window) // len(self._window) if self._window else self.value
        if abs(used - known) > 3 * self._sigma:
            self._window.clear()
        self._window.append(used)
        self.value = max(1, self.floor, sum(self._window) // len(self._window))


def is_used_up(outcome: Outcome) -> bool:
    """Whether tokens, not the node, were what ran out. Exact equality never happens live."""
    return outcome.used * PPM >= outcome.capacity * (PPM - EQUAL_PPM)


def _checked(value: int) -> int:
    if value < 1:
        raise UsageError(f"a capacity of {value} tokens a period: pass at least 1")
    return value
