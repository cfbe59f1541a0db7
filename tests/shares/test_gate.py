"""The gate: the filter's order at the target's pace, with deadlines."""

from __future__ import annotations

from bursar.shares.gate import SLACK_NS, Gate
from bursar.shares.rules import Rule
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS


def test_no_more_goes_through_than_the_capacity_and_the_slack():
    gate = Gate(Rate.of(1000))
    for number in range(5000):
        gate.submit("a", 1, number, 10 * SECOND_NS, 0)
    passed = 0
    for now in range(0, SECOND_NS, 3 * MILLISECOND_NS):
        passed += len(gate.pass_due(now))
        assert passed <= 1000 * (now + SLACK_NS) / SECOND_NS + 1
    assert passed >= 950


def test_timers_that_ring_late_cost_an_eager_target_little():
    gate = Gate(Rate.of(1000))
    gate.filter.start(Rule("a", 1, "a"), 0)
    for number in range(5000):
        gate.submit("a", 1, number, 10 * SECOND_NS, 0)
    passed = sum(len(gate.pass_due(now)) for now in range(0, SECOND_NS, 2 * MILLISECOND_NS))
    assert 950 <= passed <= 1011


def test_those_who_waited_as_long_as_they_said_are_told_and_gone():
    gate = Gate(Rate.of(10))
    gate.submit("a", 5, "large", 10 * SECOND_NS, 0)
    gate.submit("a", 1, "brief", 50 * MILLISECOND_NS, 0)
    gate.submit("a", 1, "patient", 10 * SECOND_NS, 0)
    assert [request.item for request in gate.pass_due(0)] == ["large"]
    assert gate.wake_at() == 50 * MILLISECOND_NS
    assert [request.item for request in gate.expire(60 * MILLISECOND_NS)] == ["brief"]
    assert [request.item for request in gate.pass_due(SECOND_NS)] == ["patient"]
    assert gate.expire(SECOND_NS) == []
    assert gate.wake_at() is None


def test_deadlines_of_requests_that_went_do_not_pile_up():
    gate = Gate(Rate.of(10**9))
    blocker = gate.submit("blocked", 1, 0, 5 * SECOND_NS, 0)
    for number in range(5000):
        gate.submit("a", 1, number, 3600 * SECOND_NS, number)
        for request in gate.pass_due(number):
            assert request.item is not None
    assert len(gate._deadlines) <= 130
    assert not blocker.queued


def test_a_request_that_cannot_go_at_once_is_turned_away_and_counts_as_demand():
    gate = Gate(Rate.of(10))
    assert gate.try_pass("a", 3, 0)
    assert not gate.try_pass("a", 1, 0)
    assert gate.filter.collect()["a"].demand == 4
