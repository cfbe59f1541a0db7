"""Where requests wait: classes with a bucket, and the fallback queue without one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from bursar.shares.rules import Rule
from bursar.world import SECOND_NS

ItemT = TypeVar("ItemT")


class Request(Generic[ItemT]):
    """One queued request; `item` is the caller's."""

    __slots__ = ("arrived_at", "cost", "home", "item", "operation", "queued", "tenant", "ticket")

    def __init__(self, tenant: str, operation: str, cost: int, item: ItemT, now: int) -> None:
        self.tenant = tenant
        self.operation = operation
        self.cost = cost
        self.item = item
        self.arrived_at = now
        self.queued = True
        self.home: Class[ItemT] | None = None  # None: the fallback queue
        self.ticket = 0


class Class(Generic[ItemT]):
    """One tenant's requests under one rule. `tokens` are billionths, as of `counted_at`. A bucket is
    full at first: a size of 0 is one that no request has shown yet."""

    __slots__ = ("counted_at", "queue", "rank", "rate", "size", "tokens", "version")

    def __init__(self, rate: int, rank: int, size: int, now: int) -> None:
        self.rate = rate
        self.rank = rank
        self.size = size
        self.queue: deque[Request[ItemT]] = deque()
        self.tokens = size * SECOND_NS
        self.counted_at = now
        self.version = 0

    def show(self, size: int, now: int) -> None:
        """How much its bucket holds."""
        if not self.size:
            self.tokens = size * SECOND_NS
        self.size = size
        self.count(now)

    def count(self, now: int) -> None:
        """Fill the bucket up to this moment, and not beyond its size."""
        filled = self.tokens + self.rate * max(0, now - self.counted_at)
        self.tokens = min(self.size * SECOND_NS, filled)
        self.counted_at = max(now, self.counted_at)

    def charge(self, cost: int) -> None:
        """Down to one size below empty: what idle threads gave costs no more than that."""
        self.tokens = max(-self.size * SECOND_NS, self.tokens - cost * SECOND_NS)

    def due_at(self, cost: int) -> int:
        """When the bucket covers `cost`."""
        missing = cost * SECOND_NS - self.tokens
        return self.counted_at + max(0, -(-missing // self.rate))


@dataclass(slots=True)
class Usage:
    """What one tenant did since it was last collected, in tokens."""

    arrived: int = 0
    served: int = 0
    backlog: int = 0
    refused: int = 0
    refused_most: int = 0

    @property
    def demand(self) -> int:
        """Arrivals and the backlog from before: equal to what was served plus what waits. What
        was refused counts too, but only up to as much again: asking in a tight loop is no way to
        a larger share."""
        return self.served + self.backlog + min(self.refused, self.served + self.refused_most)

    def refuse(self, cost: int) -> None:
        self.refused += cost
        self.refused_most = max(self.refused_most, cost)

    def begin(self) -> None:
        """Count anew; what waits goes on waiting."""
        self.arrived = self.served = self.refused = self.refused_most = 0


class Fallback(Generic[ItemT]):
    """Requests that no rule matches, first come, first served.

    A request may leave from the middle (withdrawn, or matched by a new rule) and come back: each
    stay has a ticket, and an entry whose ticket is no longer its request's is passed over."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, Request[ItemT]]] = deque()
        self._of_tenant: dict[str, dict[int, Request[ItemT]]] = {}
        self._tickets = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request[ItemT]) -> None:
        self._tickets += 1
        self._count += 1
        request.home = None
        request.ticket = self._tickets
        self._queue.append((self._tickets, request))
        self._of_tenant.setdefault(request.tenant, {})[self._tickets] = request

    @property
    def head(self) -> Request[ItemT]:
        """The first; there must be one."""
        while self._queue[0][1].ticket != self._queue[0][0]:
            self._queue.popleft()
        return self._queue[0][1]

    def remove(self, request: Request[ItemT]) -> None:
        mine = self._of_tenant[request.tenant]
        del mine[request.ticket]
        if not mine:
            del self._of_tenant[request.tenant]
        request.ticket = 0
        self._count -= 1

    def take_of(self, tenant: str) -> list[Request[ItemT]]:
        """Remove those of one tenant, oldest first."""
        found = list(self._of_tenant.get(tenant, {}).values())
        for request in found:
            self.remove(request)
        return found

    def take_matching(self, rule: Rule) -> list[Request[ItemT]]:
        """Remove those that come under a new rule, oldest first."""
        named = [rule.tenant] if not rule.is_wide else list(self._of_tenant)
        found = [
            request
            for tenant in named
            for request in self._of_tenant.get(tenant, {}).values()
            if rule.matches(request.tenant, request.operation)
        ]
        found.sort(key=lambda request: request.ticket)
        for request in found:
            self.remove(request)
        return found
