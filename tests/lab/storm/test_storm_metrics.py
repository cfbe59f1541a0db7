"""Metrics: counters that only grow, and add up with what clients were told."""

from __future__ import annotations

from storm_tale import Tale, places

from bursar_lab.storm.prober_process import sum_counters

POLICY = """
[resource.api]
kind = "rate"
servers = { a = "1k/s" }
[resource.api.tenant]
acme = { limit = "100/s" }
"""
TEXT = """# HELP bursar_tenant_granted_total tokens granted
bursar_tenant_granted_total{resource="api",kind="rate",tenant="acme"} 34
bursar_tenant_granted_total{resource="api",kind="rate",tenant="*"} 6
bursar_tenant_granted_total{resource="disk",kind="share",tenant="acme"} 1e+03
bursar_rate_tenant_charged_total{resource="api",kind="rate",tenant="acme"} 99
bursar_waiting{resource="api",kind="rate"} 3
"""


def scrape(tale: Tale, at: float, granted: float, node: str = "a") -> int:
    counters = {"bursar_tenant_granted_total api": granted, "bursar_tenant_granted_total api acme": granted}
    figures = {"counters": counters}
    return tale.write("prober", "scrape", at, at + 0.01, node=node, ok=True, figures=figures)


def acquire(tale: Tale, at: float, amount: int) -> int:
    return tale.ask(at, "api", "acme", amount, told={"period": int(at) + 1})


def test_sums_are_over_tenants_and_by_resource() -> None:
    assert sum_counters(TEXT) == {
        "bursar_tenant_granted_total api": 40,
        "bursar_tenant_granted_total api acme": 34,
        "bursar_tenant_granted_total api *": 6,
        "bursar_tenant_granted_total disk": 1000,
        "bursar_tenant_granted_total disk acme": 1000,
    }


def test_a_counter_that_falls_is_wrong() -> None:
    tale = Tale(POLICY)
    scrape(tale, 1, 10)
    scrape(tale, 3, 9)
    (breach,) = tale.check("metrics")
    assert "fell from 10 to 9" in breach.sentence
    assert places(breach) == ["prober:1", "prober:2"]


def test_a_node_that_was_killed_begins_anew() -> None:
    tale = Tale(POLICY)
    scrape(tale, 1, 10)
    tale.fault(2, "kill", "a", until=3)
    scrape(tale, 4, 0)
    assert tale.check("metrics") == []


def test_told_tokens_that_nobody_counted_are_wrong() -> None:
    tale = Tale(POLICY)
    scrape(tale, 10, 100)
    acquire(tale, 12, 5)
    scrape(tale, 20, 101)
    (breach,) = tale.check("metrics")
    assert "told 5 tokens" in breach.sentence and "counted 1" in breach.sentence


def test_counted_tokens_that_nobody_asked_for_are_wrong() -> None:
    tale = Tale(POLICY)
    scrape(tale, 10, 100)
    acquire(tale, 12, 5)
    scrape(tale, 20, 106)
    (breach,) = tale.check("metrics")
    assert "counted 6" in breach.sentence and "asked for 5 at most" in breach.sentence


def test_what_adds_up_is_right_and_what_is_near_the_edges_is_not_judged() -> None:
    tale = Tale(POLICY)
    acquire(tale, 7, 5)
    scrape(tale, 10, 100)
    acquire(tale, 12, 5)
    acquire(tale, 18.5, 5)
    scrape(tale, 20, 105)
    assert tale.check("metrics") == []


def test_a_cancelled_request_may_have_been_counted() -> None:
    tale = Tale(POLICY)
    scrape(tale, 10, 100)
    tale.ask(12, "api", "acme", 5, is_="cancelled", wait_ms=1000)
    scrape(tale, 20, 105)
    assert tale.check("metrics") == []
