"""What a client does while the daemon cannot be reached: what the policy says, counted by the door."""

from __future__ import annotations

from typing import TypeVar

from bursar.policy.values import WithoutBursar
from bursar.units import Rate
from bursar.world import SECOND_NS

ValueT = TypeVar("ValueT")

TENANTS_MAX = 10_000
BURST_NS = SECOND_NS // 10


class SafeRate:
    """One tenant's tokens at a safe rate: never more than the rate over any time, plus a burst of a
    tenth of a second (or one token). Exact: credit is counted in tokens times `per_ns`."""

    def __init__(self, rate: Rate, now: int) -> None:
        self._rate = rate
        self._most = max(rate.count * BURST_NS, rate.per_ns)
        self._credit = self._most
        self._at = now

    def take(self, now: int, amount: int) -> bool:
        self._credit = min(self._most, self._credit + (now - self._at) * self._rate.count)
        self._at = now
        cost = amount * self._rate.per_ns
        if cost > self._credit:
            return False
        self._credit -= cost
        return True


class Kept:
    """What one tenant was charged here, period by period: in each period without a daemon it may have
    as much again as in the last one that was seen to end, and so never more than its limit."""

    __slots__ = ("_alone_at", "_alone_used", "_began_at", "_charged", "_last", "_period")

    def __init__(self) -> None:
        self._period = -1
        self._began_at = 0
        self._charged = self._last = 0
        self._alone_at = -1
        self._alone_used = 0

    def charge(self, now: int, period: int, tokens: int, period_ns: int) -> None:
        """`period` 0: the kind has none, and the time is divided by this clock."""
        number = period or now // period_ns
        if number != self._period:
            self._last = self._charged
            self._period, self._began_at, self._charged = number, now, 0
        self._charged = max(0, self._charged + tokens)

    def take(self, now: int, amount: int, period_ns: int) -> bool:
        """Whether so many may go without the daemon."""
        ended = now - self._began_at >= period_ns
        most = self._charged if ended else self._last
        window = now // period_ns
        if window != self._alone_at:
            self._alone_at, self._alone_used = window, 0
        if self._alone_used + amount > most:
            return False
        self._alone_used += amount
        return True


class Fallback:
    """Decides in place of one resource."""

    def __init__(self, policy: WithoutBursar, period_ns: int) -> None:
        self._policy = policy
        self.period_ns = period_ns
        self._safe: dict[str, SafeRate] = {}
        self._kept: dict[str, Kept] = {}

    @property
    def policy(self) -> WithoutBursar:
        return self._policy

    @policy.setter
    def policy(self, policy: WithoutBursar) -> None:
        """What was counted at another safe rate counts no longer."""
        if policy != self._policy:
            self._policy = policy
            self._safe.clear()

    def charge(self, now: int, tenant: str, period: int, tokens: int) -> None:
        """The daemon charged so many (fewer than none: took them back)."""
        kept = self._kept.pop(tenant, None) or Kept()
        kept.charge(now, period, tokens, self.period_ns)
        _remember(self._kept, tenant, kept)

    def allows(self, now: int, tenant: str, amount: int) -> bool:
        """Whether the caller may go on without an answer."""
        if self.policy.mode == "keep":
            kept = self._kept.get(tenant)
            return kept is not None and kept.take(now, amount, self.period_ns)
        if self.policy.mode == "safe":
            assert self.policy.rate is not None, "a safe policy has a rate"
            safe = self._safe.pop(tenant, None) or SafeRate(self.policy.rate, now)
            _remember(self._safe, tenant, safe)
            return safe.take(now, amount)
        return False


def _remember(table: dict[str, ValueT], tenant: str, value: ValueT) -> None:
    table[tenant] = value
    if len(table) > TENANTS_MAX:
        del table[next(iter(table))]
