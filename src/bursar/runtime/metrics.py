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

import msgspec

from bursar.resource.statistics import Statistics
from bursar.runtime.exposition import Exposition, write_label, write_labels
from bursar.runtime.outlines import Column, Labelled, Outline, outline, scale
from bursar.runtime.slices import Steps
from bursar.runtime.tenant_labels import OTHER, OtherSum, TenantLabels

INFO = "always 1: what is said is in its labels"

ROWS = 50
"""Rows of a table in one step."""

TENANT = "tenant"
BOUNDED = (TENANT, "account")
"""Labels with a value for each tenant (an account is a tenant's, in a window)."""


Row = tuple[str, msgspec.Struct]
"""The labels of a struct, as they stand between the braces, and the struct."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the statistics: what names begin with there, and which labels are given already."""

    name: str
    info: str
    known: frozenset[str]

    def below(self, name: str, label: str = "") -> Place:
        name = f"{self.name}_{name}"
        return Place(name, f"{name}_info", self.known | {label})


class ResourceMetrics:
    """The metrics of one resource, scrape by scrape: it remembers which tenants have a label."""

    def __init__(self, tenants_most: int) -> None:
        self._own = TenantLabels(tenants_most)
        self._others: dict[tuple[str, str], tuple[Outline, OtherSum]] = {}

    def export(self, text: Exposition, statistics: Statistics) -> Steps[None]:
        """What the door and the kind count."""
        sizes: dict[str, float] = dict.fromkeys(_list_tenants(statistics.part), 0)
        for number, name in enumerate(statistics.tenants):
            row = statistics.tenants.get(name)
            sizes[name] = row.granted if row is not None else 0
            if number % ROWS == 0:
                yield
        labels = {"resource": statistics.resource, "kind": statistics.kind}
        place = Place("bursar", "bursar_policy_info", frozenset(labels))
        yield from self._export(text, place, labels, statistics, sizes)

    def export_struct(
        self,
        text: Exposition,
        name: str,
        labels: Mapping[str, str],
        struct: msgspec.Struct,
        sizes: Mapping[str, float],
    ) -> Steps[None]:
        """Any struct that declares what it is, under names that begin with `name`. `sizes` has its
        tenants: if there are too many, the largest have labels."""
        yield from self._export(text, Place(name, f"{name}_info", frozenset(labels)), labels, struct, sizes)

    def _export(
        self,
        text: Exposition,
        place: Place,
        labels: Mapping[str, str],
        struct: msgspec.Struct,
        sizes: Mapping[str, float],
    ) -> Steps[None]:
        self._own.choose(sizes)
        yield
        yield from self._walk(text, place, [(write_labels(labels), struct)])

    def _walk(self, text: Exposition, place: Place, rows: list[Row]) -> Steps[None]:
        """Structs of one class."""
        shape = outline(type(rows[0][1]))
        heads = [f"{{{labels}}}" for labels, _ in rows]
        values = zip(*[shape.read(row) for _, row in rows], strict=True)
        for column, found in zip(shape.columns, values, strict=False):
            text.add_column(f"{place.name}_{column.name}", column.sort, column.what, heads, found)
        _export_texts(text, place, shape, rows)
        _export_histograms(text, place, shape, rows)
        for field in shape.nested:
            parts = [(labels, part) for labels, row in rows if (part := getattr(row, field)) is not None]
            first = rows[0][1]
            kind = first.kind if isinstance(first, Statistics) else field
            if parts:
                yield from self._walk(text, place.below(kind), parts)
        for table in shape.tables:
            if table.column is not None:
                _export_numbers(text, place, table, table.column, rows)
            else:
                yield from self._walk_table(text, place.below(table.label, table.label), table, rows)

    def _walk_table(self, text: Exposition, place: Place, table: Labelled, rows: list[Row]) -> Steps[None]:
        """The tables that each of `rows` has in a field, a few of their rows at a time."""
        bounded, gathered, passed = table.label in BOUNDED, list[Row](), 0
        for labels, row in rows:
            for name, inner in (getattr(row, table.field) or {}).items():
                if bounded and not self._has_label(name):
                    self._sum_other(place, labels, name, inner)
                else:
                    gathered.append((f"{labels},{write_label(table.label, name)}", inner))
                passed += 1
                if passed % ROWS == 0:
                    if gathered:
                        yield from self._walk(text, place, gathered)
                    gathered = []
                    yield
            if bounded:
                self._export_others(text, place, labels, table.label)
        if gathered:
            yield from self._walk(text, place, gathered)

    def _has_label(self, name: str) -> bool:
        return name in self._own or ("@" in name and name.rpartition("@")[0] in self._own)

    def _sum_other(self, place: Place, labels: str, name: str, row: msgspec.Struct) -> None:
        key = place.name, labels
        if key not in self._others:
            shape = outline(type(row))
            self._others[key] = shape, OtherSum([column.sort == "counter" for column in shape.columns])
        shape, total = self._others[key]
        total.add(name, shape.read(row))

    def _export_others(self, text: Exposition, place: Place, labels: str, label: str) -> None:
        shape, total = self._others.get((place.name, labels), (None, None))
        sums = total.finish() if total is not None else None
        if shape is None or sums is None:
            return
        heads = [f"{{{labels},{write_label(label, OTHER)}}}"]
        for column, value in zip(shape.columns, sums, strict=True):
            if column.adds_up:
                text.add_column(f"{place.name}_{column.name}", column.sort, column.what, heads, [value])


def _list_tenants(part: msgspec.Struct | None) -> list[str]:
    """The tenants that a kind has figures of."""
    if part is None:
        return []
    tables = [table.field for table in outline(type(part)).tables if table.label == TENANT]
    return [name for field in tables for name in getattr(part, field)]


def _export_texts(text: Exposition, place: Place, shape: Outline, rows: list[Row]) -> None:
    fields = [field for field in shape.labels if field not in place.known]
    for labels, row in rows if fields else ():
        said = write_labels({field: getattr(row, field) for field in fields})
        text.add_column(place.info, "gauge", INFO, [f"{{{labels},{said}}}"], [1])


def _export_histograms(text: Exposition, place: Place, shape: Outline, rows: list[Row]) -> None:
    for found in shape.histograms:
        for labels, row in rows:
            waited = getattr(row, found.field)
            name = f"{place.name}_{found.name}"
            text.add_histogram(name, found.what, labels, waited.bounds_s, waited.counts, waited.sum_s)


def _export_numbers(text: Exposition, place: Place, table: Labelled, column: Column, rows: list[Row]) -> None:
    name = f"{place.name}_{column.name}"
    for labels, row in rows:
        values = getattr(row, table.field)
        heads = [f"{{{labels},{write_label(table.label, key)}}}" for key in values]
        scaled = [scale(value, column.scale) for value in values.values()]
        text.add_column(name, column.sort, column.what, heads, scaled)
