"""A filter in front of a target that bursar does not see: requests go at the target's capacity,
in the filter's order, and wait no longer than they said."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from bursar.shares.filter import Filter
from bursar.shares.queues import Request
from bursar.units import Rate
from bursar.world import MILLISECOND_NS

ItemT = TypeVar("ItemT")

SLACK_NS = 10 * MILLISECOND_NS
"""How much of an idle moment may be made up for: timers ring a little late."""


AHEAD_SLACK_NS = 2 * MILLISECOND_NS
"""The same for requests that go ahead of their time."""

_SWEEP_MIN = 64


class Gate(Generic[ItemT]):
    """Invariant: the tokens let through in any span of time are at most the capacity times that
    span and `SLACK_NS`, and one request more."""

    def __init__(self, capacity: Rate) -> None:
        self.filter: Filter[ItemT] = Filter(size_min=capacity.per(SLACK_NS))
        self._capacity = capacity
        self._free_at: int | None = None
        self._deadlines: list[tuple[int, int, Request[ItemT]]] = []
        self._numbered = 0
        self._sweep_at = _SWEEP_MIN

    def set_capacity(self, capacity: Rate) -> None:
        """For requests from now on."""
        self._capacity = capacity

    def try_pass(self, tenant: str, cost: int, now: int) -> bool:
        """Let one request through at once, or not at all."""
        if not self._is_free(now):
            self.filter.refuse(tenant, cost)
            return False
        if not self.filter.take_from(tenant, cost, now):
            return False
        self._charge(cost, now)
        return True

    def submit(self, tenant: str, cost: int, item: ItemT, wait_until: int, now: int) -> Request[ItemT]:
        request = self.filter.submit(tenant, cost, item, now)
        self._numbered += 1
        heappush(self._deadlines, (wait_until, self._numbered, request))
        if len(self._deadlines) > self._sweep_at:
            self._sweep()
        return request

    def _sweep(self) -> None:
        """Forget the deadlines of requests that are gone: long ones would pile up."""
        self._deadlines = [entry for entry in self._deadlines if entry[2].queued]
        heapify(self._deadlines)
        self._sweep_at = max(_SWEEP_MIN, 2 * len(self._deadlines))

    def pass_due(self, now: int) -> list[Request[ItemT]]:
        """Those that may go now, in order. What is due makes up for a late timer; what goes ahead
        of its time does so for less: a tenant that answers within a timer's delay keeps its turn."""
        passed = []
        while self._is_free(now):
            request = self.filter.take(now, due_only=True)
            if request is None:
                request = self.filter.take(now)
                if request is None:
                    break
                self._free_at = max(self._free_at or now, now - AHEAD_SLACK_NS)
            self._charge(request.cost, now)
            passed.append(request)
        return passed

    def expire(self, now: int) -> list[Request[ItemT]]:
        """Those that have waited as long as they said; they are gone from here."""
        expired = []
        while self._deadlines and (self._deadlines[0][0] <= now or not self._deadlines[0][2].queued):
            request = heappop(self._deadlines)[2]
            if self.filter.withdraw(request, now):
                expired.append(request)
        return expired

    def wake_at(self) -> int | None:
        """When `pass_due` or `expire` has something to do."""
        times = [self._deadlines[0][0]] if self._deadlines else []
        if len(self.filter):
            times.append(self._free_at or 0)
        return min(times, default=None)

    def free_at(self) -> int:
        """When the target has room for another request."""
        return self._free_at or 0

    def _is_free(self, now: int) -> bool:
        return self._free_at is None or self._free_at <= now

    def _charge(self, cost: int, now: int) -> None:
        busy_ns = -(-cost * self._capacity.per_ns // self._capacity.count)
        begins = now - SLACK_NS if self._free_at is None else max(self._free_at, now - SLACK_NS)
        self._free_at = begins + busy_ns
