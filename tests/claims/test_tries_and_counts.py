"""Tasks that are tried again and cancelled, where they have counts, ask for more, or have subtasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.claims.stage import Stage, play
from tests.claims.test_parts import Family

from bursar.claims.durations import Running, Waiting, forecast
from bursar.claims.limits import Lost
from bursar.claims.model import State, Task
from bursar.claims.queue import conflict_order
from bursar.claims.requirements import parse
from bursar.errors import Refused, UsageError
from bursar.policy.values import Table
from bursar.world import SECOND_NS

GPUS = Table({"gpu": 2})


async def begin(stage: Stage, names: str, payload: str, **options: Any) -> Task:
    """A task, once it runs."""
    id = await stage.resources["n1"].verb(
        "submit", tenant="t", names=names, payload=payload.encode(), **options
    )
    await until_it_runs(stage, id, 1)
    return find(stage, id)


async def until_it_runs(stage: Stage, id: str, attempt: int) -> None:
    """And its instance has heard of that."""
    mine = stage.decider("n1").instance.mine
    await stage.until(
        lambda: id in mine and mine[id].task.state is State.RUNNING and mine[id].task.attempt == attempt
    )


def find(stage: Stage, id: str) -> Task:
    return next(task for task in stage.records() if task.id == id)


async def until_it_waits(stage: Stage, id: str) -> None:
    await stage.until(lambda: find(stage, id).state is State.PENDING)


def test_a_task_that_failed_has_given_back_what_it_grew_and_what_it_counted() -> None:
    async def act(stage: Stage) -> None:
        things, instance = stage.resources["n1"], stage.decider("n1").instance
        task = await begin(stage, "a:E, gpu:1", "2!", retries=1, backoff=5)
        await instance.more(task.id, 1, ("b:E", "gpu:1"), SECOND_NS)
        assert find(stage, task.id).counts == (("gpu", 2),)
        await until_it_waits(stage, task.id)
        waits = find(stage, task.id)
        assert (waits.needs, waits.counts, waits.grown, waits.grown_counts) == (
            task.needs,
            task.counts,
            (),
            (),
        )
        async with things.claim(("a:E", "b:E", "gpu:2"), "other"):
            pass
        await until_it_runs(stage, task.id, 2)
        await instance.more(task.id, 2, ("b:E", "gpu:1"), SECOND_NS)
        await stage.until(lambda: not stage.records())
        (dead,) = await things.verb("dead")
        assert dead["outcome"] == "dead" and dead["needs"] == ["a:E", "b:E", "gpu:2"]
        async with things.claim(("a:E", "b:E", "gpu:2"), "other"):
            await things.verb("retry", id=task.id)
        await until_it_runs(stage, task.id, 3)
        assert (find(stage, task.id).needs, find(stage, task.id).counts) == (task.needs, task.counts)

    play(act, works=True, counted=GPUS)


def test_who_asks_under_an_attempt_that_ended_is_told_and_the_next_one_is_begun() -> None:
    async def act(stage: Stage) -> None:
        things, instance = stage.resources["n1"], stage.decider("n1").instance
        task = await begin(stage, "a:E, gpu:2", "1!", retries=1, backoff=0.5)
        async with things.claim(("b:E",), "other"):
            asking = asyncio.ensure_future(instance.more(task.id, 1, ("b:E",), 20 * SECOND_NS))
            took, answer = await stage.timed(asking)
            assert isinstance(answer, Refused) and took < 3
        async with things.claim(("gpu:1",), "other"):
            await stage.sleep(2)  # its time has come, and what it counts is not there
        await until_it_runs(stage, task.id, 2)

    play(act, works=True, counted=GPUS)


def test_a_task_that_is_cancelled_while_it_waits_for_more_leaves_nothing() -> None:
    async def act(stage: Stage) -> None:
        things, instance = stage.resources["n1"], stage.decider("n1").instance
        task = await begin(stage, "a:E, gpu:1", "60", retries=3)
        async with things.claim(("b:E",), "other"):
            asking = asyncio.ensure_future(stage.timed(instance.more(task.id, 1, ("b:E",), 30 * SECOND_NS)))
            await stage.until(lambda: bool(find(stage, task.id).asks))
            said = await things.verb("why", id=task.id)
            assert "it waits for more: b:E" in said
            assert await things.verb("cancel", id=task.id, wait=5.0) == "cancelled"
            assert isinstance((await asking)[1], Refused)
        async with things.claim(("a:E", "b:E", "gpu:2"), "other"):
            pass
        (over,) = await things.verb("history", of="gpu")
        assert (over["outcome"], over["needs"]) == ("cancelled", ["a:E", "gpu:1"])

    play(act, works=True, counted=GPUS)


@pytest.mark.parametrize("mode", ["E", "S"])
def test_a_parent_that_failed_is_tried_again_after_its_subtasks(mode: str) -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        task = await begin(stage, f"a:{mode}", "1!", retries=1)
        family.id = task.id
        part = await family.part("a:S", 3)
        await stage.sleep(2)
        assert find(stage, task.id).attempt == 1 and family.state(part) == "running"
        await until_it_runs(stage, task.id, 2)
        assert family.state(part) == "over"

    play(act, works=True)


@pytest.mark.parametrize("mode", ["E", "S"])
def test_a_subtask_that_begins_meanwhile_is_noticed_by_the_end_of_the_attempt(mode: str) -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        await family.begin(f"a:{mode}")
        book = family.instance.book
        mine = book.mine[family.id]
        assert mine.version is not None
        plan = book.plans.try_again(mine.task, mine.version, "", 0)
        part = await family.part("a:S", 5)
        await stage.until(lambda: family.state(part) == "running")
        with pytest.raises(Lost):
            await family.instance.world.store.transact(book.plans.join([plan]))

    play(act, works=True)


def test_whoever_cancels_a_task_cancels_its_subtasks() -> None:
    async def act(stage: Stage) -> None:
        family = Family(stage)
        await family.begin("a:E", 60)
        parts = [await family.part("a:E", 60), await family.part("a:E", 60)]
        await stage.until(lambda: any(family.state(part) == "running" for part in parts))
        assert await family.things.verb("cancel", id=family.id, wait=5.0) == "cancelled"
        await stage.until(lambda: not stage.records(), 5)
        for part in parts:
            found = await family.things.verb("read", id=part)
            assert found["outcome"] in ("cancelled", "failed") and found["attempt"] <= 1

    play(act, works=True)


def test_why_and_history_show_what_is_counted_and_a_key_covers_it() -> None:
    async def act(stage: Stage) -> None:
        things = stage.resources["n1"]
        task = await begin(stage, "gpu:2", "3", key="k")
        waiting = await things.verb("submit", tenant="t", names="gpu:1", payload=b"0")
        said = await things.verb("why", id=waiting)
        assert f"gpu:1 waits: of 2, 2 are with {task.id} (2)" in said
        with pytest.raises(UsageError, match="other work"):
            await things.verb("submit", tenant="t", names="gpu:1", payload=b"3", key="k")
        await stage.until(lambda: not stage.records())
        assert [over["needs"] for over in await things.verb("history")] == [["gpu:1"], ["gpu:2"]]

    play(act, works=True, counted=GPUS)


def test_a_forecast_knows_that_a_task_in_its_pause_comes_later() -> None:
    def wait(id: str, created: int, after_s: float = 0.0) -> Waiting:
        return Waiting(id, parse("a:E"), (), "t", 0, created, 10.0, after_s)

    def when(wanted: str, *waiting: Waiting) -> float | None:
        running = [Running("r", parse("a:E"), (), 5.0)]
        return forecast(waiting, running, conflict_order, {}, lambda tenant: 1, wanted)

    assert when("next", wait("paused", 1, 60.0), wait("next", 2)) == 5.0
    assert when("next", wait("paused", 1), wait("next", 2)) == 15.0
    assert when("paused", wait("paused", 1, 60.0), wait("next", 2)) == 60.0
