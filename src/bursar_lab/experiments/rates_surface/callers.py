"""Callers that always want more, and what they were told."""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bursar.errors import Refused, Unknown


class Callers:
    """Of one tenant, each with one request at a time, whose cost is drawn from `costs`. `resource` may be
    replaced while they run."""

    def __init__(
        self, resource: Any, tenant: str, count: int, costs: Sequence[int] = (1,), wait: float = 60.0
    ) -> None:
        self.resource = resource
        self.periods: Counter[int] = Counter()
        self.times: list[float] = []
        self.tokens = 0
        self.longest = 0.0
        self._tenant, self._costs, self._wait = tenant, costs, wait
        self._random = random.Random(tenant)
        self._tasks = [asyncio.create_task(self._call()) for _ in range(count)]

    async def _call(self) -> None:
        while True:
            began, amount = time.monotonic(), self._random.choice(self._costs)
            try:
                async with self.resource.acquire(self._tenant, amount, wait=self._wait) as grant:
                    now = time.monotonic()
                    self.longest = max(self.longest, now - began)
                    self.periods[grant.period] += amount
                    self.times += [now] * amount
                    self.tokens += amount
            except (Refused, Unknown) as refused:
                await asyncio.sleep(max(0.001, getattr(refused, "retry_after", None) or 0.001))
            await asyncio.sleep(0)  # from a lot it is no wait at all

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def full_periods(self, first: int = 2) -> list[int]:
        """What went in each period, but for the first ones and the last."""
        return [self.periods[period] for period in range(min(self.periods) + first, max(self.periods))]

    def busiest(self, window_s: float = 1.0) -> int:
        """The most tokens in any window of that length."""
        return max(bisect_left(self.times, at + window_s) - k for k, at in enumerate(self.times))


def check(bar: str, found: float, met: bool) -> dict[str, Any]:
    return {"bar": bar, "found": round(found, 3), "met": bool(met)}
