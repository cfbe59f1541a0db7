"""The policies of the share's scenario: the defaults, or terms that the seed draws from the schema."""

from __future__ import annotations

import random
from collections.abc import Mapping

from bursar.policy import SharePolicy, ShareTenant
from bursar.policy.kinds import SHARE
from bursar.sim.drawing import CHANCE, PLAIN, Ranges, Terms, draw_terms, read_resource

CAPACITY = 805
WEIGHTS = {"small": 2, "even": 2, "large": 5, "guest": 2}
RANGES: Ranges = {
    "without_bursar": ("keep", "refuse", {"safe": "50/s"}),
    "max_tenants": (len(WEIGHTS), 20),
    "interval": ("100ms", "30ms", "250ms"),
    "half_life": ("60s", "1h"),
    "costs": ("requests", "bytes"),
    "enforce": (),  # the simulator has no kernel to enforce in
    "device": (),
    "job_nodes": (),
}
TENANT_RANGES: Ranges = {"weight": (1, 4), "borrow": (240, 1000), "lend": (240, 800)}
LASTING = ("costs", "half_life", "shadow")
"""Terms that stay through a run: what cannot change while it runs, and what the checks rest on."""


class SharePolicies:
    """One for a run: what it drew at first, and changes of it."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._plain = draw.random() < PLAIN
        self._lasting = self._fit(self._draw_terms())
        self._tenants: dict[str, Terms] = {name: {"weight": weight} for name, weight in WEIGHTS.items()}
        if not self._plain:
            record = SHARE.keys["tenant"].shape.shape  # type: ignore[attr-defined]
            for terms in self._tenants.values():
                terms |= draw_terms(draw, record, TENANT_RANGES)
        anyone = {} if self._plain or draw.random() > CHANCE else {"*": {"weight": WEIGHTS["guest"]}}
        self.first = self._read(self._lasting, {**self._tenants, **anyone})

    @property
    def shadow(self) -> bool:
        return self.first.shadow

    @property
    def tenants(self) -> Mapping[str, ShareTenant]:
        """The terms of all of them; who is listed at a time is another matter."""
        return self.first.tenants

    def change(self, *, without_guest: bool, open_to_all: bool) -> SharePolicy:
        terms = {**self._draw_terms(), **dict.fromkeys(LASTING)}
        lasting = {key: self._lasting[key] for key in LASTING if key in self._lasting}
        kept = {key: value for key, value in (terms | lasting).items() if value is not None}
        tenants = {name: each for name, each in self._tenants.items() if name != "guest" or not without_guest}
        if open_to_all:
            tenants["*"] = self._tenants["guest"]  # also its caps: loans from before are not undone
        return self._read(self._fit(kept), tenants)

    def _draw_terms(self) -> Terms:
        return {} if self._plain else draw_terms(self._draw, SHARE, RANGES)

    def _fit(self, terms: Terms) -> Terms:
        """A capacity in what a token pays for."""
        unit = "B" if terms.get("costs") == "bytes" else ""
        fitted = {**terms, "capacity": f"{CAPACITY}{unit}/s"}
        if isinstance(terms.get("without_bursar"), dict):
            fitted["without_bursar"] = {"safe": f"50{unit}/s"}
        return fitted

    def _read(self, terms: Terms, tenants: Mapping[str, Terms]) -> SharePolicy:
        policy: SharePolicy = read_resource("disk", "share", terms, tenants)
        return policy
