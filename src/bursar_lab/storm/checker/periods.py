"""Told grants of a resource by the period that they were charged to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bursar_lab.storm.checker.grants import Grant


@dataclass(slots=True)
class Period:
    """A period and what was told of it. It was open at some moment of each of its grants: it began no
    later than the first was answered, and ended no earlier than the last was asked for."""

    number: int
    first_end: int
    last_at: int
    used: dict[str, int] = field(default_factory=dict)
    grants: dict[str, list[Grant]] = field(default_factory=dict)

    def add(self, grant: Grant) -> None:
        self.first_end = min(self.first_end, grant.end)
        self.last_at = max(self.last_at, grant.at)
        self.used[grant.tenant] = self.used.get(grant.tenant, 0) + grant.used
        self.grants.setdefault(grant.tenant, []).append(grant)

    def list_all(self) -> Iterator[Grant]:
        for grants in self.grants.values():
            yield from grants


def group_by_period(grants: Iterable[Grant]) -> dict[int, Period]:
    """By number, in the order of the numbers. A grant without one is in none."""
    periods: dict[int, Period] = {}
    for grant in grants:
        if grant.period > 0:
            period = periods.get(grant.period)
            if period is None:
                period = periods[grant.period] = Period(grant.period, grant.end, grant.at)
            period.add(grant)
    return dict(sorted(periods.items()))
