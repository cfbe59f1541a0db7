"""Deadlines of whatever waits: one timer for all of them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from bursar.courier import Alarm
from bursar.world import World

SubjectT = TypeVar("SubjectT")

SPARE = 64
"""Deadlines of what is over are kept until they outnumber the others by this."""


class Deadline:
    """`done`: whatever waited is over."""

    __slots__ = ("act", "done", "subject")

    def __init__(self, act: Callable[[Any], None], subject: Any) -> None:
        self.act = act
        self.subject = subject
        self.done = False


class Deadlines:
    """Calls back when a time has come, unless what waited is over by then."""

    def __init__(self, world: World, name: str) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._added = 0
        self._sweep_at = SPARE
        self._clock = world.clock
        self._alarm = Alarm(world, name, self._first, self._ring)

    def start(self) -> None:
        self._alarm.start()

    def add(self, at: int, act: Callable[[SubjectT], None], subject: SubjectT) -> Deadline:
        deadline = Deadline(act, subject)
        self._added += 1
        heappush(self._heap, (at, self._added, deadline))
        if len(self._heap) > self._sweep_at:
            self._sweep()
        self._alarm.set()
        return deadline

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].done]
        heapify(self._heap)
        self._sweep_at = SPARE + 2 * len(self._heap)

    def _first(self) -> int | None:
        while self._heap and self._heap[0][2].done:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _ring(self, now: int) -> None:
        while self._heap and self._heap[0][0] <= now:
            deadline = heappop(self._heap)[2]
            if not deadline.done:
                deadline.done = True
                deadline.act(deadline.subject)
