"""The fleet as tables: nodes, resources, tenants by use. Pure: samples in, rows out.

A figure that is not known (there are not two samples yet, a node was started again) is None.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bursar.dashboard.history import History, Sample, count_tenants, tenants_of
from bursar.dashboard.source import Reading
from bursar.fleet.layout import NodeRecord

ROWS_MAX = 50
"""Tenants in one table. There may be 100,000: whoever looks for one searches for it."""

SORTS = {"use": "granted_s", "refusals": "refused_s", "waits": "waiting", "name": "tenant"}
"""What tenants can be sorted by, and the figure that is meant."""

Row = dict[str, Any]

NODES = {
    "node": "node",
    "address": "address",
    "version": "version",
    "build": "build",
    "waiting": "waiting",
    "state": "state",
    "problem": "problem",
}
RESOURCES = {
    "resource": "resource",
    "kind": "kind",
    "ready": "ready",
    "waiting": "waiting",
    "granted_s": "granted/s",
    "refused_s": "refused/s",
    "tenants": "tenants",
}
TENANTS = {
    "tenant": "tenant",
    "resource": "resource",
    "granted_s": "granted/s",
    "refused_s": "refused/s",
    "waiting": "waiting",
    "granted": "granted",
    "refused": "refused",
}
FIGURES = frozenset({"version", "waiting", "granted_s", "refused_s", "tenants", "granted", "refused"})
"""Of these columns: numbers."""


def list_nodes(history: History) -> list[Row]:
    """Every node that is up, and those that should be."""
    sample = history.latest
    if sample is None:
        return []
    reading = sample.reading
    rows = [
        {
            "node": name,
            "address": record.address,
            "version": record.version or None,
            "build": record.build,
            "waiting": sum(total.waiting for total in reading.totals.get(name, {}).values()),
            **_judge(reading, record),
        }
        for name, record in reading.nodes.items()
    ]
    gone = [name for name in reading.silent if name not in reading.nodes]
    return rows + [{"node": name, "state": "silent", "problem": reading.silent[name]} for name in gone]


def _judge(reading: Reading, record: NodeRecord) -> Row:
    """How a node is, in a word and in a sentence."""
    if record.name in reading.silent:
        return {"state": "silent", "problem": reading.silent[record.name]}
    if record.problem:
        return {"state": "old policy", "problem": record.problem}
    return {"state": "behind" if is_behind(reading, record) else "up", "problem": ""}


def is_behind(reading: Reading, record: NodeRecord) -> bool:
    """Whether another node runs newer terms."""
    return record.head < max(other.head for other in reading.nodes.values())


def list_resources(history: History) -> list[Row]:
    """Each resource, over all nodes."""
    sample = history.latest
    if sample is None:
        return []
    return [
        {
            "resource": name,
            "kind": kind,
            "ready": _count_ready(sample, name),
            "waiting": sample.reading.statistics[name].get("waiting", 0),
            "granted_s": _add(history, name, "granted"),
            "refused_s": _add(history, name, "refused"),
            "tenants": count_tenants(sample.reading.statistics[name]),
        }
        for name, kind in sample.reading.kinds.items()
    ]


def _count_ready(sample: Sample, resource: str) -> str:
    """How many of the nodes that have it would decide now."""
    found = [totals[resource] for totals in sample.reading.totals.values() if resource in totals]
    return f"{sum(total.ready for total in found)} of {len(found)}"


def _add(history: History, resource: str, figure: str) -> float | None:
    """Over the nodes of which it is known."""
    sample, before = history.latest, history.before
    assert sample is not None
    nodes = [node for node, totals in sample.reading.totals.items() if resource in totals]
    rates = [_compare(before, sample, node, resource, figure) for node in nodes]
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 1) if known else None


def list_parts(history: History) -> list[Row]:
    """Each resource at each node."""
    sample, before = history.latest, history.before
    if sample is None:
        return []
    return [
        {
            "resource": name,
            "node": node,
            "ready": totals[name].ready,
            "waiting": totals[name].waiting,
            "granted_s": _compare(before, sample, node, name, "granted"),
            "refused_s": _compare(before, sample, node, name, "refused"),
        }
        for name in sample.reading.kinds
        for node, totals in sample.reading.totals.items()
        if name in totals
    ]


def _compare(before: Sample | None, after: Sample, node: str, resource: str, figure: str) -> float | None:
    old = before and before.reading.totals.get(node, {}).get(resource)
    if before is None or not old:
        return None
    grown = getattr(after.reading.totals[node][resource], figure) - getattr(old, figure)
    return round(grown / (after.at_s - before.at_s), 1) if grown >= 0 else None


def list_tenants(
    history: History, find: str = "", sort: str = "use", most: int = ROWS_MAX
) -> tuple[list[Row], int]:
    """The first of those whose name has `find` in it, and how many there are: where nothing is looked
    for, those without figures are counted too."""
    history.look_for(find)
    sample = history.latest
    if sample is None:
        return [], 0
    figure, wanted = SORTS[sort], find.casefold()
    rows = [
        row
        for resource in sample.reading.statistics
        for row in _read_tenants(sample, history, resource, wanted)
    ]

    def order(row: Row) -> tuple[float, str, str]:
        return (0 if figure == "tenant" else -(row[figure] or 0)), row["tenant"], row["resource"]

    found = len(rows) if find else sum(map(count_tenants, sample.reading.statistics.values()))
    return heapq.nsmallest(most, rows, key=order), found


def _read_tenants(sample: Sample, history: History, resource: str, wanted: str) -> Iterator[Row]:
    figures = sample.reading.statistics[resource]
    granted, refused = (history.latest_rates(resource, (name,)) for name in ("granted", "refused"))
    queued = Counter(row["tenant"] for row in figures.get("queue", {}).values())
    for tenant, row in tenants_of(figures).items():
        if wanted in tenant.casefold():
            yield {
                "tenant": tenant,
                "resource": resource,
                "granted_s": granted.get(tenant),
                "refused_s": refused.get(tenant),
                "waiting": row.get("waiting", queued.get(tenant, 0)),
                "granted": row.get("granted", 0),
                "refused": row.get("refused", 0),
            }
