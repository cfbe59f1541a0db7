"""What clients were told, by period and by time: all that a live run is judged by."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bursar_lab.experiments.rates_live.plan import SLICE_NS, Plan

Whole = npt.NDArray[np.int64]


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Tally:
    """One client's, or that of several put together: requests by period and tenant, and by slice of time
    and tenant; when each period was first heard of; calls that were not granted from a period, by how
    they ended."""

    def __init__(self, plan: Plan) -> None:
        self._position = {tenant: index for index, tenant in enumerate(plan.terms)}
        self.periods: dict[int, Whole] = {}
        self.slices: Whole = np.zeros((plan.slices, len(plan.terms)), np.int64)
        self.seen: dict[int, int] = {}
        self.failed: Counter[str] = Counter()
        self.began_at = 0

    def count(self, tenant: str, period: int) -> None:
        now, index = boot_ns(), self._position[tenant]
        row = self.periods.get(period)
        if row is None:
            row = self.periods[period] = np.zeros(len(self._position), np.int64)
            self.seen[period] = now
        row[index] += 1
        self.slices[min(max(now - self.began_at, 0) // SLICE_NS, len(self.slices) - 1), index] += 1

    def fail(self, how: str) -> None:
        self.failed[how] += 1

    def describe(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "periods": {str(period): row.tolist() for period, row in self.periods.items()},
            "slices": self.slices.tolist(),
            "seen": {str(period): at for period, at in self.seen.items()},
            "failed": dict(self.failed),
        }


def add_up(plan: Plan, described: Iterable[Mapping[str, Any]]) -> Tally:
    total = Tally(plan)
    for each in described:
        total.slices += np.array(each["slices"], np.int64)
        total.failed.update(each["failed"])
        for text, row in each["periods"].items():
            period, at = int(text), each["seen"][text]
            total.periods[period] = total.periods.get(period, 0) + np.array(row, np.int64)
            total.seen[period] = min(at, total.seen.get(period, at))
    return total
