"""The last minutes: readings by number, and rates made of counters."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from bursar.dashboard.source import Reading

KEPT = 300
"""Samples kept: five minutes at one a second."""


@dataclass(frozen=True)
class Sample:
    """A reading, when it was taken (seconds), and its number."""

    number: int
    at_s: float
    wall_s: float
    reading: Reading


class History:
    """Samples, newest last."""

    def __init__(self, kept: int = KEPT) -> None:
        self._samples: deque[Sample] = deque(maxlen=kept)
        self._count = 0

    def add(self, at_s: float, wall_s: float, reading: Reading) -> Sample:
        self._count += 1
        sample = Sample(self._count, at_s, wall_s, reading)
        self._samples.append(sample)
        return sample

    @property
    def latest(self) -> Sample | None:
        return self._samples[-1] if self._samples else None

    def find(self, number: int) -> Sample | None:
        return next((sample for sample in self._samples if sample.number == number), None)

    def rates(self, resource: str, field: str | tuple[str, ...]) -> dict[str, list[tuple[float, float]]]:
        """Of each tenant: (wall time in ms, tokens a second) between samples, from counters."""
        fields = (field,) if isinstance(field, str) else field
        lines: dict[str, list[tuple[float, float]]] = {}
        samples = list(self._samples)
        for before, after in itertools.pairwise(samples):
            old, new = _tenants(before, resource), _tenants(after, resource)
            passed_s = after.at_s - before.at_s
            for tenant, row in new.items():
                if tenant in old and passed_s > 0:
                    grown = sum(row.get(name, 0) - old[tenant].get(name, 0) for name in fields)
                    # A node that was started again counts from zero.
                    rate = round(max(0, grown) / passed_s, 1)
                    lines.setdefault(tenant, []).append((round(after.wall_s * 1000), rate))
        return lines

    def levels(self, resource: str, field: str) -> dict[str, list[tuple[float, float]]]:
        """Of each tenant: (wall time in ms, the figure as it was)."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for sample in self._samples:
            for tenant, row in _tenants(sample, resource).items():
                if field in row:
                    lines.setdefault(tenant, []).append((round(sample.wall_s * 1000), row[field]))
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


def tenants_of(statistics: Mapping[str, object]) -> Mapping[str, Mapping[str, int]]:
    """The figures by tenant, under either of the names that kinds use."""
    found = statistics.get("tenants") or statistics.get("tenant") or {}
    assert isinstance(found, Mapping)
    return found


def _tenants(sample: Sample, resource: str) -> Mapping[str, Mapping[str, int]]:
    return tenants_of(sample.reading.statistics.get(resource, {}))
