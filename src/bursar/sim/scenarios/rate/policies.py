"""The policies of a rate's scenarios: the defaults, or terms that the seed draws from the schema."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from bursar.policy.kinds import RATE
from bursar.policy.values import RatePolicy
from bursar.sim.drawing import CHANCE, PLAIN, Ranges, Terms, draw_terms, read_resource
from bursar.units import write_duration

SERVERS = ("s1", "s2", "s3")
CAPACITIES = (100, 1_000)
"""Tokens a second: little enough that tenants contend for it, and enough that lots are handed out."""

TOKENS: dict[str, tuple[int, int | None]] = {"even": (20, 30), "capped": (0, 12), "free": (15, None)}
"""By tenant, (reservation, limit) in a period."""

GUESTS = ("guest/1", "guest/2", "guest/3")
GUEST_LIMIT = 6
"""Whom a template lets in, where one was drawn, and the tokens of each in a period."""

SAFE = 20
"""Tokens a second where a server goes on by itself at a safe rate."""

RANGES: Ranges = {
    "period": ("400ms", "700ms"),
    "interval": ("100ms", "50ms", "auto"),
    "drift_ppm": (2_000, 10_000),
    "without_bursar": ("keep", "refuse", {"safe": f"{SAFE}/s"}),
    "max_tenants": (4, 50),
}
TENANT_RANGES: Ranges = {
    "reservation": (),
    "limit": (),
    "burst": (1, 4, 12),
    "weight": (1, 3, 20),
    "servers": (["s1"], ["s2", "s3"]),
}
"""Limits and reservations are the scenario's own: they are what it checks."""


def draw_policy(
    draw: random.Random, fixed: Mapping[str, Any], zones: Mapping[str, str] | None = None
) -> RatePolicy:
    """`fixed`: terms that a scenario needs as they are. `zones`: its servers, and where each is."""
    capacity = f"{draw.choice(CAPACITIES)}/s"
    plain = draw.random() < PLAIN
    # What is drawn has short periods, of which a run sees many; the others have the default's.
    terms = {**({} if plain else {"period": "400ms", **draw_terms(draw, RATE, RANGES)}), **fixed}
    tenants = write_tenants(TOKENS, terms.get("period", "1s"))
    if not plain:
        _draw_tenants(draw, terms, tenants)
    names = SERVERS if zones is None else tuple(zones)
    terms["servers"] = {server: capacity if plain else _draw_server(draw, capacity) for server in names}
    if zones is not None:
        terms["servers"] = {name: _put(given, zones[name]) for name, given in terms["servers"].items()}
    policy: RatePolicy = read_resource("cache", "rate", terms, tenants)
    return policy


def change_policy(
    draw: random.Random, policy: RatePolicy, tokens: Mapping[str, tuple[int, int | None]]
) -> RatePolicy:
    """The policy with other limits, and with other terms of those that may change while it runs. Who is let
    in stays, and how far clocks run apart."""
    period = write_duration(policy.period_ns)
    fixed = {"period": period, "drift_ppm": policy.drift_ppm}
    terms = {**draw_terms(draw, RATE, RANGES), **fixed, "servers": dict.fromkeys(SERVERS, "500/s")}
    found: RatePolicy = read_resource("cache", "rate", terms, write_tenants(tokens, period))
    return msgspec.structs.replace(found, servers=policy.servers, templates=policy.templates)


def write_tenants(tokens: Mapping[str, tuple[int, int | None]], period: str) -> dict[str, Terms]:
    """Terms that come to so many tokens a period."""
    tenants: dict[str, Terms] = {}
    for name, (reservation, limit) in tokens.items():
        tenants[name] = {"reservation": f"{reservation}/{period}"}
        if limit is not None:
            tenants[name]["limit"] = f"{limit}/{period}"
    return tenants


def _draw_tenants(draw: random.Random, terms: Terms, tenants: dict[str, Terms]) -> None:
    record = RATE.keys["tenant"].shape.shape  # type: ignore[attr-defined]
    for name in tenants:
        tenants[name] |= draw_terms(draw, record, TENANT_RANGES)
    if "servers" in tenants["even"]:
        tenants["even"]["servers"] = ["s2", "s3"]  # one server alone could not do all that it reserves
    tenants["free"].pop("servers", None)
    if draw.random() < CHANCE:
        template = draw.choice(("*", "guest/*"))
        tenants[template] = {"limit": f"{GUEST_LIMIT}/{terms.get('period', '1s')}"}


def _put(server: Any, zone: str) -> dict[str, Any]:
    return {**(server if isinstance(server, dict) else {"capacity": server}), "zone": zone}


def _draw_server(draw: random.Random, capacity: str) -> Any:
    return draw.choice((capacity, capacity, {"capacity": capacity}, "auto"))
