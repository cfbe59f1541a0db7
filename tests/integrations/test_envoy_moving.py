"""Load that moves from Envoy to Envoy: what the rule of demand gives it, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bursar.integrations.envoy.accounts import Account
from bursar.integrations.envoy.cells import FILL_S, REPORT_NS, REPORTS, Cell, Line, Terms
from bursar.integrations.envoy.ledger import Ledger
from bursar.world import MILLISECOND_NS, SECOND_NS

LIMIT, LOAD = 100.0, 150.0
STEP_NS = 100 * MILLISECOND_NS
APART_NS = 17 * STEP_NS
TOLD_S = 86_400
ENOUGH = 0.97
"""Of the better of fixed parts, and of all the limit from the second report after each move on."""


@dataclass
class Envoy:
    """Reports every five seconds from `phase_ns` on, and at once when it has no assignment."""

    line: Line
    phase_ns: int
    rate: float | None = None
    asked: float = 0.0

    def serve(self, load: float) -> float:
        """What it lets through in this step."""
        passed_s = STEP_NS / SECOND_NS
        self.asked += load * passed_s
        return min(load, self.rate or 0.0) * passed_s

    def reports(self, now: int) -> bool:
        if self.rate is None:
            return self.asked > 0
        return (now - self.phase_ns) % REPORT_NS == 0


class World:
    """The Envoys, and a ledger for which everything is charged at once."""

    def __init__(self, envoys: int, phase_ns: int) -> None:
        self.ledger = Ledger({"acme": Terms(LIMIT, LIMIT / 10)}.get, keeps=True, quiet_ns=0)
        self.envoys = [Envoy(Line(n, 0), phase_ns + n * APART_NS) for n in range(envoys)]
        self.account: Account | None = None

    def step(self, now: int, loaded: int) -> float:
        used = 0.0
        for number, envoy in enumerate(self.envoys):
            if envoy.reports(now):
                self._report(now, envoy)
            used += envoy.serve(LOAD if number == loaded else 0.0)
        return used

    def _report(self, now: int, envoy: Envoy) -> None:
        elapsed_s = 0 if envoy.rate is None else REPORT_NS // SECOND_NS
        envoy.line.heard_at = now
        account = self.ledger.report(now, envoy.line, "acme", elapsed_s, int(envoy.asked), 0)
        assert account is not None
        envoy.asked = 0.0
        account.advance(now)
        account.charge(max(0.0, account.owed))
        told, _ = self.ledger.plan(now, account, renew=envoy.line.slot)
        self.ledger.send(now, account, told, TOLD_S * SECOND_NS)
        for each in told:
            rate = None if each.rate < 0 else each.rate / FILL_S
            self.envoys[each.cell.line.slot].rate = rate


def measure_part(envoys: int, seconds: int, phase_ns: int) -> float:
    """Of the limit, once the load has been at every Envoy."""
    world, used = World(envoys, phase_ns), 0.0
    moves = envoys * (1 + max(1, -(-120 // (envoys * seconds))))
    warm, end = envoys * seconds, moves * seconds
    for number in range(end * SECOND_NS // STEP_NS):
        now = number * STEP_NS
        passed = world.step(now, now // (seconds * SECOND_NS) % envoys)
        if now >= warm * SECOND_NS:
            used += passed
    return used / (end - warm) / LIMIT


@pytest.mark.parametrize("seconds", [7, 12, 20, 40])
@pytest.mark.parametrize("envoys", [2, 3])
def test_load_that_goes_round_gets_what_fixed_parts_and_two_reports_give(envoys: int, seconds: int) -> None:
    better = max(1 / envoys, 1 - 2 * REPORT_NS / SECOND_NS / seconds)
    parts = [measure_part(envoys, seconds, phase * STEP_NS) for phase in (0, 11, 23, 32, 46)]
    assert min(parts) >= ENOUGH * better, parts


def find_reports_until(before: float, after: list[float], peak: float) -> int:
    """How many reports it takes until a cell is taken to want `peak`."""
    cell = Cell(Line(0, 0))
    for _ in range(REPORTS):
        cell.note(before)
    for number, each in enumerate(after, start=1):
        cell.note(each)
        if cell.peak == peak:
            return number
    raise AssertionError(f"it is taken to want {cell.peak}")


def test_load_that_stays_less_counts_as_less_after_three_reports() -> None:
    assert find_reports_until(LOAD, [30.0] * 9, 30.0) == 3
    assert find_reports_until(LOAD, [0.0] * 9, 0.0) == 3


def test_a_trickle_holds_what_load_left_behind_for_five_reports_at_most() -> None:
    assert find_reports_until(LOAD, [0.2, 0.0] * 9, 0.2) == 5
