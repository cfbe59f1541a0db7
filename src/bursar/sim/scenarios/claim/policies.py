"""The policies of the claims' scenarios: the defaults, or terms that the seed draws from the schema."""

from __future__ import annotations

import random

import msgspec

from bursar.policy.kinds import CLAIM
from bursar.policy.values import ClaimPolicy
from bursar.sim.drawing import CHANCE, PLAIN, Ranges, Terms, draw_terms, read_resource

RESOURCE = "things"
NAMES = ("a", "b", "c", "d")
PATHS = ("a", "a/x", "a/x/y", "b")
INSTANCES = ("i1", "i2", "i3")
ANYBODY = "anybody"
TENANTS = (*INSTANCES, ANYBODY)
COUNTED = ({"gpu": 3}, {"gpu": 5})
RANGES: Ranges = {
    "max_tenants": (len(TENANTS), 50),
    "aging": ("2s", "4s"),
    "attempts": (1, 5),
    "counted": COUNTED,
}
WEIGHTS = (1, 2, 5)
STAYING = ("shadow", "dead_holder", "paths", "attempts", "counted", "order")


class ClaimPolicies:
    """One for a run: what it drew at first, and changes of it."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._plain = draw.random() < PLAIN
        self.first = self._read()
        self.names = PATHS if self.first.paths else NAMES

    @property
    def by_hand(self) -> bool:
        """Whether what a dead holder had is held until somebody releases it."""
        return self.first.dead_holder in ("auto", "keep")

    def change(self) -> ClaimPolicy:
        """Other terms, and who is let in by which line; what the checks count on stays."""
        same = {name: getattr(self.first, name) for name in STAYING}
        return msgspec.structs.replace(self._read(), **same)

    def _read(self) -> ClaimPolicy:
        terms = {} if self._plain else draw_terms(self._draw, CLAIM, RANGES)
        policy: ClaimPolicy = read_resource(RESOURCE, "claim", terms, self._draw_tenants())
        return policy

    def _draw_tenants(self) -> dict[str, Terms]:
        """Nobody is listed, so that anybody may; everybody is; or some are, and the rest have a template."""
        draw = self._draw
        listed = [name for name in TENANTS if draw.random() < CHANCE]
        every = {name: {"weight": draw.choice(WEIGHTS)} for name in TENANTS}
        if self._plain:
            return {}
        some = {name: every[name] for name in listed}
        return draw.choice(({}, every, {**some, "*": {"weight": draw.choice(WEIGHTS)}}))
