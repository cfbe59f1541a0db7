"""The book of Envoys: what is out is charged, and what is charged is out, whatever is lost or late."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from bursar.integrations.envoy.accounts import Account
from bursar.integrations.envoy.cells import ABANDON, FILL_S, MARGIN_NS, TIME_TO_LIVE_S, Cell, Line, Terms
from bursar.integrations.envoy.ledger import Ledger
from bursar.world import MILLISECOND_NS, SECOND_NS

LIMIT, BURST = 100.0, 10.0
HOLD_NS = TIME_TO_LIVE_S * SECOND_NS


def make_ledger(*, keeps: bool = False, quiet_ns: int = 0) -> Ledger:
    find = {"acme": Terms(LIMIT, BURST)}.get
    return Ledger(find, keeps=keeps, quiet_ns=quiet_ns)


def report(
    ledger: Ledger, now: int, line: Line, allowed: int, denied: int = 0, elapsed_s: int = 0
) -> Account:
    line.heard_at = now
    account = ledger.report(now, line, "acme", elapsed_s, allowed, denied)
    assert account is not None
    return account


def tell(
    ledger: Ledger, now: int, account: Account, renew: int | None = None, hold_ns: int = HOLD_NS
) -> dict[int, int]:
    """Send all that is planned, and charge what is owed."""
    account.advance(now)
    account.charge(max(0.0, account.owed) + BURST)
    told, _ = ledger.plan(now, account, renew=renew)
    ledger.send(now, account, told, hold_ns)
    return {each.cell.line.slot: each.rate for each in told}


def test_who_is_no_tenant_has_no_account() -> None:
    assert make_ledger().report(0, Line(1, 0), "stranger", 0, 1, 0) is None


def test_a_newcomer_is_told_the_limit_and_two_share_it() -> None:
    ledger, one, two = make_ledger(), Line(1, 0), Line(2, 0)
    account = report(ledger, 0, one, 1)
    assert tell(ledger, 0, account, 1) == {1: LIMIT * FILL_S}
    account = report(ledger, SECOND_NS, two, 1)
    assert tell(ledger, SECOND_NS, account, 2) == {1: LIMIT * FILL_S / 2, 2: LIMIT * FILL_S / 2}


def test_what_is_out_falls_due_until_its_time_is_over() -> None:
    ledger, line = make_ledger(), Line(1, 0)
    account = report(ledger, 0, line, 0)
    tell(ledger, 0, account, 1)
    bursts = account.due
    account.advance(HOLD_NS)
    assert account.due == pytest.approx(bursts + LIMIT * TIME_TO_LIVE_S, abs=0.1)
    assert account.in_force(HOLD_NS + MARGIN_NS) == 0


def test_an_envoy_that_fell_silent_counts_with_the_most_that_it_may_hold() -> None:
    ledger, one, two = make_ledger(), Line(1, 0), Line(2, 0)
    account = report(ledger, 0, one, 1)
    tell(ledger, 0, account, 1)
    account = report(ledger, SECOND_NS, two, 1)
    tell(ledger, SECOND_NS, account, 2)
    assert account.in_force(2 * SECOND_NS) == pytest.approx(LIMIT, abs=0.1)
    two.heard_at = 7 * SECOND_NS
    # Whether it heard that its part was halved is not known.
    assert account.in_force(7 * SECOND_NS) == pytest.approx(1.5 * LIMIT, abs=0.1)


@pytest.mark.parametrize(("keeps", "counts_ns"), [(False, HOLD_NS), (True, 300 * SECOND_NS)])
def test_an_envoy_that_is_gone_counts_as_long_as_it_may_go_on(keeps: bool, counts_ns: int) -> None:
    ledger, line = make_ledger(keeps=keeps), Line(1, 0)
    account = report(ledger, 0, line, 1)
    tell(ledger, 0, account, 1)
    ledger.leave(0, 1, ["acme"], counts_ns=counts_ns)
    assert account.in_force(counts_ns - SECOND_NS) == pytest.approx(LIMIT, abs=0.1)
    assert account.in_force(counts_ns + MARGIN_NS) == 0


def test_one_that_comes_back_is_not_counted_twice() -> None:
    ledger, line = make_ledger(), Line(1, 0)
    account = report(ledger, 0, line, 1)
    tell(ledger, 0, account, 1)
    ledger.leave(SECOND_NS, 1, ["acme"], counts_ns=0)
    account = report(ledger, 2 * SECOND_NS, Line(2, 0), 150, elapsed_s=2)
    tell(ledger, 2 * SECOND_NS, account, 2)
    assert account.in_force(2 * SECOND_NS) <= LIMIT


def test_an_envoy_whose_last_reports_say_nothing_is_told_to_forget() -> None:
    ledger, line = make_ledger(), Line(1, 0)
    account = report(ledger, 0, line, 1)
    tell(ledger, 0, account, 1)
    told = []
    for number, allowed in enumerate((100, 0, 0, 0), start=1):
        account = report(ledger, number * 5 * SECOND_NS, line, allowed, elapsed_s=5)
        told.append(tell(ledger, number * 5 * SECOND_NS, account, 1)[1])
    assert min(told[:3]) > 0 and told[3] == ABANDON


def test_one_that_was_told_to_forget_counts_no_more_though_nothing_is_heard_of_it() -> None:
    ledger, line = make_ledger(), Line(1, 0)
    account = report(ledger, 0, line, 1)
    tell(ledger, 0, account, 1)
    for number, allowed in enumerate((100, 0, 0, 0), start=1):
        account = report(ledger, number * 5 * SECOND_NS, line, allowed, elapsed_s=5)
        tell(ledger, number * 5 * SECOND_NS, account, 1, hold_ns=86_400 * SECOND_NS)
    assert account.in_force(27 * SECOND_NS) == 0.0


def count_due(*used: tuple[int, int]) -> float:
    """What is due when an Envoy with all of the limit reports: (second, tokens)."""
    ledger, line = make_ledger(), Line(1, 0)
    account = report(ledger, 0, line, 1)
    (burst,) = (each.burst for each in ledger.plan(0, account, renew=1)[0])
    tell(ledger, 0, account, 1)
    for second, tokens in used:
        report(ledger, second * SECOND_NS, line, tokens, elapsed_s=5)
    return account.due - burst - 1


def test_what_an_envoy_says_that_it_did_not_use_is_due_no_more() -> None:
    assert count_due((5, 30)) == pytest.approx(30, abs=0.1)


def test_a_report_that_comes_late_takes_nothing_back_because_others_may_follow() -> None:
    assert count_due((8, 30)) == pytest.approx(8 * LIMIT, abs=0.1)
    assert count_due((8, 300), (8, 400)) == pytest.approx(8 * LIMIT, abs=0.1)
    assert count_due((8, 300), (8, 400), (13, 0)) == pytest.approx(700, abs=0.1)


def test_reports_that_come_at_once_after_a_silence_are_no_greater_demand() -> None:
    ledger, line = make_ledger(keeps=True), Line(1, 0)
    account = report(ledger, 0, line, 1)
    tell(ledger, 0, account, 1)
    for second in (20, 20, 20, 20, 25):
        report(ledger, second * SECOND_NS, line, 150, elapsed_s=5)
    assert account.demand() == pytest.approx(30)


@pytest.mark.parametrize(("limit", "period_s", "most"), [(5, 3, 1), (5, 1, 1), (100, 1, 5), (40, 1, 2)])
def test_so_few_are_asked_for_at_once_that_a_period_is_used_up(limit: int, period_s: int, most: int) -> None:
    account = Account("acme", Terms(limit / period_s, max(limit / 20, min(limit, 10)), period_s), 0)
    account.credit = 1e6
    assert account.find_amount() == most


def test_a_policy_without_the_tenant_takes_what_it_has() -> None:
    terms = {"acme": Terms(LIMIT, BURST)}
    ledger, line = Ledger(terms.get, keeps=False, quiet_ns=0), Line(1, 0)
    account = report(ledger, 0, line, 1)
    tell(ledger, 0, account, 1)
    terms.clear()
    (account,) = ledger.change(SECOND_NS)
    assert tell(ledger, SECOND_NS, account) == {1: 0}


@dataclass
class World:
    """Envoys, a way to them that loses and delays, and a door that hands out the limit and no more."""

    draw: random.Random
    ledger: Ledger = field(default_factory=make_ledger)
    lines: list[Line] = field(default_factory=lambda: [Line(n, 0) for n in range(3)])
    rates: dict[int, tuple[int, int]] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    used: float = 0.0
    tokens: float = BURST
    now: int = 0

    def step(self, account: Account, passed_ns: int) -> None:
        passed_s = passed_ns / SECOND_NS
        for rate, until in self.rates.values():
            self.used += rate / FILL_S * min(passed_s, max(0, until - self.now) / SECOND_NS)
        self.now += passed_ns
        account.advance(self.now)
        self.tokens = min(BURST, self.tokens + LIMIT * passed_s)
        asked = min(account.find_amount(), int(self.tokens))
        self.tokens -= asked
        account.charge(asked)

    def tell(self, account: Account, renew: int | None = None) -> None:
        told, tokens = self.ledger.plan(self.now, account, renew=renew)
        if tokens > 0 and any(each.rate > (each.cell.rate or 0) for each in told):
            told = [each for each in told if each.rate <= (each.cell.rate or 0)]
        self.ledger.send(self.now, account, told, HOLD_NS)
        for each in told:
            slot = each.cell.line.slot
            if slot not in self.cut:
                if each.rate != self.rates.get(slot, (0, 0))[0] and each.rate > 0:
                    self.used += each.burst
                self.rates[slot] = (max(each.rate, 0), self.now + HOLD_NS)


def play(world: World, steps: int = 600) -> float:
    """The most that Envoys could have used beyond what was charged."""
    account = report(world.ledger, 0, world.lines[0], 0)
    world.tell(account, 0)
    worst = 0.0
    for _ in range(steps):
        world.step(account, world.draw.randrange(10, 200) * MILLISECOND_NS)
        line = world.draw.choice(world.lines)
        if world.draw.random() < 0.05:
            world.cut ^= {line.slot}
        if world.draw.random() < 0.3 and line.slot not in world.cut:
            line.heard_at = world.now
            demand = world.draw.choice([0, 50, 500])
            world.ledger.report(world.now, line, "acme", 5, demand, demand)
            world.tell(account, line.slot)
        if account.find_review(world.now):
            account.review(world.now, 0.0, 0.0)
            world.tell(account)
        if account.cut(world.now):
            world.tell(account)
        worst = max(worst, world.used - account.charged)
    return worst


def most_uncharged() -> float:
    """`most_owed` with the whole limit out; a burst more for each Envoy; and what one that was cut off may
    hold until that is known."""
    return BURST + LIMIT + 3 * 30 + LIMIT * 6


@pytest.mark.parametrize("seed", range(20))
def test_what_envoys_use_is_charged_whatever_is_lost(seed: int) -> None:
    assert play(World(random.Random(seed))) <= most_uncharged()


def charge_after_a_cut() -> float:
    """In eight seconds after an Envoy with the whole limit was cut off, while nobody else asks."""
    world = World(random.Random(1))
    account = report(world.ledger, 0, world.lines[0], 0)
    tell(world.ledger, 0, account, 0)
    account.cells[0].forget()
    before = account.charged
    for _ in range(200):
        world.step(account, 40 * MILLISECOND_NS)
    return account.charged - before


def test_what_a_silent_envoy_may_use_is_charged_and_forgetting_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert charge_after_a_cut() >= LIMIT * TIME_TO_LIVE_S * 0.9

    def in_force(cell: Cell, now: int) -> float:
        """The planted mistake: an Envoy that is not heard of is taken to have nothing."""
        return (cell.rate or 0) / FILL_S if now - cell.line.heard_at < SECOND_NS else 0.0

    monkeypatch.setattr(Cell, "in_force", in_force)
    assert charge_after_a_cut() < LIMIT * TIME_TO_LIVE_S / 2
