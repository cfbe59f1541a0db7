"""Reservations: met wherever they were due, and not asked for where they were not."""

from __future__ import annotations

import pytest
from storm_tale import Tale

POLICY = """
[resource.api]
kind = "rate"
servers = { a = "120/s", b = "120/s" }
[resource.api.tenant]
gold = { reservation = "50/s", limit = "70/s" }
free = { limit = "60/s" }
"""
STREAMS = 8


def run(
    tale: Tale, until: int, slow: dict[int, int] | None = None, rate: int = 60, streams: int = STREAMS
) -> None:
    """A client that keeps `streams` requests waiting: `rate` are granted in each second, in `slow`
    ones fewer."""
    asked = [0.0] * streams
    for period in range(until):
        granted = (slow or {}).get(period, rate)
        for number in range(granted):
            end = period + (number + 0.5) / granted
            stream = number % streams
            tale.ask(asked[stream], "api", "gold", end=end, wait_ms=3000, told={"period": period + 1})
            asked[stream] = end + 0.001
    for stream in range(streams):
        tale.ask(asked[stream], "api", "gold", end=until + 1.5, wait_ms=3000, told={"period": until + 1})


# -- wrong


def test_a_calm_period_below_the_reservation() -> None:
    tale = Tale(POLICY)
    run(tale, 30, slow={20: 40})
    (breach,) = tale.check("reservations")
    assert "told 40 tokens of api in period 21" in breach.sentence
    assert breach.places


def test_a_tenant_that_always_gets_too_little() -> None:
    tale = Tale(POLICY)
    run(tale, 25, rate=30)
    assert len(tale.check("reservations")) >= 5


def test_when_a_fault_was_healed_long_ago_it_is_due_again() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "kill", "b", until=3)
    tale.fault(100, "kill", "b", until=103)
    run(tale, 40, slow={30: 40})
    assert len(tale.check("reservations")) == 1


def test_a_reservation_set_beside_the_policy() -> None:
    tale = Tale(POLICY.replace('gold = { reservation = "50/s", limit = "70/s" }\n', ""))
    tale.set_tenant(-50, "api", "gold", {"reservation": "50/s", "limit": "70/s"})
    run(tale, 30, slow={20: 40})
    assert len(tale.check("reservations")) == 1


# -- right, though it looks wrong


def test_the_reservation_and_no_more() -> None:
    tale = Tale(POLICY)
    run(tale, 30, rate=50)
    history = tale.history()
    assert tale.check("reservations") == []
    from bursar_lab.storm.checker import reservations

    reservations.check(history)
    assert history.judged["reservations"] >= 10


@pytest.mark.parametrize("fault", ["kill", "cut", "loss", "engine_pause", "pause"])
def test_a_fault_in_the_last_seconds(fault: str) -> None:
    tale = Tale(POLICY)
    tale.fault(10, fault, "b", until=12)
    run(tale, 30, slow={20: 10})
    assert tale.check("reservations") == []


def test_a_change_in_the_last_seconds() -> None:
    tale = Tale(POLICY)
    tale.set_tenant(14, "api", "other", {"limit": "1/s"})
    run(tale, 30, slow={20: 10})
    assert tale.check("reservations") == []


def test_the_machine_stood_still_in_the_period() -> None:
    tale = Tale(POLICY)
    tale.stood(20.2, 20.7)
    run(tale, 30, slow={20: 10})
    assert tale.check("reservations") == []


def test_a_tenant_that_asks_one_at_a_time_may_be_slow_to_ask() -> None:
    tale = Tale(POLICY)
    run(tale, 30, rate=30, streams=1)
    assert tale.check("reservations") == []


def test_a_tenant_that_asked_for_nothing() -> None:
    tale = Tale(POLICY)
    for period in range(30):
        for number in range(20):
            tale.ask(period + number / 20, "api", "free", told={"period": period + 1})
    assert tale.check("reservations") == []


def test_reservations_that_one_server_could_not_meet_alone() -> None:
    tale = Tale(
        POLICY.replace('free = { limit = "60/s" }', 'free = { reservation = "90/s", limit = "95/s" }')
    )
    run(tale, 30, slow={20: 40})
    assert tale.check("reservations") == []


def test_the_first_seconds_of_a_run() -> None:
    tale = Tale(POLICY)
    run(tale, 12, slow={2: 5})
    assert tale.check("reservations") == []
