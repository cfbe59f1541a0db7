"""Terms beyond the defaults, drawn from the policy's own schema: what it lists is what is tried.

`bursar schema` says which keys a kind has and which words they take. Numbers and times are drawn from
ranges here, because a schema does not say what a storm of a minute can show.
"""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from typing import Any

from bursar_lab.storm.policies import kinds_of

Terms = dict[str, Any]

FIXED = {
    "kind",
    "tenant",
    "servers",
    "capacity",
    "client_capacity",
    "words",
    "max_tenants",
    "unit",
    "warnings",
    "costs",
    "enforce",  # nodes of a storm have no kernel of their own to hold limits
    "device",
    "counted",
    "history",  # it is counted in days, and a storm lasts minutes
    "dead_history",
    "job_nodes",  # of Lustre
    "nodes",  # a pool of several data nodes has no clients in a storm yet
    "tracker",  # it takes a service that does the work
}
"""What a storm needs as it is, or what changes nothing that it could see."""

RANGES: dict[str, tuple[Any, ...]] = {
    "period": ("500ms", "1s", "2s"),
    "interval": ("100ms", "auto"),
    "drift_ppm": (500, 1000, 5000),
    "without_bursar": ("keep", "refuse", {"safe": "5/s"}),
    "half_life": ("5s", "1min"),
    "batch": ("auto", 10, 100),
    "block": (50, 500),
    "hold_expiry": ("30s", "5min"),
    "window": ("none", "hour", "day"),
    "aging": ("2s", "1min"),
    "attempts": (1, 2, 5),
    "zone": ("UTC", "Europe/Berlin"),
}
NOT_FOR: dict[str, dict[str, tuple[Any, ...]]] = {
    "quota": {"without_bursar": ("refuse",)},
    "claim": {"without_bursar": ("refuse",)},
    "share": {"interval": ("50ms", "100ms", "200ms")},
    "pool": {"pacing": (True, False, "auto")},
}
TENANT: dict[str, Terms] = {
    "rate": {"burst": (1, 5, 10), "weight": (1, 7)},
    "share": {"borrow": (50, 500), "lend": (50, 500)},
}
"""Of acme: the others' terms are what the storm counts on."""

CHANCE = 0.5


@functools.cache
def read_schema() -> Any:
    done = subprocess.run([sys.executable, "-m", "bursar", "schema"], capture_output=True, check=True)
    return json.loads(done.stdout)


def list_keys(kind: str) -> dict[str, Any]:
    """The keys of a kind, as the schema describes each."""
    for rule in read_schema()["properties"]["resource"]["additionalProperties"]["allOf"]:
        if rule["if"]["properties"]["kind"]["const"] == kind:
            found: dict[str, Any] = rule["then"]["properties"]
            return found
    raise LookupError(f"the schema has no kind {kind}")


def draw_settings(rng: random.Random, kind: str) -> dict[str, Terms]:
    return {each: _draw(rng, each) for each in kinds_of(kind)}


def _draw(rng: random.Random, kind: str) -> Terms:
    drawn: Terms = {}
    for key, described in list_keys(kind).items():
        values = _list_values(kind, key, described)
        chosen = rng.choice(values) if values else None
        if key not in FIXED and values and rng.random() < CHANCE:
            drawn[key] = chosen
    drawn["tenant"] = {
        key: rng.choice(values) for key, values in TENANT.get(kind, {}).items() if rng.random() < CHANCE
    }
    return drawn


def _list_values(kind: str, key: str, described: dict[str, Any]) -> tuple[Any, ...]:
    if key in NOT_FOR.get(kind, {}):
        return NOT_FOR[kind][key]
    if key in RANGES:
        return RANGES[key]
    if described.get("type") == "boolean":
        return (True, False)
    return tuple(described.get("enum", ()))


def list_unknown() -> list[str]:
    """Keys of the schema that are neither drawn nor left out by name."""
    return [
        f"{kind}.{key}"
        for kind in ("rate", "share", "pool", "quota", "claim")
        for key, described in list_keys(kind).items()
        if key not in FIXED and not _list_values(kind, key, described)
    ]
