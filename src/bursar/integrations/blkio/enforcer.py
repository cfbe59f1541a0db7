"""The share's loop over cgroups: bytes from the controller's counters, limits into its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from bursar.errors import BursarError
from bursar.integrations.blkio.found import FoundLimits
from bursar.integrations.blkio.groups import Controller, Counts, GroupMissingError, Limits, read_queue
from bursar.integrations.blkio.guard import Guard
from bursar.shares.handout import Handout
from bursar.shares.target import Seen

CHANGE_PART = 0.03
"""A limit is rewritten when it changes by more than this part."""

OTHER_PART = 0.05
"""What the direction that was not used is left of a tenant's rate, so that it can begin."""


LOOK_INTERVALS = 10
"""How often it is looked which groups there are."""

FLOORS = {"bytes": 1024 * 1024, "requests": 16}
"""The lowest limit, a second. Only served I/O is seen here: a tenant held back to nothing
would look like one that wants nothing, and stay there."""

BUSY_PART = 0.9
WAITING_MIN = 2.0
"""A device that had requests for this part of an interval, and so many at a time, is saturated: they wait
inside of it, first come, first served, past any limit."""

QUIET_INTERVALS = 10
"""A quiet tenant's limit stays for so long: it may only be between two of the kernel's slices."""


class GroupEnforcer:
    """Implements `bursar.shares.target.Enforcer` for groups of one device.

    A tenant's tokens pay for reads and writes alike, but the kernel limits each on its own: the
    rate is divided as the tenant divided its I/O in the interval before."""

    def __init__(
        self,
        controller: Controller,
        device: str,
        look: Callable[[], Mapping[str, str]],
        found: FoundLimits,
        guard: Guard | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`look` says which groups there are now, by tenant."""
        self._controller = controller
        self._device = device
        self._look = look
        self._found = found
        self._groups: Mapping[str, str] = {}
        self._looked = LOOK_INTERVALS
        self._guard = guard
        self._counts: dict[str, Counts] = {}
        self._read_part: dict[str, float] = {}
        self._limits: dict[str, Limits] = {}
        self._quiet: dict[str, int] = {}
        self._floor = FLOORS[controller.unit]
        self._now_ns = now_ns
        self._queue = read_queue(device)
        self._queue_at = now_ns()

    async def collect(self) -> Seen:
        self._looked += 1
        if self._looked >= LOOK_INTERVALS:
            self._looked = 0
            self._take_groups(self._look())
        served: dict[str, int] = {}
        problems: list[str] = []
        for tenant in self._groups:
            try:
                self._collect_one(tenant, served, problems)
            except BursarError as error:
                # Begin anew when it comes back: what it did meanwhile is not known.
                self._counts.pop(tenant, None)
                self._limits.pop(tenant, None)
                if isinstance(error, GroupMissingError):
                    self._found.forget(self._groups[tenant])
                problems.append(f"tenant {tenant!r}: {error}")
        return Seen(served=served, problems=tuple(problems), saturated=self._is_saturated())

    def _take_groups(self, groups: Mapping[str, str]) -> None:
        """Groups come and go. One that is no longer a tenant, and still there, has its own limits back."""
        for tenant in [tenant for tenant in self._groups if tenant not in groups]:
            for known in (self._counts, self._read_part, self._limits, self._quiet):
                known.pop(tenant, None)
            self._found.give_back(self._controller, self._groups[tenant])
        self._groups = groups

    def _is_saturated(self) -> bool | None:
        before, began = self._queue, self._queue_at
        now, self._queue_at = read_queue(self._device), self._now_ns()
        self._queue = now
        if now is None or before is None:
            return None
        elapsed_ms = max(1.0, (self._queue_at - began) / 1e6)
        busy, waiting = now.busy_ms - before.busy_ms, now.waited_ms - before.waited_ms
        return busy >= BUSY_PART * elapsed_ms and waiting >= WAITING_MIN * elapsed_ms

    def _collect_one(self, tenant: str, served: dict[str, int], problems: list[str]) -> None:
        now = self._controller.read(self._groups[tenant], self._device)
        before = self._counts.get(tenant)
        self._counts[tenant] = now
        if before is None:
            return  # the first reading is where counting begins
        read, written = now.read - before.read, now.written - before.written
        if read < 0 or written < 0:
            self._limits.pop(tenant, None)
            problems.append(
                f"tenant {tenant!r}: its counters went backwards; it is left out of this interval"
            )
            return
        if read + written:
            served[tenant] = read + written
            self._read_part[tenant] = read / (read + written)

    async def apply(self, handout: Handout) -> None:
        if self._guard is not None:
            self._guard.ensure()
        failures = []
        for tenant, group in self._groups.items():
            line = handout.lines.get(tenant)
            try:
                if line is None:
                    self._lift(tenant, group)
                else:
                    self._limit(tenant, group, line.rate)
            except GroupMissingError:
                self._limits.pop(tenant, None)  # `collect` tells of it
            except BursarError as error:
                failures.append(str(error))
        if failures:
            raise BursarError("; ".join(failures))

    def _limit(self, tenant: str, group: str, rate: int) -> None:
        self._quiet[tenant] = 0
        part = self._read_part.get(tenant, 0.5)
        limits = Limits(
            max(self._floor, round(rate * max(part, OTHER_PART))),
            max(self._floor, round(rate * max(1 - part, OTHER_PART))),
        )
        if not _is_close(self._limits.get(tenant), limits):
            found = self._found.note(self._controller, group)
            self._controller.limit(group, self._device, _lower(limits, found))
            self._limits[tenant] = limits

    def _lift(self, tenant: str, group: str) -> None:
        self._quiet[tenant] = self._quiet.get(tenant, 0) + 1
        if self._quiet[tenant] < QUIET_INTERVALS:
            return
        if self._limits.pop(tenant, None) is not None:
            self._found.give_back(self._controller, group)

    async def release(self) -> None:
        """Give the groups back the limits that they had."""
        self._found.give_all_back(self._controller)
        self._limits.clear()
        if self._guard is not None:
            self._guard.dismiss()


def _lower(ours: Limits, found: Limits) -> Limits:
    """Limits set by others hold as well."""
    pairs = zip(ours, found, strict=True)
    return Limits(*(mine if other is None else min(mine or other, other) for mine, other in pairs))


def _is_close(old: Limits | None, new: Limits) -> bool:
    if old is None:
        return False
    pairs = [(a or 0, b or 0) for a, b in zip(old, new, strict=True)]
    return all(abs(a - b) <= CHANGE_PART * max(a, b) for a, b in pairs)
