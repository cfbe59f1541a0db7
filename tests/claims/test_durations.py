"""What is learned of how long tasks take: the estimate, the order, and when one should start."""

from __future__ import annotations

import random

import pytest
from tests.claims.stage import Stage, play

from bursar.claims.durations import Durations, Running, Waiting, forecast, seconds_left
from bursar.claims.queue import Queue, conflict_order, learned_order
from bursar.claims.requirements import parse
from bursar.policy import parse as read_policy


def learn(*seconds: float, function: str = "f", tenant: str = "t") -> Durations:
    durations = Durations()
    for each in seconds:
        durations.note(function, tenant, each)
    return durations


def test_an_estimate_follows_what_is_seen() -> None:
    assert learn().expect("f", "t") is None
    assert learn(2.0).expect("f", "t") == pytest.approx(2.0)
    assert learn(*[10.0] * 5, *[2.0] * 60).expect("f", "t") == pytest.approx(2.0, rel=0.05)


def test_one_that_hung_spoils_nothing() -> None:
    draw = random.Random(1)
    usual = [draw.lognormvariate(0, 0.2) for _ in range(200)]
    found = learn(*usual, 36_000.0).expect("f", "t")
    assert found == pytest.approx(1.0, rel=0.15)


def test_tenants_differ_and_a_new_one_is_taken_for_any() -> None:
    durations = learn(*[1.0] * 20, tenant="small")
    for _ in range(20):
        durations.note("f", "large", 9.0)
    assert durations.expect("f", "small") == pytest.approx(1.0, rel=0.1)
    assert durations.expect("f", "large") == pytest.approx(9.0, rel=0.1)
    assert 1 < (durations.expect("f", "new") or 0) < 9.1
    assert durations.expect("", "large") is None


def test_of_two_instances_the_one_that_saw_more_is_believed() -> None:
    little, much = learn(5.0), learn(*[1.0] * 10)
    little.merge(much.encode())
    much.merge(learn(5.0).encode())
    assert little.expect("f", "t") == much.expect("f", "t") == pytest.approx(1.0)
    much.merge(b"something else")
    assert much.expect("f", "t") == pytest.approx(1.0)


def test_what_the_most_work_waits_for_goes_first() -> None:
    for order, first in ((learned_order, "long"), (conflict_order, "wide")):
        queue = Queue(order)
        queue.enter("wide", parse("a:E, b:E"), submitted=1, seconds=1)
        queue.enter("long", parse("b:E, c:E"), submitted=2, seconds=1)
        queue.enter("x", parse("a:E"), submitted=3, seconds=1)
        queue.enter("y", parse("a:E"), submitted=4, seconds=1)
        queue.enter("z", parse("c:E"), submitted=5, seconds=60)
        assert min(("wide", "long"), key=lambda id: order(queue, queue.entries[id])) == first


def wait(id: str, names: str, seconds: float = 2.0, created: int = 0, counts: int = 0) -> Waiting:
    needs = parse(names)
    return Waiting(id, needs, (("gpu", counts),) if counts else (), "t", 0, created, seconds)


def start_of(wanted: str, waiting: list[Waiting], running: list[Running]) -> float | None:
    return forecast(waiting, running, conflict_order, {"gpu": 2}, lambda tenant: 1, wanted)


def test_a_forecast_plays_the_queue_through() -> None:
    running = [Running("r", parse("a:E"), (), 3.0)]
    line = [wait(f"w{number}", "a:E", created=number) for number in range(3)]
    assert [start_of(f"w{number}", line, running) for number in range(3)] == [3, 5, 7]
    assert start_of("free", [*line, wait("free", "b:E")], running) == 0
    pairs = [wait("two", "b:E", counts=2), wait("one", "c:E", counts=1, created=1)]
    assert start_of("one", pairs, [Running("r", parse("d:E"), (("gpu", 1),), 4.0)]) == 0
    assert start_of("two", pairs, [Running("r", parse("d:E"), (("gpu", 1),), 4.0)]) == 4
    assert start_of("never", [wait("never", "b:E", counts=3)], []) is None
    assert seconds_left(10, begun=0, wall_ns=4 * 10**9) == 6
    assert seconds_left(10, begun=0, wall_ns=40 * 10**9) == 5


def test_who_asks_why_is_told_when() -> None:
    async def act(stage: Stage) -> None:
        one, other = stage.resources["n1"], stage.resources["n2"]

        async def submit(number: int) -> str:
            id: str = await one.verb("submit", tenant="t", names="a:E", payload=b"2", function="resize")
            return id

        first = [await submit(number) for number in range(3)]
        assert not any("should start" in line for line in await one.verb("why", id=first[2]))
        await stage.until(lambda: not stage.records(), 10)
        await stage.sleep(6)
        second = [await submit(number) for number in range(3)]
        await stage.sleep(0.1)
        assert "it should start in about 4 s" in (await one.verb("why", id=second[2]))[-1]
        assert "it should start in about" in (await other.verb("why", id=second[2]))[-1], "by its own clock"

    play(act, ("n1", "n2"), works=True)


def test_the_policy_chooses_the_order() -> None:
    text = '[resource.x]\nkind = "claim"\norder = "learned"\n'
    assert read_policy(text).resource("x").order == "learned"  # type: ignore[union-attr]

    async def act(stage: Stage) -> None:
        queue = stage.decider("n1").instance.queue
        assert queue._order is learned_order

    play(act, order="learned")
