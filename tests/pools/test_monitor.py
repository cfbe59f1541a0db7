"""The monitor (section II-E), admission (II-C) and the estimate of the capacity (algorithm 1)."""

from __future__ import annotations

import pytest
from test_engine import Small, take_all

from bursar.errors import NoAnswerError, Refused, UsageError
from bursar.pools.accounts import Accounts, Client
from bursar.pools.admission import admit, admit_all, can_still_meet
from bursar.pools.capacity import AdaptiveCapacity, FixedCapacity, Outcome, PrintedCapacity
from bursar.pools.layout import Report
from bursar.pools.monitor import Monitor
from bursar.pools.monitor_book import MonitorBook
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.experiments.pools.node import PlainWords, VirtualClock


def test_an_unused_reservation_goes_to_whoever_has_demand() -> None:
    """II-E, token conversion: b asks for nothing, and a gets nearly everything."""
    small = Small(10_000, a=1000, b=8000)
    a, b = small.engine("a"), small.engine("b")
    taken = 0
    for _ in range(199):
        small.pass_ms(5, a, b)
        a.book.pending = 100_000
        taken += take_all(a)
    assert 9_000 < taken <= 10_000
    assert small.book.accounts.issued() <= 10_000


def test_without_conversion_an_unused_reservation_is_wasted() -> None:
    small = Small(10_000, a=1000, b=8000)
    small.book._convert = False
    a, b = small.engine("a"), small.engine("b")
    taken = 0
    for _ in range(199):
        small.pass_ms(5, a, b)
        taken += take_all(a)
    assert taken <= 2000


def pool_at_half_time(*, waiting: bool, done: tuple[int, ...]) -> int:
    """What the pool may hold when a client with 3,000 of 10,000 reserved has done nothing, and the
    others what `done` says in the tenth of a second before."""
    accounts = Accounts(SECOND_NS, None)
    accounts.clients = {"slow": Client(3000), "other": Client(1000)}
    accounts.begin(0, 10_000)
    for client in accounts.clients.values():
        client.dispatched = client.reservation
    accounts.clients["slow"].note(0, Report(1, waiting, 3000, 0))
    for k, spent in enumerate(done):
        now = 400 * MILLISECOND_NS + k * 100 * MILLISECOND_NS // (len(done) - 1)
        accounts.clients["other"].note(now, Report(1, True, 0, spent))
        accounts.note_progress(now)
    return accounts.target(SECOND_NS // 2, 0, 0)


def test_while_a_waiting_client_is_behind_the_pool_gets_only_what_the_node_was_idle_for() -> None:
    """Definition 1: requests with pool tokens would be served before those of the client behind."""
    busy, idle = (4000, 4500, 5000), (4000, 4300, 4600)
    assert pool_at_half_time(waiting=True, done=busy) == 0
    assert pool_at_half_time(waiting=True, done=idle) == 400 * 5 // 100
    assert pool_at_half_time(waiting=False, done=busy) == 50, "nobody waits: half a step as usual"


def test_reports_are_asked_for_only_after_the_pool_was_touched() -> None:
    small = Small(1000, a=100)
    engine = small.engine("a")
    small.pass_ms(100, engine)
    assert small.words.read(small.book.names.asked) == 0
    take_all(engine)
    small.pass_ms(10, engine)
    assert small.words.read(small.book.names.asked) == small.book.period


def test_a_client_that_never_comes_is_given_nothing_after_a_period() -> None:
    small = Small(1000, a=500, b=400)
    a = small.engine("a")
    small.pass_ms(1200, a)
    assert small.book.clients["b"].revoked
    assert small.book.accounts.returned >= 400


def test_a_client_that_keeps_wasting_its_reservation_is_named() -> None:
    small = Small(1000, a=500)
    engine = small.engine("a")
    for _ in range(8):
        small.pass_ms(1000, engine)
    assert small.book.alerts() == ["a"]


def test_of_two_monitors_one_leads_and_the_other_takes_over() -> None:
    small = Small(1000, a=100)
    other = MonitorBook("p", FixedCapacity(1000), period_ns=SECOND_NS)
    other.join("a", 100)
    standby = Monitor(small.clock, small.words, other)
    standby.check()
    assert small.book.leading and not other.leading
    small.clock.ns += 1_600 * MILLISECOND_NS
    standby.check()
    assert other.leading and other.period == 2
    small.monitor.check()
    assert not small.book.leading, "its ceiling was moved by another"


def test_admission_says_which_bound_failed_and_what_would_fit() -> None:
    admit("b", 60, 40, 100)
    with pytest.raises(Refused, match=r"aggregate capacity\); 60 would fit") as refused:
        admit("b", 61, 40, 100)
    assert refused.value.remaining == 60
    with pytest.raises(Refused, match=r"local capacity\); 50 would fit"):
        admit("b", 55, 40, 100, 50)
    with pytest.raises(UsageError):
        admit("a", -1, 0, 100)
    admit_all({"a": 40, "b": 60}, {}, 100)
    with pytest.raises(Refused, match="b cannot reserve 70"):
        admit_all({"b": 70, "a": 40}, {"a": 40, "b": 60}, 100)


def test_example_2_of_the_paper_cannot_be_met_any_more() -> None:
    """II-C, example 2: R = 40, 10 done at half time, C_L = 50 a second."""
    assert can_still_meet(40, 0, SECOND_NS, SECOND_NS, 50)
    assert not can_still_meet(40, 10, SECOND_NS // 2, SECOND_NS, 50)


def test_algorithm_1_rises_when_used_up_and_averages_below() -> None:
    estimate = PrintedCapacity(1000, 50)
    estimate.close(Outcome(1000, 998))
    assert estimate.value == 1010
    estimate.close(Outcome(1010, 1000))
    assert estimate.value == 1000
    for _ in range(5):
        estimate.close(Outcome(1000, 900))
    assert estimate.value == 900
    estimate.close(Outcome(900, 700))
    assert estimate.value == 900, "below three deviations nothing is learnt"


def test_bursars_estimate_follows_any_drop_at_once_and_no_quiet_period() -> None:
    estimate = AdaptiveCapacity(1000, 10)
    estimate.close(Outcome(1000, 300))
    assert estimate.value == 1000, "nobody waited: a quiet period"
    estimate.close(Outcome(1000, 700, saturated=True))
    assert estimate.value == 700
    for expected in (707, 721, 749, 808):
        estimate.close(Outcome(estimate.value, estimate.value))
        assert estimate.value == expected
    estimate.floor = 600
    estimate.close(Outcome(808, 500, saturated=True))
    assert estimate.value == 600
    large = AdaptiveCapacity(1_000_000)
    large.close(Outcome(1_000_000, 1_000_000))
    assert large.value == 1_010_000, "a hundredth at first"


@pytest.mark.parametrize("wrong", [0, -5])
def test_a_capacity_of_nothing_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        FixedCapacity(wrong)


def test_a_reservation_above_the_capacity_is_refused_when_joining() -> None:
    book = MonitorBook("p", FixedCapacity(100), period_ns=SECOND_NS)
    with pytest.raises(Refused, match="100 would fit"):
        book.join("a", 101)
    assert book.clients == {}
    with pytest.raises(UsageError, match="too short"):
        MonitorBook("p", FixedCapacity(100), period_ns=MILLISECOND_NS)


def test_what_did_not_fit_leaves_clients_and_the_estimate_as_they_were() -> None:
    estimate = AdaptiveCapacity(1000)
    book = MonitorBook("pool", estimate, period_ns=SECOND_NS)
    book.set_terms({"a": 600, "b": 300}, estimate, None)
    with pytest.raises(Refused, match="b cannot reserve 800"):
        book.set_terms({"a": 100, "new": 200, "b": 800}, estimate, None)
    with pytest.raises(Refused, match="b cannot reserve 300"):
        book.set_terms({"a": 600, "b": 300}, FixedCapacity(800), None)
    assert {name: client.reservation for name, client in book.clients.items()} == {"a": 600, "b": 300}
    assert book.estimate is estimate and estimate.floor == 900
    book.set_terms({"a": 100, "new": 200}, estimate, None)
    reserved = {name: client.reservation for name, client in book.clients.items()}
    assert reserved == {"a": 100, "b": 0, "new": 200} and estimate.floor == 300


def test_who_stands_by_opens_the_next_period_when_it_is_due_once_the_monitor_has_resigned() -> None:
    small = Small(100, a=40)
    other = MonitorBook("p", FixedCapacity(100), period_ns=SECOND_NS)
    standby = Monitor(small.clock, small.words, other)
    small.monitor.check()
    standby.check()
    small.monitor.stop()
    small.clock.ns += SECOND_NS - MILLISECOND_NS
    standby.check()
    assert not other.leading, "the period is not over: another one would bring tokens too early"
    small.clock.ns += MILLISECOND_NS
    standby.check()
    assert other.leading and other.period == 2


def test_a_monitor_that_resigned_long_ago_makes_nobody_hasty() -> None:
    small = Small(100, a=40)
    other = MonitorBook("p", FixedCapacity(100), period_ns=SECOND_NS)
    standby = Monitor(small.clock, small.words, other)
    small.words.write("pool/p/left", 7)
    small.monitor.check()
    standby.check()
    small.clock.ns += SECOND_NS * 13 // 10
    standby.check()
    assert not other.leading, "its monitor may only be late"


def test_a_monitor_that_cannot_reach_the_words_does_not_try_without_a_pause() -> None:
    class Broken(PlainWords):
        broken = False

        def compare_and_swap(self, name: str, expected: int, value: int) -> int:
            if self.broken:
                raise NoAnswerError("gone")
            return super().compare_and_swap(name, expected, value)

    clock, words = VirtualClock(), Broken()
    monitor = Monitor(clock, words, MonitorBook("p", FixedCapacity(1000), period_ns=SECOND_NS))
    monitor.check()
    clock.ns += SECOND_NS - MILLISECOND_NS
    assert monitor.wait_ns() == MILLISECOND_NS
    clock.ns += MILLISECOND_NS
    words.broken = True
    monitor.check()
    assert monitor.unreachable == 1 and monitor.wait_ns() > 0


def test_a_report_that_a_dead_client_left_128_periods_ago_is_none() -> None:
    """Its words say of which period they are in seven bits."""
    small = Small(1000, a=500, b=100)
    small.book.estimate = AdaptiveCapacity(1000)
    a, b = small.engine("a"), small.engine("b")
    assert take_all(a) >= 500
    small.pass_ms(30, a, b)
    while small.book.period < 129:
        small.clock.ns += SECOND_NS
        small.monitor.check()
    taken = 0
    for _ in range(199):
        small.pass_ms(5, b)
        taken += take_all(b)
    assert small.book.clients["a"].report is None
    assert 900 < taken <= 1000, "nobody else asks"
    small.pass_ms(50, b)
    assert small.book.period == 130
    assert small.book.outcome is not None and small.book.outcome.used == taken
