"""Metrics from statistics: what a struct declares of itself becomes Prometheus text.

    waiting: Annotated[int, gauge("requests that wait")]         bursar_waiting{resource,kind}
    tenants: Annotated[Mapping[str, Tally], labelled("tenant")]
      granted: Annotated[int, counter("tokens granted")]         bursar_tenant_granted_total{...,tenant}
    part: what the resource's kind says                          bursar_rate_...
    texts, as labels of                                          bursar_policy_info, bursar_rate_info

Names never hold what belongs in a label (tenants, servers, windows). Everything is made in steps, so
that a scrape of very many tenants keeps nobody waiting (`slices`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from bursar.resource.statistics import Statistics
from bursar.runtime.exposition import Exposition, write_label, write_labels
from bursar.runtime.outlines import Column, Labelled, Outline, outline, scale
from bursar.runtime.slices import Steps
from bursar.runtime.tenant_labels import OTHER, OtherSum, TenantLabels

ROWS = 50
"""Rows of a table in one step."""

TENANT = "tenant"
BOUNDED = (TENANT, "account")
"""Labels with a value for each tenant (an account is a tenant's, in a window: "acme@2026-11")."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the statistics: what names begin with there, and the labels of all that is below."""

    name: str
    info: str
    labels: str
    known: frozenset[str]

    @classmethod
    def top(cls, name: str, info: str, labels: Mapping[str, str]) -> Place:
        return cls(name, info, write_labels(labels), frozenset(labels))

    def below(self, name: str) -> Place:
        name = f"{self.name}_{name}"
        return Place(name, f"{name}_info", self.labels, self.known)

    def at(self, label: str, value: str) -> Place:
        labels = f"{self.labels},{write_label(label, value)}"
        return Place(self.name, self.info, labels, self.known | {label})

    @property
    def head(self) -> str:
        return f"{{{self.labels}}}"


class ResourceMetrics:
    """The metrics of one resource, scrape by scrape: it remembers which tenants have a label."""

    def __init__(self, tenants_most: int) -> None:
        self._own = TenantLabels(tenants_most)
        self._others: dict[Place, tuple[Outline, OtherSum]] = {}

    def export(self, text: Exposition, statistics: Statistics) -> Steps[None]:
        """What the door and the kind count."""
        sizes: dict[str, float] = dict.fromkeys(_list_tenants(statistics.part), 0)
        for number, name in enumerate(statistics.tenants):
            row = statistics.tenants.get(name)
            sizes[name] = row.granted if row is not None else 0
            if number % ROWS == 0:
                yield
        labels = {"resource": statistics.resource, "kind": statistics.kind}
        place = Place.top("bursar", "bursar_policy_info", labels)
        yield from self.export_struct(text, place, statistics, sizes)

    def export_struct(
        self, text: Exposition, place: Place, struct: msgspec.Struct, sizes: Mapping[str, float]
    ) -> Steps[None]:
        """Any struct that declares what it is. `sizes` has its tenants: if there are too many, the
        largest have labels."""
        self._own.choose(sizes)
        yield
        yield from self._walk(text, place, struct)

    def _walk(self, text: Exposition, place: Place, struct: msgspec.Struct) -> Steps[None]:
        shape = outline(type(struct))
        _export_rows(text, place, shape, [place.head], [shape.read(struct)])
        yield from self._walk_rest(text, place, shape, struct)

    def _walk_rest(
        self, text: Exposition, place: Place, shape: Outline, struct: msgspec.Struct
    ) -> Steps[None]:
        """What is more than a number."""
        _export_texts(text, place, shape, struct)
        for found in shape.histograms:
            waited = getattr(struct, found.field)
            name = f"{place.name}_{found.name}"
            text.add_histogram(name, found.what, place.labels, waited.bounds_s, waited.counts, waited.sum_s)
        for field in shape.nested:
            part = getattr(struct, field)
            if part is not None:
                kind = struct.kind if isinstance(struct, Statistics) else field
                yield from self._walk(text, place.below(kind), part)
        for table in shape.tables:
            rows = getattr(struct, table.field) or {}
            if table.column is not None:
                _export_numbers(text, place, table, table.column, rows)
            else:
                yield from self._walk_table(text, place.below(table.label), table.label, rows)

    def _walk_table(
        self, text: Exposition, place: Place, label: str, table: Mapping[str, msgspec.Struct]
    ) -> Steps[None]:
        names = list(table)
        for start in range(0, len(names), ROWS):
            chosen = names[start : start + ROWS]
            rows = [(name, row) for name in chosen if (row := table.get(name)) is not None]
            if label in BOUNDED:
                self._sum_others(place, [item for item in rows if not self._has_label(item[0])])
                rows = [item for item in rows if self._has_label(item[0])]
            if rows:
                yield from self._walk_rows(text, place, label, rows)
            yield
        if place in self._others:
            _export_others(text, place.at(label, OTHER), *self._others[place])

    def _has_label(self, name: str) -> bool:
        return name in self._own or ("@" in name and name.rpartition("@")[0] in self._own)

    def _walk_rows(
        self, text: Exposition, place: Place, label: str, rows: list[tuple[str, msgspec.Struct]]
    ) -> Steps[None]:
        shape = outline(type(rows[0][1]))
        places = [place.at(label, name) for name, _ in rows]
        _export_rows(text, place, shape, [one.head for one in places], [shape.read(row) for _, row in rows])
        if shape.labels or shape.histograms or shape.nested or shape.tables:
            for one, (_, row) in zip(places, rows, strict=True):
                yield from self._walk_rest(text, one, shape, row)
                yield

    def _sum_others(self, place: Place, rows: list[tuple[str, msgspec.Struct]]) -> None:
        for name, row in rows:
            if place not in self._others:
                shape = outline(type(row))
                self._others[place] = shape, OtherSum([column.sort == "counter" for column in shape.columns])
            shape, total = self._others[place]
            total.add(name, shape.read(row))


def _list_tenants(part: msgspec.Struct | None) -> list[str]:
    """The tenants that a kind has figures of."""
    if part is None:
        return []
    tables = [table.field for table in outline(type(part)).tables if table.label == TENANT]
    return [name for field in tables for name in getattr(part, field)]


def _export_rows(
    text: Exposition, place: Place, shape: Outline, heads: list[str], rows: list[tuple[Any, ...]]
) -> None:
    for column, values in zip(shape.columns, zip(*rows, strict=True), strict=True):
        text.add_column(f"{place.name}_{column.name}", column.sort, column.what, heads, values)


def _export_texts(text: Exposition, place: Place, shape: Outline, struct: msgspec.Struct) -> None:
    labels = {field: getattr(struct, field) for field in shape.labels if field not in place.known}
    if labels:
        head = f"{{{place.labels},{write_labels(labels)}}}"
        text.add_column(place.info, "gauge", "always 1: what is said is in its labels", [head], [1])


def _export_numbers(
    text: Exposition, place: Place, table: Labelled, column: Column, values: Mapping[str, Any]
) -> None:
    heads = [place.at(table.label, name).head for name in values]
    scaled = [scale(value, column.scale) for value in values.values()]
    text.add_column(f"{place.name}_{column.name}", column.sort, column.what, heads, scaled)


def _export_others(text: Exposition, place: Place, shape: Outline, total: OtherSum) -> None:
    sums = total.finish()
    for column, value in zip(shape.columns, sums, strict=True) if sums is not None else ():
        if column.adds_up:
            text.add_column(f"{place.name}_{column.name}", column.sort, column.what, [place.head], [value])
