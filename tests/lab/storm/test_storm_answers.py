"""Answers: of the kinds that there are, and in time."""

from __future__ import annotations

import pytest
from storm_tale import Tale, ns, places

POLICY = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 1000 }
"""

# -- wrong


@pytest.mark.parametrize("op", ["acquire", "settle", "release", "submit", "acquire_all"])
def test_an_error_is_no_answer(op: str) -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm")
    tale.ask(2, "llm", op=op, is_="error", told={"why": "KeyError: 'x'"})
    (breach,) = tale.check("answers")
    assert places(breach) == ["c1:2"] and "KeyError" in breach.sentence


def test_an_answer_after_wait_and_a_quarter_of_a_second() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", wait_ms=200, took=0.451, is_="unknown")
    (breach,) = tale.check("answers")
    assert places(breach) == ["c1:1"] and "took 451 ms, and may take 450 ms" in breach.sentence


def test_a_late_grant_is_late_too() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", wait_ms=0, took=0.3)
    assert len(tale.check("answers")) == 1


def test_the_machine_stood_for_less_than_it_was_late() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", wait_ms=0, took=2)
    tale.stood(1.5, 2.0)
    assert len(tale.check("answers")) == 1


def test_another_client_was_paused() -> None:
    tale = Tale(POLICY)
    tale.fault(0.5, "pause", "c2", until=3)
    tale.ask(1, "llm", took=0.5, client="c1")
    tale.ask(1, "llm", took=0.001, client="c2")
    assert [places(breach) for breach in tale.check("answers")] == [["c1:1"]]


def test_a_node_that_was_paused_is_no_excuse() -> None:
    tale = Tale(POLICY)
    tale.fault(0.5, "pause", "a", until=9)
    tale.ask(1, "llm", took=5, is_="unknown")
    assert len(tale.check("answers")) == 1


def test_another_process_had_no_processor() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", took=0.4)
    tale.starved(1, 1.4, "a", 0.3)
    tale.starved(1, 1.4, "c2", 0.3)
    tale.starved(1, 1.4, "c1", 0.1)
    assert len(tale.check("answers")) == 1


# -- right, though it looks wrong


@pytest.mark.parametrize("is_", ["grant", "refused", "unknown", "denied", "usage", "cancelled", "done"])
def test_every_answer_that_there_is(is_: str) -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", is_=is_, wait_ms=100, took=0.35)
    assert tale.check("answers") == []


def test_the_machine_stood_still() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", took=2, is_="unknown")
    tale.stood(1.1, 2.9)
    assert tale.check("answers") == []


def test_the_client_itself_was_paused() -> None:
    tale = Tale(POLICY)
    tale.fault(1.1, "pause", "c1", until=4)
    tale.ask(1, "llm", took=3.2)
    assert tale.check("answers") == []


@pytest.mark.parametrize(("via", "breaches"), [("async", 1), ("http", 0)])
def test_a_paused_node_keeps_no_time_over_http(via: str, breaches: int) -> None:
    tale = Tale(POLICY)
    tale.fault(1.1, "pause", "a", until=4)
    tale.ask(1, "llm", took=3.2, via=via)
    assert len(tale.check("answers")) == breaches


@pytest.mark.parametrize(("who", "via"), [("c1", "async"), ("c1", "http"), ("a", "http")])
def test_whoever_keeps_the_time_had_no_processor(who: str, via: str) -> None:
    tale = Tale(POLICY)
    tale.starved(0.95, 1.05, who, 0.06)
    tale.starved(1.05, 1.15, who, 0.06)
    tale.ask(1, "llm", took=0.36, via=via)
    assert tale.check("answers") == []


@pytest.mark.parametrize(
    ("token", "via", "took", "breaches"),
    [("", "http", 2.2, 0), ("", "http", 2.3, 1), ("", "async", 2.2, 1), ("good", "http", 2.2, 1)],
)
def test_a_wrong_token_is_answered_late_over_http(token: str, via: str, took: float, breaches: int) -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", took=took, via=via, is_="denied", token=token)
    assert len(tale.check("answers")) == breaches


def test_a_token_that_was_revoked_is_a_wrong_one() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", took=2.2, via="http", is_="denied", token="brief")
    tale.write("operator", "revoke", 4, 4.1, token="brief", ok=True)
    tale.ask(5, "llm", took=2.2, via="http", is_="denied", token="brief")
    (breach,) = tale.check("answers")
    assert places(breach) == ["c1:1"]


def test_nothing_came_back_over_http() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", took=2, via="http", is_="unknown", told={"lost": True})
    assert tale.check("answers") == []


def test_a_settlement_may_take_longer() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", op="settle", took=3, is_="done")
    assert tale.check("answers") == []


def test_connecting_again_and_again_is_no_operation() -> None:
    tale = Tale(POLICY)
    tale.write("c1", "connect", 1, 6, answer={"is": "error"})
    assert tale.check("answers") == []


# -- over HTTP, where the node keeps the time and the client turns to the next node


def test_another_node_in_the_place_of_one_had_no_processor() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm", took=0.4, via="http", nodes=["b", "a"])
    tale.starved(1, 1.4, "b-2", 0.3)
    assert not tale.check("answers")


def test_over_http_the_time_counts_from_the_node_that_answered() -> None:
    tale = Tale(POLICY)
    http = {"via": "http", "nodes": ["b", "a"], "in_vain": 1, "told": {"node": "a"}}
    tale.ask(1, "llm", took=1.9, put=ns(2.7), **http)
    assert not tale.check("answers")
    tale.ask(5, "llm", took=1.9, put=ns(6.6), **http)
    (breach,) = tale.check("answers")
    assert places(breach) == ["c1:2"] and "took 300 ms, and may take 250 ms" in breach.sentence


def test_over_http_failing_over_takes_two_seconds_a_node_at_most() -> None:
    tale = Tale(POLICY)
    http = {"via": "http", "nodes": ["b", "a"], "in_vain": 1, "told": {"node": "a"}}
    tale.ask(1, "llm", took=2.3, put=ns(3.2), **http)
    (breach,) = tale.check("answers")
    assert "took 2300 ms, and may take 2250 ms" in breach.sentence


@pytest.mark.parametrize(
    ("fault", "targets"),
    [
        ("cut", ["b", "c1"]),
        ("cut", ["c1", "a", "b"]),
        ("one_way", ["b", "a", "c1"]),
        ("loss", ["b"]),
        ("delay", ["c1"]),
    ],
)
def test_over_http_the_network_between_client_and_node_is_no_promise(fault: str, targets: list[str]) -> None:
    tale = Tale(POLICY)
    tale.fault(0.5, fault, *targets, until=1.5)
    tale.ask(1, "llm", took=1.2, client="c1-2", via="http", nodes=["b"], put=ns(1), told={"node": "b"})
    assert not tale.check("answers")
    tale.ask(1, "llm", took=4.3, client="c1-2", via="http", nodes=["b"], put=ns(1), told={"node": "b"})
    (breach,) = tale.check("answers")
    assert "may take 4250 ms" in breach.sentence


@pytest.mark.parametrize(
    ("fault", "targets"), [("cut", ["b", "a"]), ("cut", ["a", "c1"]), ("loss", ["a"]), ("delay", ["c2"])]
)
def test_over_http_a_network_that_was_not_between_them_is_no_excuse(fault: str, targets: list[str]) -> None:
    tale = Tale(POLICY)
    tale.fault(0.5, fault, *targets, until=1.5)
    tale.ask(1, "llm", took=0.4, via="http", nodes=["b", "a"], put=ns(1), told={"node": "b"})
    assert len(tale.check("answers")) == 1


def test_a_client_of_the_library_keeps_its_time_whatever_the_network_does() -> None:
    tale = Tale(POLICY)
    tale.fault(0.5, "cut", "a", "c1", until=1.5)
    tale.ask(1, "llm", took=0.4, is_="unknown")
    assert len(tale.check("answers")) == 1
