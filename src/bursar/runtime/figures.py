"""A resource's statistics as plain figures: what the dashboard shows, and what is watched.

What the door counted and what the kind says stand side by side, also for each tenant (whose counts are
the door's, should a kind have a figure of the same name):

    Statistics(waiting=3, tenants={"acme": Tally(granted=5)}, part=RateStatistics(leader=True, tenants=...))
    {"waiting": 3, "leader": True, "tenants": {"acme": {"granted": 5, "reservation": 100}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bursar.resource.rows import PORTION, find_deep
from bursar.resource.statistics import Statistics
from bursar.runtime.slices import Steps, run_at_once

Figures = dict[str, Any]


def read_figures(statistics: Statistics) -> Figures:
    return run_at_once(flatten(statistics))


def flatten(statistics: Statistics) -> Steps[Figures]:
    """The figures, in steps: there may be very many tenants. `part` is plain already where the
    statistics came from a daemon elsewhere."""
    door = yield from _write(msgspec.structs.replace(statistics, part=None))
    part = (yield from _write(statistics.part)) or {}
    rows: Mapping[str, Any] = part.get("tenants", {})
    tenants = door["tenants"] | {name: {} for name in rows if name not in door["tenants"]}
    for number, (name, row) in enumerate(rows.items(), start=1):
        tenants[name] = {**row, **tenants[name]}
        if number % PORTION == 0:
            yield
    del door["part"]
    return {**door, **part, "tenants": tenants}


def _write(value: Any) -> Steps[Any]:
    if isinstance(value, Mapping):
        return (yield from _write_table(value))
    if isinstance(value, msgspec.Struct) and find_deep(type(value)):
        fields = {}
        for field in value.__struct_fields__:
            fields[field] = yield from _write(getattr(value, field))
        return fields
    written = msgspec.to_builtins(value)
    return list(written) if isinstance(written, tuple) else written  # as it comes from a daemon


def _write_table(table: Mapping[str, Any]) -> Steps[dict[str, Any]]:
    written = {}
    for number, (name, row) in enumerate(table.items(), start=1):
        deep = isinstance(row, Mapping) or (isinstance(row, msgspec.Struct) and find_deep(type(row)))
        written[name] = (yield from _write(row)) if deep else msgspec.to_builtins(row)
        if number % PORTION == 0:
            yield
    return written
