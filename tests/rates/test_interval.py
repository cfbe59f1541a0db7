"""Intervals that shorten while demand moves and lengthen while it does not (section VI)."""

from __future__ import annotations

import numpy as np

from bursar.rates.columns import Seen
from bursar.rates.interval import LONGEST, SHORTEST, AdaptiveInterval
from bursar.rates.messages import Report
from bursar.rates.views import ServerView
from bursar.world import MILLISECOND_NS, SECOND_NS

FIRST_NS = 200 * MILLISECOND_NS

Rows = list[tuple[int, ...]]
"""Of tenants by their numbers: see `columns.Seen`."""

A, B, C = range(3)


def want_all(*tenants: int) -> Rows:
    return [(tenant, 10, 5, 5, 40, True, 0, 0) for tenant in tenants]


def arrive(rates: dict[int, int]) -> Rows:
    return [(tenant, 10, 5, 0, rate, False, 0, 0) for tenant, rate in rates.items()]


def look(interval: AdaptiveInterval, **servers: Rows) -> int:
    return interval.look(1, [see(name, rows) for name, rows in servers.items()])


def see(server: str, rows: Rows) -> ServerView:
    report = Report(server, 1, 0, 0, 0, 1, 0, 1, SECOND_NS, SECOND_NS, 0.0, None)
    seen = Seen(*np.array(rows, np.int64).reshape(-1, 8).T)
    return ServerView(server, 1, 0, 0, report, seen, seen_ns=SECOND_NS)


def test_steady_demand_lengthens_the_interval_up_to_its_bound() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    seen = [look(interval, s1=want_all(A, B), s2=arrive({C: 100})) for _ in range(10)]
    assert seen[0] == FIRST_NS, "nothing to compare with yet"
    assert seen == sorted(seen)
    assert seen[-1] == FIRST_NS * LONGEST


def test_demand_that_keeps_moving_shortens_it_down_to_its_bound() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    places = (want_all(A), [])
    seen = [look(interval, s1=places[k % 2], s2=places[(k + 1) % 2]) for k in range(10)]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == FIRST_NS * SHORTEST


def test_service_that_moves_is_no_demand_that_moves() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    for k in range(10):
        rows = [(tenant, 10 + k, 3 * k, 5 - k % 3, 7 * k % 50, True, 0, 0) for tenant in (A, B)]
        look(interval, s1=rows)
    assert interval.now_ns == FIRST_NS * LONGEST


def test_arrivals_count_when_they_change_by_half() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    look(interval, s1=arrive({A: 100}))
    longer = look(interval, s1=arrive({A: 120}))
    assert longer > FIRST_NS
    assert look(interval, s1=arrive({A: 300})) == longer // 2
    assert look(interval, s1=arrive({A: 20})) == FIRST_NS * SHORTEST


def test_a_few_of_many_neither_shorten_nor_lengthen() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    many = range(100)
    look(interval, s1=want_all(*many))
    assert look(interval, s1=want_all(*many[1:])) == FIRST_NS


def test_with_another_list_of_tenants_there_is_nothing_to_compare_with() -> None:
    interval = AdaptiveInterval(FIRST_NS)
    look(interval, s1=want_all(A))
    assert interval.look(2, [see("s1", want_all(B))]) == FIRST_NS
