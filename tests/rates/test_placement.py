"""Where tokens should be, from what servers reported (section III-D)."""

from __future__ import annotations

import numpy as np

from bursar.rates.columns import Seen
from bursar.rates.messages import UNBOUNDED, Report
from bursar.rates.placement import KEPT_FREE, LATE_S, Placement
from bursar.rates.roll import Roll
from bursar.rates.terms import Terms
from bursar.rates.views import ServerView, Targets, draw_picture
from bursar.world import SECOND_NS

RATE = 500.0
TENANTS = ("a", "b", "t1", "t2", "t3", "t4")


def see(server: str, *tenants: str, dispatched: int = 0) -> ServerView:
    """A server at which these tenants keep requests waiting."""
    rows = [(TENANTS.index(tenant), 0, dispatched, 5, 50, True, 0, 0) for tenant in tenants]
    report = Report(server, 1, 0, 0, 0, 1, 0, 1, SECOND_NS, SECOND_NS // 5, 0.0, None)
    return ServerView(server, 1, 0, 0, report, make_seen(*rows), seen_ns=SECOND_NS // 5)


def make_seen(*rows: tuple[int, ...]) -> Seen:
    """Of tenants by their numbers."""
    return Seen(*np.array(rows, np.int64).reshape(-1, 8).T)


def place(
    terms: dict[str, Terms],
    *servers: ServerView,
    rate: float | None = RATE,
    interval_ns: int = SECOND_NS // 5,
) -> tuple[Targets, Placement]:
    placement = Placement({view.name: rate for view in servers})
    roll = Roll(1, terms)
    roll.number_all(TENANTS)
    picture = draw_picture(0, SECOND_NS, SECOND_NS, interval_ns, servers, roll, 1)
    return placement(picture).finish(), placement


def reserved(targets: Targets, server: str) -> int:
    return sum(priority for _, priority, _ in targets[server].values())


def test_reservations_leave_a_full_server_some_time_where_others_can_take_them() -> None:
    """Experiment 3's first server: one tenant has no other, three have."""
    terms = {f"t{k}": Terms(300, None) for k in range(1, 5)}
    servers = [see(f"s{k}", *(f"t{j}" for j in range(k, 5))) for k in range(1, 5)]
    targets, placement = place(terms, *servers)
    assert targets["s1"]["t1"] == (UNBOUNDED, 300, 0)
    assert reserved(targets, "s1") <= (1 - KEPT_FREE[0]) * RATE
    assert sum(reserved(targets, view.name) for view in servers) == 1_200
    assert placement.shortfall == {}


def test_a_server_reserved_whole_is_used_whole() -> None:
    targets, placement = place({"a": Terms(300, None), "b": Terms(200, None)}, see("s1", "a", "b"))
    assert reserved(targets, "s1") == 500
    assert placement.shortfall == {}


def test_what_fits_nowhere_is_named() -> None:
    targets, placement = place({"a": Terms(400, None), "b": Terms(200, None)}, see("s1", "a", "b"))
    assert sum(placement.shortfall.values()) == 100
    assert reserved(targets, "s1") == 600, "tokens that may not be used cost nothing"


def test_allowances_of_a_tenant_sum_to_its_limit() -> None:
    targets, _ = place(
        {"a": Terms(100, 330)}, see("s1", "a", dispatched=20), see("s2", "a", dispatched=7), see("s3")
    )
    assert sum(rows["a"][0] for rows in targets.values()) == 330
    assert all(rows["a"][1] <= rows["a"][0] for rows in targets.values())


def test_what_a_server_cannot_serve_any_more_stays_in_hand() -> None:
    """So that it is there at once for a server that the tenant turns to."""
    terms = {"a": Terms(100, 400), "b": Terms(200, 400)}
    targets, _ = place(terms, see("s1", "a", "b"))
    allowed = {tenant: allowance for tenant, (allowance, _, _) in targets["s1"].items()}
    assert RATE <= sum(allowed.values()) <= (1 + LATE_S) * RATE + 2
    assert allowed["a"] >= 100
    assert allowed["b"] >= 200
    assert {tenant: priority for tenant, (_, priority, _) in targets["s1"].items()} == {"a": 100, "b": 200}


def test_in_the_last_round_of_a_period_nothing_stays_in_hand() -> None:
    terms = {"a": Terms(100, 400), "b": Terms(200, 400)}
    targets, _ = place(terms, see("s1", "a", "b"), interval_ns=SECOND_NS)
    assert targets["s1"] == {"a": (400, 100, 400), "b": (400, 200, 400)}


def test_where_the_capacity_is_learnt_nothing_stays_in_hand() -> None:
    """A server that is faster than was thought shows it only if it has tokens."""
    terms = {"a": Terms(100, 4_000), "b": Terms(200, 4_000)}
    targets, _ = place(terms, see("s1", "a", "b"), rate=None)
    assert {tenant: allowance for tenant, (allowance, _, _) in targets["s1"].items()} == {
        "a": 4_000,
        "b": 4_000,
    }


def paces(targets: Targets, tenant: str) -> dict[str, int]:
    return {server: rows[tenant][2] for server, rows in targets.items()}


def test_the_pace_of_a_tenant_is_its_limit_shared_out_by_the_tokens_that_are_left() -> None:
    """Not by the allowance, of which most may be used: who turns to another server half-way through
    a period would get half of its tokens there."""
    turned_away = see("s1", "a", dispatched=200)
    turned_away.seen = make_seen((0, 200, 200, 0, 0, False, 0, 0))
    targets, _ = place({"a": Terms(0, 400)}, turned_away, see("s2", "a"))
    assert targets["s2"]["a"] == (200, 0, 400)
    assert paces(targets, "a") == {"s1": 1, "s2": 400}
    even, _ = place({"a": Terms(0, 300)}, see("s1", "a"), see("s2", "a"), see("s3", "a"))
    assert sum(paces(even, "a").values()) == 300


def test_a_tenant_without_a_limit_has_no_pace() -> None:
    targets, _ = place({"a": Terms(0, None)}, see("s1", "a"))
    assert paces(targets, "a") == {"s1": 0}


def test_a_tenant_that_has_used_everything_keeps_a_pace_for_the_next_period() -> None:
    targets, _ = place({"a": Terms(0, 40)}, see("s1", "a", dispatched=20), see("s2", "a", dispatched=20))
    assert paces(targets, "a") == {"s1": 20, "s2": 20}


def see_queue(server: str, front_ns: int, arrived: int = 0) -> ServerView:
    view = see(server, "a")
    view.seen = make_seen((0, 100, 100, 16, arrived, True, 1, front_ns))
    return view


def test_a_queue_that_is_kept_waiting_is_not_taken_for_one_that_was_left_behind() -> None:
    """Callers that send one request after the other send nothing while they wait for tokens: a server that
    had none left was given next to none again, for as long as the others had arrivals."""
    interval_ns = SECOND_NS // 5
    busy = [see_queue(f"s{k}", SECOND_NS // 100, arrived=50) for k in (1, 2, 3)]
    kept_waiting, _ = place({"a": Terms(0, 800)}, see_queue("s0", interval_ns), *busy)
    left_behind, _ = place({"a": Terms(0, 800)}, see_queue("s0", interval_ns // 2), *busy)
    assert kept_waiting["s0"]["a"][0] >= 100 + 15, "practically all that waits"
    assert left_behind["s0"]["a"][0] <= 100 + 8
