"""Who has a label of its own in the metrics, and the sum of those who have not.

A scraper keeps a series for each tenant that it ever saw, so their number is bounded
(`[daemon] metrics_tenants`). Who has a label keeps it: series that come and go cost more than series
that stay. The rest are summed as tenant="other"; that sum never falls, also when one of them is gone,
begins anew or gets a label, for a scraper takes a counter that fell for one that began at 0 again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import add, lt

OTHER = "other"


class TenantLabels:
    """The tenants of one resource that have a label of their own: at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._own: dict[str, None] = {}

    def choose(self, sizes: Mapping[str, float]) -> None:
        """Give labels to those who have none: to all if there is room for all, else to those with a
        size above 0, the largest first. `sizes` has every tenant there is."""
        # A tenant of that very name stays in the sum: one label cannot mean both.
        sizes = {name: size for name, size in sizes.items() if name != OTHER}
        for gone in [name for name in self._own if name not in sizes]:
            del self._own[gone]
        crowded = len(sizes) > self._most
        wanted = [name for name, size in sizes.items() if name not in self._own and (size or not crowded)]
        room = self._most - len(self._own)
        if len(wanted) > room:
            wanted = sorted(wanted, key=lambda name: -sizes[name])[:room]
        self._own.update(dict.fromkeys(wanted))

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._own


class OtherSum:
    """The columns of one table, summed over the tenants without a label: in each scrape `add` every
    one of them, then `finish`."""

    def __init__(self, rising: Sequence[bool]) -> None:
        """`rising` says which columns are counters."""
        self._rising = rising
        self._kept: list[float] = [0] * len(rising)
        self._last: dict[str, tuple[float, ...]] = {}
        self._now: dict[str, tuple[float, ...]] = {}
        self._sums: list[float] = [0] * len(rising)

    def add(self, tenant: str, row: Iterable[float | None]) -> None:
        values = tuple([value or 0 for value in row])
        last = self._last.pop(tenant, None)
        if last is not None and any(map(lt, values, last)):
            self._keep(was if now < was else 0 for was, now in zip(last, values, strict=True))
        self._now[tenant] = values
        self._sums = list(map(add, self._sums, values))

    def _keep(self, gone: Iterable[float]) -> None:
        """What was counted and is no longer: it stays in the sum."""
        self._kept = [
            kept + value if rises else 0
            for kept, value, rises in zip(self._kept, gone, self._rising, strict=True)
        ]

    def finish(self) -> list[float] | None:
        """The sums; None while there is nobody to sum."""
        if self._last:
            self._keep([sum(column) for column in zip(*self._last.values(), strict=True)])
        found = list(map(add, self._kept, self._sums)) if self._now or any(self._kept) else None
        self._last, self._now, self._sums = self._now, {}, [0] * len(self._rising)
        return found
