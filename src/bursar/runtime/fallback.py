"""What a client does while the daemon cannot be reached: what the policy says, counted."""

from __future__ import annotations

from collections import Counter

from bursar.errors import Unknown
from bursar.policy.values import WithoutBursar
from bursar.units import Rate
from bursar.world import SECOND_NS, Clock

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


class Fallback:
    """Decides in place of one resource. `counts` says how often, and how."""

    def __init__(self, policy: WithoutBursar, clock: Clock) -> None:
        self.policy = policy
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._tenants: dict[str, SafeRate] = {}

    def decide(self, tenant: str, amount: int, why: str) -> str:
        """The name of what let the caller go on. Raises Unknown where nothing does."""
        mode = self.policy.mode
        if mode == "keep" or (mode == "safe" and self._take_safely(tenant, amount)):
            self.counts[mode] += 1
            return mode
        self.counts["refuse"] += 1
        if mode == "safe":
            why = f"{why}; and the safe rate of {tenant} is used up for now"
        raise Unknown(why, fallback=mode)

    def _take_safely(self, tenant: str, amount: int) -> bool:
        assert self.policy.rate is not None, "a safe policy has a rate"
        now = self._clock.now()
        safe = self._tenants.pop(tenant, None) or SafeRate(self.policy.rate, now)
        self._tenants[tenant] = safe
        if len(self._tenants) > TENANTS_MAX:
            del self._tenants[next(iter(self._tenants))]
        return safe.take(now, amount)
