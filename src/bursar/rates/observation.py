"""What a server sees of its tenants between two reports: the raw numbers of every estimate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bursar.estimate import MOVED_FLOOR, MOVED_PART
from bursar.rates.scheduler import Whole
from bursar.world import MILLISECOND_NS

BACKLOGGED_EMPTY_PART = 0.1
"""A queue that was empty for no more than this part of the time counts as never empty: a tenant
with a few requests outstanding has its queue emptied whenever several of them go at once."""


QUIET_NS = 50 * MILLISECOND_NS
"""Whoever asked for nothing since the last report, if that is so long ago, is said to begin to ask when it
does again. (Reports of hurried rounds come sooner after one another: whoever was taken for quiet by these
hurried the next round.)"""


class Observation:
    """Arrivals by tenant, and how long each queue was empty, since the last report that carried them; the
    tokens that waiting requests need, and since when the first of them is; who asked for nothing before the
    last report (`quiet`); and what the server can do, in tokens a second. Counts only; nothing that safety
    rests on."""

    def __init__(self, tenants: int) -> None:
        self.queued = [0] * tenants
        self.quiet = [True] * tenants
        self.front_at = [0] * tenants
        self.arrived = [0] * tenants
        self.capacity = 0.0
        self.since = 0
        self._empty_ns = [0] * tenants
        self._empty_since: list[int | None] = [0] * tenants

    def add_tenant(self) -> None:
        self.queued.append(0)
        self.quiet.append(True)
        self.front_at.append(0)
        self.arrived.append(0)
        self._empty_ns.append(0)
        self._empty_since.append(self.since)

    def ran_empty(self, index: int, now: int) -> None:
        """The last request of a tenant's queue left it."""
        if self._empty_since[index] is None:
            self._empty_since[index] = now

    def began_to_wait(self, index: int, now: int) -> None:
        """A request joined an empty queue."""
        since = self._empty_since[index]
        if since is not None:
            self._empty_ns[index] += now - max(since, self.since)
            self._empty_since[index] = None

    def was_backlogged(self, index: int, now: int) -> bool:
        """Whether the tenant had something waiting practically all the time."""
        since = self._empty_since[index]
        empty_ns = self._empty_ns[index] + (0 if since is None else now - max(since, self.since))
        return empty_ns <= BACKLOGGED_EMPTY_PART * (now - self.since)

    def reset(self, now: int, pending: Sequence[int] | Whole) -> None:
        """Begin anew."""
        long = now - self.since >= QUIET_NS
        for index in range(len(self.arrived)):
            self.quiet[index] = not self.arrived[index] and (long or self.quiet[index])
            self.arrived[index] = 0
            self._empty_ns[index] = 0
            self._empty_since[index] = None if pending[index] else now
        self.since = now


def is_news(old: Whole | None, new: Whole) -> bool:
    """Whether a report with these columns (the number of a tenant, then those of a row) tells the controller
    more than the last one did. What was dispatched and allowed is always told: reservations are counted
    with it."""
    if old is None or old.shape != new.shape or (old[_EXACT] != new[_EXACT]).any():
        return True
    before, now = old[_COUNTS], new[_COUNTS]
    floor = np.maximum(MOVED_PART * np.maximum(before, now), MOVED_FLOOR)
    return bool((np.abs(now - before) > floor).any())


_EXACT, _COUNTS = [0, 1, 5, 6], [2, 3, 4]
"""Tenant, allowance, whether it is backlogged and what its first request needs; dispatched, pending,
arrived."""
