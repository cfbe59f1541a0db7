"""Stretches of time, merged, and how much of another stretch they cover."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

Span = tuple[int, int]


class Spans:
    """Stretches (from, until), in nanoseconds; those that touch are one."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.merged = _merge(spans)
        self._starts = [start for start, _ in self.merged]
        self._ends = [end for _, end in self.merged]
        self._sums = [0, *accumulate(end - start for start, end in self.merged)]

    @property
    def total(self) -> int:
        return self._sums[-1]

    def __bool__(self) -> bool:
        return bool(self.merged)

    def touch(self, start: int, end: int) -> bool:
        """Whether any of them has a moment in common with [start, end]."""
        at = bisect_left(self._ends, start)
        return at < len(self.merged) and self._starts[at] <= end

    def cover(self, start: int, end: int) -> bool:
        """Whether one of them has all of [start, end]."""
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and self._ends[at] >= end

    def overlap(self, start: int, end: int) -> int:
        """How much of [start, end] they cover."""
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first >= last:
            return 0
        whole = self._sums[last] - self._sums[first]
        return whole - max(0, start - self._starts[first]) - max(0, self._ends[last - 1] - end)


def _merge(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class Waits:
    """Stretches that do not overlap, in each of which somebody waited for some time."""

    def __init__(self, waits: Iterable[tuple[int, int, int]] = ()) -> None:
        ordered = sorted(waits)
        self._starts = [start for start, _, _ in ordered]
        self._ends = [end for _, end, _ in ordered]
        self._sums = [0, *accumulate(waited for _, _, waited in ordered)]

    @property
    def total(self) -> int:
        return self._sums[-1]

    def sum_within(self, start: int, end: int) -> int:
        """The most that it can have been within [start, end]: stretches at its edges count whole."""
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        return min(max(0, self._sums[last] - self._sums[first]), end - start) if first < last else 0
