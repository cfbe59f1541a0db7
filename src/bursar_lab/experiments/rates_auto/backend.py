"""A server to be found out about: so many workers, each of which takes so long for a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import heapify, heapreplace

from bursar.world import SECOND_NS


class Backend:
    """Does `rate` requests a second, in the order in which they come: with one worker it is bound by its
    rate, with many by how many it can do at a time. It sees time by `now` and `sleep` alone, in
    nanoseconds; a machine that wakes late makes no request take longer than it has to."""

    def __init__(
        self, rate: float, workers: int, now: Callable[[], int], sleep: Callable[[int], Awaitable[None]]
    ) -> None:
        self.rate = rate
        self.workers = workers
        self._now = now
        self._sleep = sleep
        self._free_at = [0] * workers
        heapify(self._free_at)

    async def serve(self) -> None:
        begins_at = max(self._free_at[0], self._now())
        ends_at = begins_at + int(self.workers * SECOND_NS / self.rate)
        heapreplace(self._free_at, ends_at)
        while (left_ns := ends_at - self._now()) > 0:
            await self._sleep(left_ns)

    def stall(self, duration_ns: int) -> None:
        """Begin nothing for so long."""
        until = self._now() + duration_ns
        self._free_at = [max(until, free_at) for free_at in self._free_at]
        heapify(self._free_at)
