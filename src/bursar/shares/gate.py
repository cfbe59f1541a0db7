"""A filter in front of a target that bursar does not see: requests go at the target's capacity, in
the filter's order."""

from __future__ import annotations

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


class Gate(Generic[ItemT]):
    """Invariants: the tokens let through in any span of time, less those given back in it, are at
    most the capacity times that span and `SLACK_NS`, and one request more; tokens ahead never make
    the target busy, so nobody waits for what nobody has asked for yet."""

    def __init__(self, capacity: Rate) -> None:
        self.filter: Filter[ItemT] = Filter(size_min=capacity.per(SLACK_NS))
        self._capacity = capacity
        self._free_at: int | None = None

    def set_capacity(self, capacity: Rate) -> None:
        """For requests from now on."""
        self._capacity = capacity
        self.filter.size_min = capacity.per(SLACK_NS)

    def try_pass(self, tenant: str, cost: int, now: int) -> bool:
        """Let one request through at once, if the target has room and nobody waits. If not, it was
        not counted: queue it (`filter.submit`), or say that it was refused (`filter.refuse`)."""
        if not self._is_free(now) or len(self.filter):
            return False
        passed = self.filter.take_from(tenant, cost, now)
        assert passed, "an eager filter lets a request go that finds nobody waiting"
        self._charge(cost, now)
        return True

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

    # Tokens charged and not used, or not used yet

    def take_ahead(self, tenant: str, tokens: int, now: int) -> int:
        """Charge up to so many tokens for requests to come: as many as the tenant's bucket holds and
        the target could do at this moment. How many that was."""
        tokens = self.filter.take_ahead(tenant, min(tokens, self.idle_tokens(now)), now)
        if tokens:
            self._charge(tokens, now)
        return tokens

    def give_back(self, tenant: str, tokens: int, now: int) -> None:
        """Undo the charge of tokens that were not used: of the bucket, and of the target's time."""
        self.filter.give_back(tenant, tokens, now)
        if self._free_at is not None:
            self._free_at -= self._busy_ns(tokens)

    # When

    def wake_at(self) -> int | None:
        """When `pass_due` has something to do."""
        return (self._free_at or 0) if len(self.filter) else None

    def drained_at(self, now: int) -> int:
        """When all that waits has gone, and the target has room for another request."""
        free_at = now if self._free_at is None else max(now, self._free_at)
        return free_at + self._busy_ns(self.filter.backlog)

    def idle_tokens(self, now: int) -> int:
        """What the target could do at this moment, to make up for the time in which it was idle."""
        idle_ns = SLACK_NS if self._free_at is None else min(now - self._free_at, SLACK_NS)
        return self._capacity.per(max(0, idle_ns))

    def full_at(self, now: int) -> int:
        """When `idle_tokens` is as large as it gets, if nobody asks for anything."""
        return now if self._free_at is None else max(now, self._free_at + SLACK_NS)

    def _is_free(self, now: int) -> bool:
        return self._free_at is None or self._free_at <= now

    def _charge(self, cost: int, now: int) -> None:
        begins = now - SLACK_NS if self._free_at is None else max(self._free_at, now - SLACK_NS)
        self._free_at = begins + self._busy_ns(cost)

    def _busy_ns(self, tokens: int) -> int:
        return -(-tokens * self._capacity.per_ns // self._capacity.count)
