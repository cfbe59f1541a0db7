"""What Envoys say that they did not use is not charged; what they may have used is, whatever is late."""

from __future__ import annotations

import random

import pytest

from bursar.integrations.envoy.accounts import Account
from bursar.integrations.envoy.cells import FILL_S, Line, Terms
from bursar.integrations.envoy.ledger import Ledger
from bursar.world import MILLISECOND_NS, SECOND_NS

LIMIT, BURST, LOAD = 100.0, 10.0, 150.0
STEP_NS = 100 * MILLISECOND_NS
REPORT_S, DAY_NS = 5, 86_400 * SECOND_NS
UNHEARD_S = 6
"""After so long an Envoy that is cut off is charged with what it had last."""


class Envoy:
    """Uses what it is told while it has load; `way` is what cannot leave it while it is cut off."""

    def __init__(self, slot: int) -> None:
        self.line = Line(slot, 0)
        self.rate: int | None = None
        self.most = self.tokens = self.used = 0.0
        self.reported = 0
        self.load, self.is_cut = LOAD, False
        self.way: list[int] = []

    def step(self) -> float:
        passed_s = STEP_NS / SECOND_NS
        self.tokens = min(self.tokens + (self.rate or 0) / FILL_S * passed_s, max(self.most, 1.0))
        used = min(self.tokens, self.load * passed_s)
        self.tokens -= used
        self.used += used
        return used

    def write(self) -> None:
        self.way.append(int(self.used) - self.reported)
        self.reported = int(self.used)

    def hear(self, rate: int, burst: int) -> None:
        if self.is_cut or rate == self.rate:
            return
        self.rate, self.most, self.tokens = (None, 0, 0) if rate < 0 else (rate, burst, burst)


class World:
    """A node whose door hands out half of the limit: the other half is used elsewhere."""

    def __init__(self, seed: int, *, cuts: bool) -> None:
        self.cuts = cuts
        self.draw = random.Random(seed)
        self.ledger = Ledger({"acme": Terms(LIMIT, BURST)}.get, keeps=True, quiet_ns=0)
        self.envoys = [Envoy(slot) for slot in range(3)]
        self.account: Account | None = None
        self.tokens, self.used = BURST, 0.0

    def step(self, number: int) -> None:
        now = number * STEP_NS
        for envoy in self.envoys:
            self._change(envoy)
            self.used += envoy.step()
            is_new = envoy.rate is None and envoy.load > 0 and not envoy.is_cut
            if is_new or number % (REPORT_S * SECOND_NS // STEP_NS) == 7 * envoy.line.slot:
                envoy.write()
            if not envoy.is_cut:
                self._read(now, envoy, is_new=is_new)
        self._charge(now)

    def _change(self, envoy: Envoy) -> None:
        if self.draw.random() < 0.01:
            envoy.load = LOAD - envoy.load
        if self.cuts and self.draw.random() < (0.02 if envoy.is_cut else 0.002):
            envoy.is_cut = not envoy.is_cut

    def _read(self, now: int, envoy: Envoy, *, is_new: bool) -> None:
        while envoy.way:
            envoy.line.heard_at = now
            elapsed_s = 0 if is_new else REPORT_S
            self.account = self.ledger.report(now, envoy.line, "acme", elapsed_s, envoy.way.pop(0), 0)
            self._tell(now, envoy.line.slot)

    def _tell(self, now: int, renew: int | None = None) -> None:
        assert self.account is not None
        told, tokens = self.ledger.plan(now, self.account, renew=renew)
        if tokens > 0:
            told = [each for each in told if each.rate <= (each.cell.rate or 0)]
        self.ledger.send(now, self.account, told, DAY_NS)
        for each in told:
            self.envoys[each.cell.line.slot].hear(each.rate, each.burst)

    def _charge(self, now: int) -> None:
        self.tokens = min(BURST, self.tokens + LIMIT / 2 * STEP_NS / SECOND_NS)
        account = self.account
        if account is None:
            return
        account.advance(now)
        while 0 < (amount := account.find_amount()) <= self.tokens:
            self.tokens -= amount
            account.charge(amount)
        if account.find_review(now):
            account.review(now, 0.0, 0.0)
            self._tell(now)
        elif account.cut(now) or account.owed < 0:
            self._tell(now)


def find_worst(seed: int, *, cuts: bool, steps: int = 2000) -> float:
    """The most that Envoys used beyond what was charged for them, from any moment to any other."""
    world, worst, least = World(seed, cuts=cuts), 0.0, 0.0
    for number in range(steps):
        world.step(number)
        if world.account is not None:
            beyond = world.used - world.account.charged
            least = min(least, beyond)
            worst = max(worst, beyond - least)
    return worst


OWED = BURST + LIMIT / 5
AHEAD = BURST + LIMIT / 4


@pytest.mark.parametrize("seed", range(5))
def test_no_more_is_used_beyond_what_is_charged_than_is_owed_and_was_charged_ahead(seed: int) -> None:
    assert find_worst(seed, cuts=False) <= OWED + AHEAD


@pytest.mark.parametrize("seed", range(5))
def test_an_envoy_that_is_cut_off_adds_what_it_had_until_it_is_missed(seed: int) -> None:
    assert find_worst(seed, cuts=True) <= OWED + AHEAD + LIMIT * UNHEARD_S
