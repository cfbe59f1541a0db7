"""Statistics with the rows of some tenants only: there may be 100,000, and whoever looks at a resource
looks at few of them."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, get_type_hints

import msgspec

from bursar.resource.statistics import Statistics, Totals

FOUND_MAX = 50
"""Tenants for each text that is looked for."""


@dataclass(frozen=True)
class Wanted:
    """Rows of the `most` tenants that used most since the node started, and of some whose names have one
    of `find` in them."""

    most: int
    find: tuple[str, ...] = ()


def excerpt(statistics: Statistics, counts: Mapping[str, tuple[int, int]], wanted: Wanted) -> Statistics:
    """With the wanted rows only: others are not even made. `counts` are the tokens granted and refused
    of those who asked for any; what all tenants together have is said in `totals`."""
    known = statistics.tenants
    asked = {name: count for name, count in counts.items() if name in known}
    names = dict.fromkeys(heapq.nlargest(wanted.most, asked, key=lambda name: sum(asked[name])))
    names |= dict.fromkeys(islice(known, wanted.most - len(names)))
    for text in wanted.find:
        having = (name for name in known if text.casefold() in name.casefold())
        names |= dict.fromkeys(islice(having, FOUND_MAX))
    granted, refused = (sum(count[at] for count in asked.values()) for at in (0, 1))
    totals = Totals(tenants=len(known), granted=granted, refused=refused)
    picked: Statistics = _pick(statistics, names)
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
        known = set(rows)  # to look one up in a list of 100,000 takes as long as going through it
        return {name: rows[name] for name in wanted if name in known}
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
