"""The fleet's book: what may be in force is bounded, whatever Envoys hold on to for their time."""

from __future__ import annotations

import numpy as np
import pytest

from bursar.integrations.envoy.fleet import ABANDON, ALLOW_ALL, FILL_S, MARGIN_NS, QUIET_NS, FleetBook
from bursar.integrations.envoy.split import UNLIMITED, Terms
from bursar.world import SECOND_NS

HOLD_NS = 8 * SECOND_NS
REPORT_NS = 5 * SECOND_NS


def make_book(
    limits: list[int], *, overlap: float = 0.0, capacity: int = UNLIMITED, now: int = 0, fresh: bool = True
) -> FleetBook:
    limit = np.array(limits, np.int64)
    terms = Terms(np.zeros_like(limit), limit, np.ones_like(limit), capacity)
    names = [f"t{row}" for row in range(len(limits))]
    return FleetBook(names, terms, now, hold_ns=HOLD_NS, overlap=overlap, fresh=fresh)


def join(book: FleetBook, now: int) -> int:
    slot = book.join(now)
    assert slot is not None
    return slot


def say(book: FleetBook, now: int, slot: int, rate: int, row: int = 0, elapsed_s: int = 5) -> None:
    """An ordinary report: so many requests a second, all denied (which the demand does not mind)."""
    book.report(now, slot, [row], [elapsed_s], [0], [rate * elapsed_s])


def subscribe(book: FleetBook, now: int, slot: int, row: int = 0) -> None:
    book.report(now, slot, [row], [0], [1], [0])


class Envoys:
    """Envoys at their worst: each keeps the largest assignment whose time has not run out."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, int, int]] = []

    def hear(self, book: FleetBook, now: int) -> None:
        for orders in book.decide(now):
            for row, rate in zip(orders.rows.tolist(), orders.rates.tolist(), strict=True):
                assert rate != ALLOW_ALL
                self.sent.append((now + HOLD_NS + MARGIN_NS, orders.slot, row, max(rate, 0)))

    def in_force(self, now: int, rows: int) -> np.ndarray:
        self.sent = [entry for entry in self.sent if entry[0] > now]
        most: dict[tuple[int, int], int] = {}
        for _, slot, row, rate in self.sent:
            most[slot, row] = max(most.get((slot, row), 0), rate)
        totals = np.zeros(rows, np.int64)
        for (_, row), rate in most.items():
            totals[row] += rate
        return totals


@pytest.mark.parametrize("overlap", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(60))
def test_what_may_be_in_force_never_passes_the_bound(seed: int, overlap: float) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 4))
    limits = rng.integers(20, 3000, rows)
    capacity = int(rng.integers(100, 4000)) if rng.random() < 0.5 else UNLIMITED
    book = make_book(limits.tolist(), overlap=overlap, capacity=capacity)
    envoys, slots, now = Envoys(), [], 0
    for _ in range(120):
        now += int(rng.integers(1, 3 * SECOND_NS))
        if len(slots) < 4 and rng.random() < 0.2:
            slots.append(join(book, now))
        elif slots and rng.random() < 0.05:
            book.leave(now, slots.pop(int(rng.integers(len(slots)))))
        for slot in slots:
            if rng.random() < 0.5:
                row = int(rng.integers(rows))
                known = bool(book.member[row, slot])
                count = int(rng.integers(0, 2000)) * int(rng.random() < 0.8)
                book.report(now, slot, [row], [3 if known else 0], [count // 2], [count - count // 2])
        envoys.hear(book, now)
        worst = envoys.in_force(now, rows)
        assert (book.current.sum(axis=1) <= limits).all(), f"seed {seed}"
        assert (worst <= limits * (1 + overlap)).all(), f"seed {seed}"
        assert worst.sum() <= capacity * (1 + overlap), f"seed {seed}"


def test_strictly_a_share_moves_when_the_old_time_to_live_is_over() -> None:
    book = make_book([1000])
    a, b = join(book, 0), join(book, 0)
    now = REPORT_NS
    for slot in (a, b):
        subscribe(book, 0, slot)
    book.decide(0)
    for slot, rate in ((a, 300), (b, 0)):
        say(book, now, slot, rate)
    book.decide(now)
    now += HOLD_NS + MARGIN_NS
    say(book, now, a, 300)
    book.decide(now)
    assert book.current[0].tolist() == [1000, 0]
    say(book, now, b, 300, elapsed_s=0)
    say(book, now + REPORT_NS, a, 0)
    say(book, now + REPORT_NS, b, 300)
    sent_at = now + REPORT_NS
    book.decide(sent_at)
    assert book.current[0, a] == 0
    assert book.current[0, b] < 1000
    next_at = book.next_at(sent_at)
    assert next_at is not None and next_at <= sent_at + HOLD_NS + MARGIN_NS
    last = sent_at + HOLD_NS + MARGIN_NS
    book._slots[b] = last  # still heard of
    book.demand[0, b] = 3000
    book.decide(last)
    assert book.current[0, b] == 1000


def test_with_overlap_growing_starts_at_once() -> None:
    book = make_book([1000], overlap=0.5)
    a = join(book, 0)
    subscribe(book, 0, a)
    book.decide(0)
    assert book.current[0, a] == 1000
    b = join(book, SECOND_NS)
    subscribe(book, SECOND_NS, b)
    book.decide(SECOND_NS)
    assert book.current[0].tolist() == [667, 333]
    assert book.in_force().sum() == 1333


def test_a_silent_envoy_loses_its_share_to_the_others() -> None:
    book = make_book([900])
    slots = [join(book, 0) for _ in range(3)]
    for slot in slots:
        subscribe(book, 0, slot)
    book.decide(0)
    now = 0
    for _ in range(5):
        now += REPORT_NS
        for slot in slots[:2]:
            say(book, now, slot, 100)
        book.decide(now)
    assert book.current[0].tolist() == [450, 450, 0]


def test_an_envoy_that_left_counts_until_its_time_is_over_and_its_slot_is_used_again() -> None:
    book = make_book([900])
    a = join(book, 0)
    subscribe(book, 0, a)
    book.decide(0)
    book.leave(SECOND_NS, a)
    b = join(book, SECOND_NS)
    assert b != a
    subscribe(book, SECOND_NS, b)
    book.decide(SECOND_NS)
    assert book.current[0, b] == 0
    book.decide(HOLD_NS + MARGIN_NS)
    assert book.current[0, b] == 900
    assert join(book, HOLD_NS + MARGIN_NS + 1) == a


def test_after_a_restart_an_envoy_gets_at_most_what_it_was_seen_to_use() -> None:
    book = make_book([1000], fresh=False)
    a, b = join(book, 0), join(book, 0)
    book.report(0, a, [0], [4], [300], [50])
    book.report(0, b, [0], [4], [100], [0])
    book.decide(0)
    assert book.current[0].tolist() == [300 * FILL_S // 5, 100 * FILL_S // 5]
    book.decide(book.learnt_at)
    assert book.current.sum() == 1000


def test_after_a_restart_one_that_holds_something_unknown_is_not_told_nothing() -> None:
    for keeps, told in ((False, [600]), (True, [])):
        limit = np.array([1000])
        terms = Terms(np.zeros_like(limit), limit, np.ones_like(limit))
        book = FleetBook(["t0"], terms, 0, hold_ns=HOLD_NS, overlap=0.0, keeps=keeps)
        used, idle = join(book, 0), join(book, 0)
        book.report(0, used, [0], [4], [300], [50])
        book.report(0, idle, [0], [4], [0], [0])
        orders = book.decide(0)
        assert [rate for order in orders for rate in order.rates.tolist()] == told
        book.report(REPORT_NS, used, [0], [5], [300], [50])
        book.report(REPORT_NS, idle, [0], [5], [0], [0])
        book.decide(REPORT_NS)
        assert book.decide(book.learnt_at)
        assert book.current.sum() == 1000


def test_a_restart_leaves_newcomers_the_overlap_alone() -> None:
    for overlap, most in ((0.0, 0), (0.5, 500)):
        book = make_book([1000], overlap=overlap, fresh=False)
        slot = join(book, 0)
        subscribe(book, 0, slot)
        orders = book.decide(0)
        assert orders[0].rates.tolist() == [most]


def test_small_changes_are_not_worth_a_new_burst() -> None:
    book = make_book([2000])
    a, b = join(book, 0), join(book, 0)
    for slot in (a, b):
        subscribe(book, 0, slot)
    now, seen = 0, set()
    for step in range(12):
        now += REPORT_NS
        say(book, now, a, 150 + step % 3)
        say(book, now, b, 150 - step % 2)
        book.decide(now)
        if step > 3:
            seen.add(tuple(book.current[0].tolist()))
    assert len(seen) == 1


def test_a_quiet_tenant_is_abandoned_and_one_with_nothing_at_once() -> None:
    book = make_book([1000])
    a = join(book, 0)
    subscribe(book, 0, a)
    book.decide(0)
    now, rates = 0, []
    while now < QUIET_NS + REPORT_NS:
        now += REPORT_NS
        if book.member[0, a]:
            say(book, now, a, 0)
        rates += [rate for orders in book.decide(now) for rate in orders.rates.tolist()]
    assert rates[-1] == ABANDON and rates.count(ABANDON) == 1
    assert not book.member[0, a]


def test_a_tenant_without_limit_or_capacity_is_let_through() -> None:
    book = make_book([UNLIMITED])
    slot = join(book, 0)
    subscribe(book, 0, slot)
    assert book.decide(0)[0].rates.tolist() == [ALLOW_ALL]


def test_a_short_first_report_is_not_blown_up() -> None:
    book = make_book([3000])
    slot = join(book, 0)
    subscribe(book, 0, slot)
    book.report(SECOND_NS // 10, slot, [0], [0], [40], [0])
    assert book.demand[0, slot] == 3000
    book.report(SECOND_NS * 2, slot, [0], [1], [60], [0])
    assert book.demand[0, slot] == 50 * FILL_S


def test_envoys_beyond_what_memory_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bursar.integrations.envoy.fleet.CELLS_MAX", 4)
    book = make_book([10, 10])
    assert [book.join(0) for _ in range(3)] == [0, 1, None]


def test_a_reservation_is_kept_through_one_low_report_and_lent_after_two() -> None:
    limit = np.array([4000, 4000])
    terms = Terms(np.array([1000, 0]), limit, np.ones_like(limit), 4000)
    book = FleetBook(["calm", "flood"], terms, 0, hold_ns=HOLD_NS, overlap=0.5, fresh=True)
    a, b = join(book, 0), join(book, 0)
    subscribe(book, 0, a, row=0)
    subscribe(book, 0, b, row=1)
    now, kept = 0, []
    for rate in (100, 100, 100, 20, 20, 20, 20):
        now += REPORT_NS
        say(book, now, a, rate, row=0)
        say(book, now, b, 1000, row=1)
        book.decide(now)
        kept.append(int(book.current[0, a]))
    assert kept[2:4] == [1000, 1000]
    assert kept[-1] == 200
