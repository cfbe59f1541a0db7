"""The texts that a storm applies: one resource a kind, small enough for two cores, tight enough that
limits are reached. Each text differs from the one before it in terms that may change while it runs.

The tenants: `acme` has a limit that is reached, `gold` a reservation and asks all the time, `free` only
a weight, `probe` is for probes alone, `guest-N` come under "*", `set-N` are set by the operator.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

KINDS = ("rate", "share", "pool", "quota", "claim")
RESOURCES = {"rate": "api", "share": "disk", "pool": "records", "quota": "llm", "claim": "vms"}

SHARE_CAPACITY = 150
POOL_CAPACITY = 200
WORDS = "redis://@words@"
"""Where nodes share a pool's words: the run has a Redis server of its own, and fills in where."""

COUNTED = {"gpu": 4}
"""The same in every text: what a cut capacity owes would be above it for a while."""

NAMES = ("vm-1", "vm-2", "vm-3", "vm-4", "host-1", "host-2")

Terms = dict[str, Any]


def kinds_of(kind: str) -> tuple[str, ...]:
    return KINDS if kind == "all" else (kind,)


def draw_text(
    rng: random.Random, kind: str, nodes: Sequence[str], settings: Mapping[str, Terms], capacity: int
) -> str:
    """A policy for a storm of this kind. `settings` are terms by kind that go beyond the defaults,
    `capacity` is what a server of a rate does in a second."""
    parts = []
    for each in kinds_of(kind):
        terms, tenants = _DRAW[each](rng)
        if each == "rate":
            terms["servers"] = dict.fromkeys((*nodes, "*"), f"{capacity}/s")
        drawn = settings.get(each, {})
        terms |= {key: value for key, value in drawn.items() if key != "tenant"}
        if "acme" in tenants:
            tenants["acme"] |= drawn.get("tenant", {})
        parts.append(write_resource(RESOURCES[each], each, terms, tenants))
    return "\n".join(parts)


def _draw_rate(rng: random.Random) -> tuple[Terms, Terms]:
    gold = rng.choice((40, 50, 60))
    tenants = {
        "acme": {"limit": f"{rng.choice((20, 40, 80))}/s"},
        "gold": {"reservation": f"{gold}/s", "limit": f"{gold + 20}/s"},
        "free": {"weight": rng.choice((1, 2, 5)), "limit": f"{rng.choice((60, 120))}/s"},
        "probe": {"limit": "40/s"},
        "*": {"limit": f"{rng.choice((10, 15))}/s"},
    }
    return {}, tenants


def _draw_share(rng: random.Random) -> tuple[Terms, Terms]:
    tenants = {
        "acme": {"weight": rng.choice((1, 2))},
        "gold": {"weight": rng.choice((3, 4))},
        "free": {"weight": 1},
        "probe": {"weight": 1},
        "*": {"weight": 1},
    }
    return {"capacity": f"{SHARE_CAPACITY}/s"}, tenants


def _draw_pool(rng: random.Random) -> tuple[Terms, Terms]:
    tenants = {
        "acme": {"limit": f"{rng.choice((30, 50))}/s"},
        "gold": {"reservation": f"{rng.choice((50, 70))}/s"},
        "free": {"reservation": "10/s"},
        "probe": {"limit": "40/s"},
    }
    rate = f"{POOL_CAPACITY}/s"
    return {"capacity": rate, "client_capacity": rate, "words": WORDS}, tenants


def _draw_quota(rng: random.Random) -> tuple[Terms, Terms]:
    acme = rng.choice((20_000, 40_000))
    tenants = {
        "acme": {"limit": acme},
        "acme/search": {"limit": acme // 4},
        "gold": {"limit": 1_000_000},
        "free": {"limit": rng.choice((500, 1_000))},
        "probe": {"limit": 1_000_000},
        "*": {"limit": 300},
    }
    return {}, tenants


def _draw_claim(rng: random.Random) -> tuple[Terms, Terms]:
    names = ("acme", "gold", "free", "probe", "*")
    return {"counted": COUNTED}, {name: {"weight": rng.choice((1, 2, 5))} for name in names}


_DRAW = {
    "rate": _draw_rate,
    "share": _draw_share,
    "pool": _draw_pool,
    "quota": _draw_quota,
    "claim": _draw_claim,
}


def write_resource(name: str, kind: str, terms: Terms, tenants: Terms) -> str:
    lines = [f"[resource.{name}]", f'kind = "{kind}"']
    lines += [f"{key} = {_write(value)}" for key, value in terms.items()]
    if tenants:
        lines.append(f"[resource.{name}.tenant]")
        lines += [f"{json.dumps(tenant)} = {_write(found)}" for tenant, found in tenants.items()]
    return "\n".join(lines) + "\n"


def _write(value: Any) -> str:
    """As TOML has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_write(found)}" for key, found in value.items()) + " }"
    return json.dumps(value)
