"""The policies of a quota's scenarios: the defaults, or terms that the seed draws from the schema."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from bursar.policy.kinds import QUOTA
from bursar.policy.values import QuotaPolicy
from bursar.sim.drawing import CHANCE, PLAIN, Ranges, Terms, draw_terms, read_resource

LIMITS = {"plain": 240, "acme": 200, "acme/search": 120}
GUEST_LIMIT = 40
OVERDRAFTS = {"acme": 30}
"""Where the policy lets what was used be charged to one."""

TEMPLATES = {"*": ("joe", "zoe"), "acme/*": ("acme/joe", "acme/zoe")}
"""Whom each template lets in here."""

RANGES: Ranges = {
    "max_tenants": (len(LIMITS) + 1, 50),
    "unit": ("tokens", "bytes"),
    "warnings": ([], [50], [10, 90, 100]),
    "block": (10, 40),
    "hold_expiry": ("3s", "1min"),
}
FIXED = ("mode", "window")
"""What a scenario is about: it says so itself."""

STAYING = ("tenants", "templates", "max_tenants", "mode", "window", "shadow", "block")
"""What the checks count on through a run."""


NO_ANCHORS: Mapping[str, str] = {}


class QuotaPolicies:
    """One for a run: what it drew at first, and changes of it. `fixed`: terms that a scenario needs."""

    def __init__(
        self, draw: random.Random, fixed: Mapping[str, Any], anchors: Mapping[str, str] = NO_ANCHORS
    ) -> None:
        self._draw = draw
        self.plain = draw.random() < PLAIN
        self._fixed = dict(fixed)
        tenants: dict[str, Terms] = {name: {"limit": limit} for name, limit in LIMITS.items()}
        for name, anchor in anchors.items():
            tenants[name]["from"] = anchor
        if self._fixed.get("over") == "overdraft":
            for name, overdraft in OVERDRAFTS.items():
                tenants[name]["overdraft"] = overdraft
        template = None if self.plain or draw.random() > CHANCE else draw.choice(tuple(TEMPLATES))
        if template is not None:
            tenants[template] = {"limit": GUEST_LIMIT}
        self.guests: tuple[str, ...] = TEMPLATES.get(template, ()) if template else ()
        self.first = self._read(tenants)

    @property
    def shadow(self) -> bool:
        return self.first.shadow

    def change(self) -> QuotaPolicy:
        """Other terms, of those that no check counts on."""
        drawn = self._read({name: {"limit": limit} for name, limit in LIMITS.items()})
        same = {name: getattr(self.first, name) for name in STAYING}
        return msgspec.structs.replace(drawn, **same)

    def _read(self, tenants: Mapping[str, Terms]) -> QuotaPolicy:
        policy: QuotaPolicy = read_resource("llm", "quota", {**self.draw(), **self._fixed}, tenants)
        return policy

    def draw(self) -> Terms:
        """Terms of the resource; none at default settings."""
        ranges = {**RANGES, **dict.fromkeys(FIXED, ())}
        return {} if self.plain else draw_terms(self._draw, QUOTA, ranges)
