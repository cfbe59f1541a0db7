"""The last minutes: readings by number, and rates made of counters."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bursar.dashboard.source import Reading

KEPT = 300
"""Samples kept: five minutes at one a second."""

ROWS_KEPT = 300_000
"""Rows of tenants kept, over all samples: with very many tenants the past is shorter."""

WHOLE_KEPT = 20
"""Samples kept whole, to be asked for by number; of older ones only what lines are drawn from."""

LOOKED_FOR_SAMPLES = 4
LOOKED_FOR_MAX = 16


@dataclass(frozen=True)
class Sample:
    """A reading, when it was taken (seconds), and its number."""

    number: int
    at_s: float
    wall_s: float
    reading: Reading


class History:
    """Samples, newest last."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._count = 0
        self._looked_for: dict[str, int] = {}
        self._latest_rates: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}

    def add(self, at_s: float, wall_s: float, reading: Reading) -> Sample:
        self._count += 1
        sample = Sample(self._count, at_s, wall_s, reading)
        self._samples.append(sample)
        self._latest_rates.clear()
        if len(self._samples) > WHOLE_KEPT:
            self._samples[-WHOLE_KEPT - 1] = _thin(self._samples[-WHOLE_KEPT - 1])
        rows = sum(len(tenants_of(statistics)) for statistics in reading.statistics.values())
        kept = max(WHOLE_KEPT, min(KEPT, ROWS_KEPT // max(1, rows)))
        while len(self._samples) > kept:
            self._samples.popleft()
        return sample

    @property
    def latest(self) -> Sample | None:
        return self._samples[-1] if self._samples else None

    def look_for(self, text: str) -> None:
        """Somebody looks for tenants with this in their names: the next samples are to have them."""
        if text:
            self._looked_for[text] = self._count

    @property
    def looked_for(self) -> list[str]:
        """What was looked for since the last few samples, the latest first."""
        recent = {text: at for text, at in self._looked_for.items() if at > self._count - LOOKED_FOR_SAMPLES}
        self._looked_for = recent
        return sorted(recent, key=lambda text: -recent[text])[:LOOKED_FOR_MAX]

    @property
    def before(self) -> Sample | None:
        """The one before the latest."""
        return self._samples[-2] if len(self._samples) > 1 else None

    def find(self, number: int) -> Sample | None:
        """A sample that is still whole."""
        return next((sample for sample in self._whole() if sample.number == number), None)

    def _whole(self) -> list[Sample]:
        return list(self._samples)[-WHOLE_KEPT:]

    def rates(
        self, resource: str, fields: tuple[str, ...], tenants: Collection[str] | None = None
    ) -> dict[str, list[tuple[float, float]]]:
        """Of each tenant (of `tenants`): (wall time in ms, tokens a second) between samples, from
        counters."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for before, after in itertools.pairwise(self._samples):
            for tenant, rate in _compare(before, after, resource, fields, tenants):
                lines.setdefault(tenant, []).append((round(after.wall_s * 1000), rate))
        return lines

    def latest_rates(self, resource: str, fields: tuple[str, ...]) -> Mapping[str, float]:
        """Of each tenant: tokens a second between the last two samples; where that is not known,
        between the two before."""
        known = self._latest_rates.get((resource, fields))
        if known is None:
            known = self._latest_rates[resource, fields] = {}
            for before, after in itertools.pairwise(list(self._samples)[-3:]):
                known |= dict(_compare(before, after, resource, fields, None))
        return known

    def levels(
        self, resource: str, field: str, tenants: Collection[str]
    ) -> dict[str, list[tuple[float, float]]]:
        """Of each of `tenants`: (wall time in ms, the figure as it was)."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for sample in self._samples:
            rows = _tenants(sample, resource)
            for tenant in tenants:
                if tenant in rows and rows[tenant].get(field) is not None:
                    lines.setdefault(tenant, []).append((round(sample.wall_s * 1000), rows[tenant][field]))
        return lines

    def totals(self, resource: str, fields: tuple[str, ...]) -> dict[str, list[tuple[float, float]]]:
        """Of each field: (wall time in ms, the figure of the whole resource as it was)."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for sample in self._samples:
            statistics = sample.reading.statistics.get(resource, {})
            for field in fields:
                if isinstance(statistics.get(field), int | float):
                    lines.setdefault(field, []).append((round(sample.wall_s * 1000), statistics[field]))
        return lines


def tenants_of(figures: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The figures by tenant."""
    found: Mapping[str, Mapping[str, Any]] = figures.get("tenants", {})
    return found


def count_tenants(figures: Mapping[str, Any]) -> int:
    """All of them, also those without figures here."""
    whole = figures.get("totals")
    return whole["tenants"] if whole else len(tenants_of(figures))


def _compare(
    before: Sample, after: Sample, resource: str, fields: tuple[str, ...], wanted: Collection[str] | None
) -> Iterator[tuple[str, float]]:
    old, new = _tenants(before, resource), _tenants(after, resource)
    passed_s = after.at_s - before.at_s
    for tenant in new if wanted is None else wanted:
        if tenant in old and tenant in new and passed_s > 0:
            grown = sum(new[tenant].get(name, 0) - old[tenant].get(name, 0) for name in fields)
            # A node that is gone, or was started again, takes its counters with it: nothing is known.
            if grown >= 0:
                yield tenant, round(grown / passed_s, 1)


def _thin(sample: Sample) -> Sample:
    """Without what is nested deeper than a tenant's figures."""
    reading = sample.reading
    thin = {
        name: {
            key: value
            for key, value in statistics.items()
            if key == "tenants" or not isinstance(value, Mapping | list)
        }
        for name, statistics in reading.statistics.items()
    }
    return replace(sample, reading=replace(reading, statistics=thin))


def _tenants(sample: Sample, resource: str) -> Mapping[str, Mapping[str, Any]]:
    return tenants_of(sample.reading.statistics.get(resource, {}))
