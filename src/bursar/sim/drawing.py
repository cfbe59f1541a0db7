"""Policies as users could write them, drawn by the seed from the policy's own schema.

Defaults come first: many seeds draw nothing at all. For the others each key of the kind is drawn by
itself, from the words that its shape takes or from a range that the scenario gives for it, because a
schema does not say which numbers a run of a few seconds can show. A key that takes neither is left as it
is, and `bursar sim coverage` lists it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from bursar.policy import parse
from bursar.policy.kinds import Fallback
from bursar.policy.shapes import Choice, Flag, Shape
from bursar.policy.tables import Record
from bursar.policy.values import Kind

Terms = dict[str, Any]
Ranges = Mapping[str, Sequence[Any]]

PLAIN = 0.4
"""The part of all seeds that run at default settings."""

CHANCE = 0.4
"""How often a key of the others is drawn."""


def draw_terms(draw: random.Random, record: Record, ranges: Ranges) -> Terms:
    """Some of a table's keys with a value each. A range without values keeps a key as it is."""
    drawn: Terms = {}
    for key, described in record.keys.items():
        values = ranges[key] if key in ranges else list_values(described.shape)
        # Drawn in any case, so that one key more or less does not change the value of another.
        chance, place = draw.random(), draw.random()
        if values and chance < CHANCE:
            drawn[key] = values[int(place * len(values))]
    return drawn


def list_values(shape: Shape) -> Sequence[Any]:
    """Every value of a shape that has few of them, else none."""
    match shape:
        case Flag():
            return (True, False)
        case Choice(options=options) if len(options) > 1:
            return tuple(options)
        case Fallback(keep=keep):
            return ("keep", "refuse") if keep else ("refuse",)
    return ()


def read_resource(name: str, kind: Kind, terms: Mapping[str, Any], tenants: Mapping[str, Any]) -> Any:
    """The policy of one resource, by way of its text, as users have it."""
    return parse(write_resource(name, kind, terms, tenants), "drawn").resource(name)


def write_resource(name: str, kind: Kind, terms: Mapping[str, Any], tenants: Mapping[str, Any]) -> str:
    lines = [f"[resource.{name}]", f'kind = "{kind}"']
    lines += [f"{key} = {_write(value)}" for key, value in terms.items()]
    lines.append(f"[resource.{name}.tenant]")
    lines += [f"{json.dumps(tenant)} = {_write(found)}" for tenant, found in tenants.items()]
    return "\n".join(lines) + "\n"


def _write(value: Any) -> str:
    """As TOML has it: JSON does for everything but tables."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_write(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)
