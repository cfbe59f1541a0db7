"""Faults and changes as stretches of time: what was calm, who was paused, who was killed.

A fault is open from its line's `at` until the first later `heal` that names it (the same `fault`, or
none; its `targets`, or none). One that nothing heals is open to the end, but for those that are over at
once: a jump of a clock, bytes that were turned, a client that was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bursar_lab.storm.checker.lines import Line
from bursar_lab.storm.checker.spans import Span, Spans

AT_ONCE = frozenset({"clock", "torn", "flipped"})
KILLING = frozenset({"kill", "stop"})
PAUSING = frozenset({"pause"})
NETWORK = frozenset({"cut", "one_way", "loss", "delay"})
STATE = frozenset({"disk_lost", "disk_full", "torn", "flipped"})
"""After them a node's ledger may be gone, or be refused."""

FOREVER = 2**63


@dataclass(frozen=True)
class Trouble:
    line: Line
    until: int

    @property
    def at(self) -> int:
        return self.line.at

    @property
    def fault(self) -> str:
        return self.line.fault or ""

    @property
    def targets(self) -> list[str]:
        return self.line.targets or []


class Troubles:
    def __init__(self, faults: Iterable[Line], heals: Sequence[Line], clients: Iterable[str]) -> None:
        self._clients = set(clients)
        self.all = [Trouble(line, self._find_end(line, heals)) for line in faults]
        self.spans = Spans((trouble.at, trouble.until) for trouble in self.all)

    def _find_end(self, fault: Line, heals: Sequence[Line]) -> int:
        ends = [heal.done_at for heal in heals if heal.at >= fault.at and _heals(heal, fault)]
        if ends:
            return min(ends)
        gone = fault.fault in KILLING and fault.targets and set(fault.targets) <= self._clients
        return fault.done_at if gone or fault.fault in AT_ONCE else FOREVER

    @property
    def last_heal_at(self) -> int:
        """When the last of them was over; FOREVER if one never was."""
        return max((trouble.until for trouble in self.all), default=0)

    def spans_of(self, kinds: frozenset[str], target: str | None = None) -> list[Span]:
        """When faults of these kinds were open, for all or for one target."""
        return [
            (trouble.at, trouble.until)
            for trouble in self.all
            if trouble.fault in kinds and (target is None or target in trouble.targets)
        ]

    def had(self, kinds: frozenset[str]) -> bool:
        return any(trouble.fault in kinds for trouble in self.all)

    def killed_at(self, client: str) -> int | None:
        return min((at for at, _ in self.spans_of(KILLING, client)), default=None)


def _heals(heal: Line, fault: Line) -> bool:
    same = heal.fault is None or heal.fault == fault.fault
    return same and (not heal.targets or set(fault.targets or ()) <= set(heal.targets))
