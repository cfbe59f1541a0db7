"""Statistics with the rows of some tenants only: there may be 100,000, and whoever looks at a resource
looks at few of them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, get_type_hints

import msgspec

from bursar.resource.statistics import Statistics, Totals

FOUND_MAX = 50
"""Tenants for each text that is looked for."""


def excerpt(statistics: Statistics, most: int, find: Sequence[str] = ()) -> Statistics:
    """Rows of the `most` tenants that used most since the node started, and of some whose names have
    one of `find` in them; what all tenants together have stands in `totals`. 0: as they are."""
    if most <= 0:
        return statistics
    rows = statistics.tenants

    def count_use(name: str) -> int:
        return rows[name].granted + rows[name].refused

    wanted = dict.fromkeys(heapq.nlargest(most, rows, key=count_use))
    for text in find:
        having = (name for name in rows if text.casefold() in name.casefold())
        wanted |= dict.fromkeys(islice(having, FOUND_MAX))
    totals = Totals(
        tenants=len(rows),
        granted=sum(row.granted for row in rows.values()),
        refused=sum(row.refused for row in rows.values()),
    )
    picked: Statistics = _pick(statistics, wanted)
    return msgspec.structs.replace(picked, totals=totals)


def _pick(struct: Any, wanted: Mapping[str, None]) -> Any:
    changed: dict[str, Any] = {}
    form: type[msgspec.Struct] = type(struct)
    for field, label in _read_labels(form).items():
        held = getattr(struct, field)
        if isinstance(held, Mapping):
            changed[field] = _pick_rows(held, label, wanted)
        elif isinstance(held, msgspec.Struct):
            changed[field] = _pick(held, wanted)
    return msgspec.structs.replace(struct, **changed)


def _pick_rows(rows: Mapping[str, Any], label: str, wanted: Mapping[str, None]) -> dict[str, Any]:
    if label == "tenant":
        return {name: rows[name] for name in wanted if name in rows}
    if label == "account":  # "acme@2026-11"
        return {name: rows[name] for name in rows if {name, name.rpartition("@")[0]} & wanted.keys()}
    if rows and not isinstance(next(iter(rows.values())), msgspec.Struct):
        return dict(rows)
    return {name: _pick(row, wanted) for name, row in rows.items()}


@cache
def _read_labels(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    """Of each field that may have rows in it, the label that their keys are; "" for another."""
    found: dict[str, str] = {}
    for field, hint in get_type_hints(struct, include_extras=True).items():
        labels = [(meta.extra or {}).get("label", "") for meta in getattr(hint, "__metadata__", ())]
        found[field] = "tenant" if field == "tenants" else "".join(labels)
    return found
