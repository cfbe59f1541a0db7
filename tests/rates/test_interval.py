"""Intervals that shorten while demand moves and lengthen while it does not (section VI)."""

from __future__ import annotations

from bursar.rates.interval import LONGEST, SHORTEST, AdaptiveInterval
from bursar.rates.messages import Row
from bursar.world import MILLISECOND_NS, SECOND_NS

FIRST_NS = 200 * MILLISECOND_NS

Rows = dict[str, Row]


def want_all(*tenants: str) -> Rows:
    return {tenant: Row(tenant, 10, 5, 5, 40, True) for tenant in tenants}


def arrive(**rates: int) -> Rows:
    return {tenant: Row(tenant, 10, 5, 0, rate, False) for tenant, rate in rates.items()}


def look(interval: AdaptiveInterval, **servers: Rows) -> int:
    return interval.look((server, rows, SECOND_NS) for server, rows in servers.items())


def test_steady_demand_lengthens_the_interval_up_to_its_bound() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    seen = [look(interval, s1=want_all("a", "b"), s2=arrive(c=100)) for _ in range(10)]
    assert seen[0] == FIRST_NS, "nothing to compare with yet"
    assert seen == sorted(seen)
    assert seen[-1] == FIRST_NS * LONGEST


def test_demand_that_keeps_moving_shortens_it_down_to_its_bound() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    places = (want_all("a"), {})
    seen = [look(interval, s1=places[k % 2], s2=places[(k + 1) % 2]) for k in range(10)]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == FIRST_NS * SHORTEST


def test_service_that_moves_is_no_demand_that_moves() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    for k in range(10):
        rows = {tenant: Row(tenant, 10 + k, 3 * k, 5 - k % 3, 7 * k % 50, True) for tenant in ("a", "b")}
        look(interval, s1=rows)
    assert interval.now_ns == FIRST_NS * LONGEST


def test_arrivals_count_when_they_change_by_half() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    look(interval, s1=arrive(a=100))
    longer = look(interval, s1=arrive(a=120))
    assert longer > FIRST_NS
    assert look(interval, s1=arrive(a=300)) == longer // 2
    assert look(interval, s1=arrive(a=20)) == FIRST_NS * SHORTEST


def test_a_few_of_many_neither_shorten_nor_lengthen() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    many = [f"t{k}" for k in range(100)]
    look(interval, s1=want_all(*many))
    assert look(interval, s1=want_all(*many[1:])) == FIRST_NS
