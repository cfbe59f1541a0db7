"""The policies of the pool's scenario: the defaults, or terms that the seed draws from the schema."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from bursar.policy import PoolPolicy
from bursar.policy.kinds import POOL
from bursar.sim.drawing import CHANCE, PLAIN, Ranges, Terms, draw_terms, read_resource
from bursar.units import write_duration

CAPACITY = 400
RESERVATIONS = {"a": 160, "b": 80, "c": 0}
LIMITS = {"b": 120, "c": 60}
GUESTS = ("guest/1", "guest/2")
GUEST_LIMIT = 25
"""Tokens a period; the last of each tenant that a template lets in."""

RANGES: Ranges = {
    "without_bursar": ("keep", "refuse", {"safe": "100/s"}),
    "max_tenants": (len(RESERVATIONS) + 1, 50),
    "period": ("200ms", "400ms"),
    "batch": (1, 10, 50),
    "pacing": (True, False),
    "nodes": (),  # each is a pool as this one
    "words": (),  # the simulator has words of its own
}


class PoolPolicies:
    """One for a run: what it drew at first, and changes of it."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._plain = draw.random() < PLAIN
        # What is drawn has short periods, of which a run sees many; the others have the default's.
        terms = {} if self._plain else {"period": "200ms", **draw_terms(draw, POOL, RANGES)}
        period = terms.get("period", "1s")
        terms["capacity"] = "auto" if draw.random() < CHANCE else f"{CAPACITY}/{period}"
        if not self._plain and draw.random() < CHANCE:
            terms["client_capacity"] = f"{CAPACITY * 3 // 4}/{period}"
        limited = (
            {} if self._plain else {name: each for name, each in LIMITS.items() if draw.random() < CHANCE}
        )
        self.shared = draw.random() < CHANCE
        """Whether several programs serve the same tenants."""
        if self.shared:
            terms["words"] = "shm:///sim"
        self.first = _read(terms, _write_tenants(period, limited))
        self.limits = {**limited, **dict.fromkeys(GUESTS, GUEST_LIMIT)}
        """Tokens a period, of those that have a limit."""

    def change(self) -> PoolPolicy:
        """Other terms, of those that may change while it runs: what is counted by stays."""
        if self._plain:
            return self.first
        period = write_duration(self.first.period_ns)
        terms = {**draw_terms(self._draw, POOL, RANGES), "period": period, "capacity": "auto"}
        drawn = _read(terms, _write_tenants(period, {}))
        same = {
            name: getattr(self.first, name)
            for name in ("capacity", "client_capacity", "tenants", "shadow", "words")
        }
        return msgspec.structs.replace(drawn, **same)


def _write_tenants(period: str, limited: Mapping[str, int]) -> dict[str, Terms]:
    tenants: dict[str, Terms] = {name: {"reservation": f"{n}/{period}"} for name, n in RESERVATIONS.items()}
    for name, limit in limited.items():
        tenants[name]["limit"] = f"{limit}/{period}"
    return {**tenants, "guest/*": {"limit": f"{GUEST_LIMIT}/{period}"}}


def _read(terms: Terms, tenants: Mapping[str, Terms]) -> PoolPolicy:
    policy: PoolPolicy = read_resource("pool", "pool", terms, tenants)
    return policy
