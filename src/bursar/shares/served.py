"""What tenants want, where only finished I/O is seen: it grows where a limit is full, and follows use
where it is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from bursar.shares.handout import BACKLOGGED_PART, Handout, Line
from bursar.world import SECOND_NS

FULL_INTERVALS = 2
"""Intervals looked at to tell whether a limit is full: kernels let I/O go in slices as long as an
interval, so a backlogged tenant may show nothing in one and twice its tokens in another."""

USE_INTERVALS = 5
"""Intervals over which use is averaged. What comes in bursts is let go up to the tenant's own part all
the same, so an average wastes nothing and holds nobody up."""

GROWTH_PART = 0.1
"""What a full tenant is first taken to want beyond its limit; twice as much in each interval in which
it stays full. Most tenants that touch their limit once want little more, and what they are given and
leave is lost to others."""

WAITING_PART = 0.5
"""Where requests wait inside of the target, whoever has this part of what is its own is taken to want all
of it: it may be among those that wait there."""


@dataclass(slots=True)
class _Tenant:
    used: deque[float] = field(default_factory=lambda: deque(maxlen=USE_INTERVALS))
    limits: deque[float] = field(default_factory=lambda: deque(maxlen=FULL_INTERVALS))
    growth: float = 0.0

    def is_full(self) -> bool:
        """Whether it used nearly all that it was let have lately. A tenant without a limit is not full."""
        if len(self.limits) < FULL_INTERVALS:
            return False
        used = sum(list(self.used)[-FULL_INTERVALS:])
        return used > 0 and used >= BACKLOGGED_PART * sum(self.limits)

    def is_idle(self) -> bool:
        return not any(list(self.used)[-FULL_INTERVALS:])

    def use(self) -> float:
        return sum(self.used) / len(self.used)


class ServedDemand:
    """Tokens an interval that each tenant is taken to want. Those that stopped are forgotten."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def is_full(self, tenant: str) -> bool:
        known = self._tenants.get(tenant)
        return known is not None and known.growth > 0

    def add(
        self,
        served: Mapping[str, int],
        lines: Mapping[str, Line],
        interval_ns: int,
        elapsed_ns: int,
        whole: int,
        *,
        saturated: bool = False,
    ) -> dict[str, int]:
        """Take in what was served in `elapsed_ns` under the rates of `lines`; what each tenant wants of
        an interval, at most `whole`, a target's all."""
        scale = interval_ns / max(1, elapsed_ns)
        demand: dict[str, int] = {}
        for name in [*served, *(name for name in self._tenants if name not in served)]:
            tenant = self._tenants.setdefault(name, _Tenant())
            tenant.used.append(served.get(name, 0) * scale)
            line = lines.get(name)
            if line is None:
                tenant.limits.clear()
            else:
                tenant.limits.append(line.rate * interval_ns / SECOND_NS)
            if tenant.is_idle():
                del self._tenants[name]
            else:
                demand[name] = self._estimate(tenant, whole)
                if saturated and line is not None and tenant.use() >= WAITING_PART * line.initial:
                    demand[name] = max(demand[name], line.initial)
        return demand

    @staticmethod
    def _estimate(tenant: _Tenant, whole: int) -> int:
        if not tenant.is_full():
            tenant.growth = 0.0
            return max(1, round(tenant.use()))
        tenant.growth = min(2 * tenant.growth or GROWTH_PART, 1e6)
        most = max(tenant.limits[-1], tenant.used[-1])
        return max(1, min(round(most * (1 + tenant.growth)), max(whole, round(tenant.use()))))

    def unused(self, handout: Handout, *, saturated: bool) -> dict[str, int]:
        """Of the tokens that tenants had beyond their own part, lent or paid back, those that they
        have left unused; all of them on a saturated target, where nobody can tell who lends and who
        waits inside of it."""
        left: dict[str, int] = {}
        for name, line in handout.lines.items():
            more = line.final - line.initial
            if more <= 0 or (self.is_full(name) and not saturated):
                continue
            if saturated:
                left[name] = more
                continue
            known = self._tenants.get(name)
            unused = min(more, line.final - round(known.use() if known else 0.0))
            if unused > 0:
                left[name] = unused
        return left
