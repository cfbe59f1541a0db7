"""Liveness: after the storm, everything is decided again."""

from __future__ import annotations

from typing import Any

import pytest
from storm_tale import Tale, places

POLICY = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 1000 }
[resource.vms]
kind = "claim"
"""


def probe(tale: Tale, at: float, is_: str, node: str = "a", **fields: Any) -> int:
    return tale.ask(at, "llm", op="probe", client="operator", node=node, is_=is_, wait_ms=500, **fields)


def ready(tale: Tale, at: float, says: bool, node: str = "a") -> int:
    return tale.write("operator", "ready", at, at + 0.01, node=node, ready=says)


def submit(tale: Tale, at: float) -> int:
    return tale.ask(at, "vms", op="submit", is_="done", told={"id": "t-1"})


def ask_about(tale: Tale, at: float, task: int, told: object) -> int:
    return tale.write(
        "c1", "wait_for", at, at + 1, task=task, resource="vms", answer={"is": "done", "task": told}
    )


# -- wrong


@pytest.mark.parametrize("is_", ["unknown", "cancelled"])
def test_a_probe_that_is_not_decided_when_all_is_healed(is_: str) -> None:
    tale = Tale(POLICY)
    tale.fault(1, "cut", "a", "b", until=10)
    probe(tale, 41, "refused", node="b")
    number = probe(tale, 41, is_)
    (breach,) = tale.check("liveness")
    assert places(breach) == [f"operator:{number}"] and "llm at a" in breach.sentence


def test_a_request_without_an_answer() -> None:
    tale = Tale(POLICY)
    tale.begin(1, "llm", wait_ms=200)
    tale.ask(9, "llm")
    (breach,) = tale.check("liveness")
    assert places(breach) == ["c1:1"] and "8.0 s after it was asked" in breach.sentence


def test_a_client_that_hung() -> None:
    tale = Tale(POLICY)
    tale.begin(1, "vms", wait_ms=3000, of="claim")
    tale.write("run", "note", 20, what="hung", node="c1")
    (breach,) = tale.check("liveness")
    assert places(breach) == ["c1:1"] and "claim of vms" in breach.sentence


def test_a_client_that_was_killed_long_after_its_answer_was_due() -> None:
    tale = Tale(POLICY)
    tale.begin(1, "llm", wait_ms=200)
    tale.fault(5, "kill", "c1")
    assert len(tale.check("liveness")) == 1


def test_a_task_that_does_not_end() -> None:
    tale = Tale(POLICY)
    tale.fault(2, "kill", "a", until=5)
    number = submit(tale, 1)
    ask_about(tale, 5, number, {"state": "waiting", "outcome": "None"})
    last = ask_about(tale, 70, number, {"state": "running", "outcome": "None"})
    (breach,) = tale.check("liveness")
    assert places(breach) == [f"c1:{number}", f"c1:{last}"]


def test_ready_where_nothing_is_decided() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "engine_pause", "zk-1", until=200)
    said = ready(tale, 60, True)
    number = probe(tale, 60.2, "unknown")
    (breach,) = tale.check("liveness")
    assert places(breach) == [f"operator:{said}", f"operator:{number}"]


def test_a_node_that_ended_by_itself() -> None:
    tale = Tale(POLICY)
    tale.ask(1, "llm")
    tale.write("run", "note", 60, what="exit", node="a", code=1)
    (breach,) = tale.check("liveness")
    assert "a ended by itself" in breach.sentence


def test_a_node_that_cannot_be_reached_when_all_is_healed() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "pause", "a", until=5)
    tale.write("prober", "note", 30, what="not reached", node="a")
    assert tale.check("liveness") == []
    tale.write("prober", "note", 36, what="not reached", node="a")
    assert [places(breach) for breach in tale.check("liveness")] == [["prober:2"]]


def test_spoilt_bytes_that_nobody_named() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "flipped", "a", until=5)
    tale.write("nemesis", "note", 5, what="damage", fault="flipped", node="a", noticed=False)
    (breach,) = tale.check("liveness")
    assert "did not name them" in breach.sentence


# -- right, though it looks wrong


def test_a_probe_soon_after_the_last_heal() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "cut", "a", "b", until=10)
    probe(tale, 30, "unknown")
    assert tale.check("liveness") == []


def test_a_probe_while_a_fault_is_open() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "kill", "b")
    probe(tale, 300, "unknown")
    assert tale.check("liveness") == []


@pytest.mark.parametrize("is_", ["grant", "refused"])
def test_probes_that_are_decided(is_: str) -> None:
    tale = Tale(POLICY)
    tale.fault(1, "kill", "b", until=9)
    probe(tale, 300, is_)
    assert tale.check("liveness") == []


def test_a_client_that_was_killed_while_it_waited() -> None:
    tale = Tale(POLICY)
    tale.begin(1, "llm", wait_ms=1000)
    tale.fault(1.2, "kill", "c1")
    tale.ask(60, "llm", client="c2")
    assert tale.check("liveness") == []


def test_a_client_that_was_paused_while_it_waited() -> None:
    tale = Tale(POLICY)
    tale.begin(1, "llm", wait_ms=100)
    tale.fault(1.05, "pause", "c1", until=20)
    tale.ask(21, "llm")
    assert tale.check("liveness") == []


def test_a_run_that_ended_before_the_answer_was_due() -> None:
    tale = Tale(POLICY)
    tale.begin(1, "llm", wait_ms=3000)
    tale.write("c1", "stopped", 2)
    probe(tale, 60, "grant")
    assert tale.check("liveness") == []


def test_a_begun_operation_and_its_answer_are_one() -> None:
    tale = Tale(POLICY)
    number = tale.begin(1, "llm", wait_ms=100)
    tale.ask(1, "llm", end=1.2, wait_ms=100, n=number)
    tale.ask(50, "llm")
    assert tale.check("liveness") == []
    assert len(tale.history().operations) == 2


def test_a_task_that_ended_or_was_cancelled() -> None:
    tale = Tale(POLICY)
    number = submit(tale, 1)
    ask_about(tale, 70, number, {"state": "ended", "outcome": "done"})
    other = submit(tale, 100)
    tale.write(
        "c1", "cancel", 101, 101.1, task=other, resource="vms", answer={"is": "done", "task": "cancelled"}
    )
    assert tale.check("liveness") == []


def test_a_task_that_is_young() -> None:
    tale = Tale(POLICY)
    number = submit(tale, 1)
    ask_about(tale, 9, number, {"state": "waiting", "outcome": "None"})
    assert tale.check("liveness") == []


@pytest.mark.parametrize(("fault", "began"), [("engine_pause", 55), ("cut", 1)])
def test_ready_may_be_late_and_may_hold_on_one_side_of_a_cut(fault: str, began: float) -> None:
    tale = Tale(POLICY)
    tale.fault(began, fault, "a", until=200)
    ready(tale, 60, True)
    probe(tale, 60.2, "unknown")
    assert tale.check("liveness") == []


def test_a_node_that_says_it_is_not_ready() -> None:
    tale = Tale(POLICY)
    tale.fault(1, "engine_pause", "zk-1", until=200)
    ready(tale, 60, False)
    ready(tale, 60, True, node="b")
    probe(tale, 60.2, "unknown")
    assert tale.check("liveness") == []


def test_a_node_that_ended_in_the_middle_of_a_fault() -> None:
    tale = Tale(POLICY)
    tale.fault(50, "disk_full", "a", until=70)
    tale.write("run", "note", 60, what="exit", node="a", code=1)
    assert tale.check("liveness") == []


def test_a_node_that_was_not_ready_though_nothing_else_ailed_it() -> None:
    tale = Tale(POLICY)
    tale.fault(50, "kill", "a", until=80)
    tale.write("nemesis", "note", 79.9, what="not ready", node="a", why="bursar: no")
    (breach,) = tale.check("liveness")
    assert "a was not ready 20 s after it was started: bursar: no" in breach.sentence


def test_a_node_that_was_not_ready_while_something_else_ailed_it() -> None:
    tale = Tale(POLICY)
    tale.fault(50, "kill", "a", until=80)
    tale.fault(70, "engine_away", "zk-1", until=75)
    tale.write("nemesis", "note", 79.9, what="not ready", node="a", why="bursar: no")
    assert tale.check("liveness") == []
