"""The gate: the filter's order at the target's pace."""

from __future__ import annotations

import pytest

from bursar.shares.gate import SLACK_NS, Gate
from bursar.shares.rules import Rule
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS


def fill(gate, count):
    for number in range(count):
        gate.filter.submit("a", 1, number, 0)


def test_no_more_goes_through_than_the_capacity_and_the_slack():
    gate = Gate(Rate.of(1000))
    fill(gate, 5000)
    passed = 0
    for now in range(0, SECOND_NS, 3 * MILLISECOND_NS):
        passed += len(gate.pass_due(now))
        assert passed <= 1000 * (now + SLACK_NS) / SECOND_NS + 1
    assert passed >= 950


def test_timers_that_ring_late_cost_an_eager_target_little():
    gate = Gate(Rate.of(1000))
    gate.filter.start(Rule("a", 1, "a"), 0)
    fill(gate, 5000)
    passed = sum(len(gate.pass_due(now)) for now in range(0, SECOND_NS, 2 * MILLISECOND_NS))
    assert 950 <= passed <= 1011


def test_a_request_goes_at_once_only_if_the_target_has_room_and_nobody_waits():
    gate = Gate(Rate.of(10))
    assert gate.try_pass("a", 3, 0)
    assert not gate.try_pass("b", 1, 0), "the target is busy"
    gate.filter.submit("b", 1, "waits", 0)
    assert gate.wake_at() == 300 * MILLISECOND_NS - SLACK_NS
    assert not gate.try_pass("a", 1, SECOND_NS), "somebody waits"
    assert [request.item for request in gate.pass_due(SECOND_NS)] == ["waits"]
    assert gate.wake_at() is None


def test_what_was_not_let_through_is_demand_only_once():
    gate = Gate(Rate.of(10))
    assert gate.try_pass("a", 3, 0)
    assert not gate.try_pass("a", 1, 0)
    gate.filter.refuse("a", 1)
    assert gate.filter.collect()["a"] == 4


def test_all_that_waits_is_done_when_the_gate_says():
    gate = Gate(Rate.of(1000))
    assert gate.try_pass("a", 50, 0)
    gate.filter.submit("a", 20, "first", 0)
    second = gate.filter.submit("b", 30, "second", 0)
    drained_at = gate.drained_at(0)
    assert drained_at == 100 * MILLISECOND_NS - SLACK_NS
    now = 0
    while gate.wake_at() is not None:
        now = max(now + 1, gate.wake_at())
        gate.pass_due(now)
    assert not gate.try_pass("c", 1, drained_at - MILLISECOND_NS)
    assert gate.try_pass("c", 1, drained_at)
    assert not gate.filter.withdraw(second, now), "it went"


# Tokens ahead


def test_tokens_ahead_never_make_the_target_busy():
    gate = Gate(Rate.of(1000))
    assert gate.try_pass("a", 1, 0)
    assert gate.take_ahead("a", 1000, 0) == 9, "what is left of the slack"
    assert gate.try_pass("b", 1, 0)
    assert gate.take_ahead("a", 1000, 0) == 0


def test_tokens_ahead_are_those_that_the_bucket_holds():
    gate = Gate(Rate.of(1000))
    gate.filter.start(Rule("a", 100, "a"), 0)
    assert gate.try_pass("a", 1, 0)
    assert gate.take_ahead("a", 6, 0) == 6
    assert gate.take_ahead("a", 6, 0) == 3, "the bucket held ten"
    assert gate.take_ahead("a", 6, 100 * MILLISECOND_NS) == 6, "it was filled again, at its rate"


def test_tokens_ahead_are_no_demand_until_requests_come_for_them():
    gate = Gate(Rate.of(1000))
    assert gate.try_pass("a", 2, 0)
    assert gate.take_ahead("a", 5, 0) == 5
    assert gate.filter.collect()["a"] == 2
    gate.filter.observe("a", 4, 0)
    assert gate.filter.collect()["a"] == 4
    assert gate.filter.collect() == {}


def test_refusals_told_of_are_demand_but_asking_in_a_loop_is_not_more_of_it():
    gate = Gate(Rate.of(1000))
    gate.filter.observe("a", 4, 1000)
    assert gate.filter.collect()["a"] == 4 + 4 + 1


@pytest.mark.parametrize("rate", [None, 100])
def test_what_is_given_back_is_as_if_it_had_not_been_charged(rate):
    gate, other = Gate(Rate.of(1000)), Gate(Rate.of(1000))
    for each in (gate, other):
        if rate is not None:
            each.filter.start(Rule("a", rate, "a"), 0)
        assert each.try_pass("a", 2, 0)
    assert gate.take_ahead("a", 5, 0) == 5
    gate.give_back("a", 5, 0)
    for now in (0, 30 * MILLISECOND_NS):
        assert gate.idle_tokens(now) == other.idle_tokens(now)
        assert gate.full_at(now) == other.full_at(now)
        assert gate.take_ahead("a", 100, now) == other.take_ahead("a", 100, now)


def test_what_is_given_back_goes_to_those_who_wait():
    gate = Gate(Rate.of(1000))
    gate.filter.start(Rule("a", 1000, "a"), 0)
    assert gate.try_pass("a", 60, 0)
    gate.filter.submit("a", 10, "waits", 0)
    assert gate.wake_at() == 50 * MILLISECOND_NS
    assert gate.pass_due(0) == []
    gate.give_back("a", 60, 0)
    assert [request.item for request in gate.pass_due(0)] == ["waits"]


def test_a_new_capacity_is_the_size_of_buckets_too():
    gate = Gate(Rate.of(1000))
    gate.set_capacity(Rate.of(10_000))
    gate.filter.start(Rule("a", 10_000, "a"), 0)
    assert gate.try_pass("a", 1, 0)
    assert gate.take_ahead("a", 1000, 0) == 99
