"""Demand and rates from what was seen (section III-D of the rate paper, and section V).

Nothing here is safe or unsafe: a wrong estimate costs accuracy, never a limit. Counts are whole
numbers, durations nanoseconds; the functions are plain arithmetic, so that a server without
NumPy can use them and a controller can apply them to whole columns of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from bursar.errors import UsageError
from bursar.world import SECOND_NS

MOVED_PART = 0.05
MOVED_FLOOR = 4
SURPRISE = 2.0


def estimate_demand(
    pending: int,
    arrived: int,
    seen_ns: int,
    left_ns: int,
    *,
    backlogged: bool = False,
    capacity_left: int = 0,
) -> int:
    """Requests that a tenant would have served by the end of the period, if it could: those that
    wait, and as many more as arrived in the last `seen_ns`, for the `left_ns` that are left.

    A tenant with a bounded number of requests outstanding sends one when one is answered, so
    what arrives from it measures what it was given, not what it wants. Its queue tells: if it
    was never empty (`backlogged`), its demand is as much as the server can still do.
    """
    extrapolated = pending + extrapolate(arrived, seen_ns, left_ns)
    return max(extrapolated, capacity_left) if backlogged else extrapolated


def extrapolate(count: int, seen_ns: int, left_ns: int) -> int:
    """`count` in `seen_ns`, going on for `left_ns`: rounded to the nearest whole number."""
    if seen_ns <= 0 or left_ns <= 0:
        return 0
    return (2 * count * left_ns + seen_ns) // (2 * seen_ns)


def has_moved(before: int, now: int, part: float = MOVED_PART, floor: int = MOVED_FLOOR) -> bool:
    """Whether a count changed enough to be worth a message: by more than `part` of the larger,
    and by more than `floor`, because small counts jump about by chance."""
    return abs(now - before) > max(part * max(before, now), floor)


def count_recent(counts: Sequence[int], surprise: float = SURPRISE) -> tuple[int, int]:
    """(arrivals, parts): how much of the past still tells about the present.

    `counts` are the arrivals in equal parts of the last interval, oldest first. Going back from
    the newest, a part is taken in while it is about what the newer ones lead one to expect;
    at the first that is further off than `surprise` standard deviations (of a count by chance),
    the demand has changed, and what lies before tells nothing. A steady tenant so keeps the
    precision of the whole interval, one that moved is believed at once.
    """
    total, parts = 0, 0
    for k in range(len(counts) - 1, -1, -1):
        count = counts[k]
        # Pooled, a part's rate is (total + count) / (parts + 1), and the difference of the two
        # rates varies by that times (1 + 1 / parts). One request more or less is no surprise:
        # arrivals at an even pace do not divide evenly.
        off = abs(count * parts - total) - parts
        if off > 0 and off * off > surprise * surprise * (total + count) * parts:
            break
        total += count
        parts += 1
    return total, parts


class Average:
    """An exponential average: each new value counts `alpha`, all before it together the rest."""

    def __init__(self, alpha: float = 0.5) -> None:
        if not 0.0 < alpha <= 1.0:
            raise UsageError(f"alpha is {alpha!r}: pass the part of a new value, above 0 and at most 1")
        self.alpha = alpha
        self.value: float | None = None

    def add(self, value: float) -> float:
        """Take in a value; the average, which is the first value itself at first."""
        self.value = value if self.value is None else self.value + self.alpha * (value - self.value)
        return self.value


class SlidingWindow:
    """How much came in the last `span_ns`, in `parts` steps: what is older than the span drops
    out a part at a time, so memory is bounded however much comes."""

    def __init__(self, span_ns: int, parts: int = 10) -> None:
        if span_ns < parts or parts < 1:
            raise UsageError(f"a window of {span_ns} ns in {parts} parts: pass at least 1 ns a part")
        self._part_ns = span_ns // parts
        self._parts = parts
        self._counts: dict[int, int] = {}
        self._began: int | None = None

    def add(self, now: int, count: int = 1) -> None:
        number = now // self._part_ns
        if self._began is None:
            self._began = now
        self._counts[number] = self._counts.get(number, 0) + count
        self._drop(number)

    def count(self, now: int) -> int:
        self._drop(now // self._part_ns)
        return sum(self._counts.values())

    def rate(self, now: int) -> float:
        """Per second, over the part of the window that has been watched."""
        if self._began is None:
            return 0.0
        oldest = (now // self._part_ns - self._parts + 1) * self._part_ns
        return self.count(now) * SECOND_NS / max(now - max(self._began, oldest), self._part_ns)

    def counts(self, now: int) -> list[int]:
        """The parts, oldest first, as `count_recent` takes them; the last is still filling."""
        newest = now // self._part_ns
        self._drop(newest)
        return [self._counts.get(number, 0) for number in range(newest - self._parts + 1, newest + 1)]

    def _drop(self, newest: int) -> None:
        for number in [number for number in self._counts if number <= newest - self._parts]:
            del self._counts[number]
