"""The compiled part: tokens of all servers at once, with limits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from bursar.rates.scheduler import UNBOUNDED
from bursar.rates.scheduler import kernels as scheduler
from bursar.rates.scheduler.kernels import ALLOWANCE, PRIORITY

Whole = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def place_within_limits(
    first_server: int, last_server: int, tables: Whole, heads: Whole, states: Whole,
    dispatched: Whole, priority: Whole, allowance: Whole, limited: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Each server's new tokens, counted from what it had dispatched when it reported. An allowance
    is never set below what was dispatched since."""
    for j in range(first_server, last_server):
        for i in range(limited.size):
            first = dispatched[j, i] + priority[j, i] if priority[j, i] > 0 else 0
            most = max(dispatched[j, i] + allowance[j, i], tables[j, i, scheduler.DISPATCHED])
            most = most if limited[i] else UNBOUNDED
            if tables[j, i, PRIORITY] != first or tables[j, i, ALLOWANCE] != most:
                scheduler.grant(tables[j], heads[j], states[j], i, most, min(first, most), 0)
