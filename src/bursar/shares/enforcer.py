"""Where a program's own requests are held to the handouts: at the gate of its process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bursar.shares.gate import Gate
from bursar.shares.handout import Handout
from bursar.shares.target import FilterRules, Seen
from bursar.world import Clock


class GateEnforcer:
    """Spends a target's tokens at a gate. `tell_lots` is called before demand is read: what was
    spent from tokens charged ahead is told then."""

    def __init__(self, clock: Clock, gate: Gate[Any], tell_lots: Callable[[], None]) -> None:
        self._clock = clock
        self._gate = gate
        self._tell_lots = tell_lots
        self._rules = FilterRules(gate.filter)

    async def collect(self) -> Seen:
        self._tell_lots()
        return Seen(demand=self._gate.filter.collect())

    async def apply(self, handout: Handout) -> None:
        self._rules.apply(handout, self._clock.now())

    async def release(self) -> None:
        self._rules.clear(self._clock.now())
