"""What becomes of tasks while the store is away, and after it."""

from __future__ import annotations

import pytest
from tests.claims.stage import Stage, play

from bursar.errors import Unknown

TWO = ("n1", "n2")
LONG_S = 150
"""Longer than any number of tries lasts."""


def test_an_end_is_recorded_however_long_the_store_was_away() -> None:
    async def act(stage: Stage) -> None:
        verb = stage.resources["n1"].verb
        ids = [await verb("submit", tenant="x", names=f"n{n % 2}:E", payload=b"1") for n in range(4)]
        await stage.sleep(0.5)
        heal = stage.stop_store()
        await stage.sleep(LONG_S)
        heal()
        await stage.until(lambda: not stage.records(), 10)
        assert sorted(stage.begun) == sorted(ids)  # none of them twice: their session outlasted it
        assert [(await verb("read", id=id))["outcome"] for id in ids] == ["ok"] * 4

    play(act, works=True, dead_holder="requeue")


def test_an_end_that_outlasts_its_session_is_recorded_and_the_task_not_tried_again() -> None:
    async def act(stage: Stage) -> None:
        verb = stage.resources["n1"].verb
        id = await verb("submit", tenant="x", names="a:E", payload=b"1")
        await stage.sleep(0.5)
        heal = stage.cut("n1")
        await stage.sleep(60)
        heal()
        await stage.until(lambda: not stage.records(), 10)
        assert (await verb("read", id=id))["outcome"] == "ok" and stage.begun == [id]

    play(act, works=True, dead_holder="requeue")


def test_submitting_is_answered_while_the_store_is_away() -> None:
    async def act(stage: Stage) -> None:
        verb = stage.resources["n1"].verb
        heal = stage.stop_store()
        seconds, answer = await stage.timed(verb("submit", tenant="x", names="a:E", key="k"))
        assert isinstance(answer, Unknown) and seconds <= 15 and "same key" in str(answer)
        heal()
        again = await verb("submit", tenant="x", names="a:E", key="k")
        await stage.until(lambda: not stage.records(), 10)
        assert stage.begun == [again]

    play(act, works=True)


def test_no_question_waits_for_a_store_that_is_away() -> None:
    async def act(stage: Stage) -> None:
        verb = stage.resources["n1"].verb
        id = await verb("submit", tenant="x", names="a:E", payload=b"1000")
        stage.stop_store()
        for name, arguments in (
            ("read", {"id": id}),
            ("tasks", {}),
            ("why", {"id": id}),
            ("cancel", {"id": id}),
            ("holders", {"of": "a"}),
            ("force_release", {"of": "a"}),
            ("wait_for", {"id": id, "timeout": 1}),
        ):
            seconds, answer = await stage.timed(verb(name, **arguments))
            assert isinstance(answer, Unknown) and seconds <= 15, (name, seconds, answer)

    play(act, works=True)


@pytest.mark.parametrize(
    ("lost", "forced", "expected"),
    [
        ("reply", True, {("ok", 1, 0), ("deposed", 0, 1)}),
        ("both", True, {("ok", 1, 0), ("deposed", 0, 1)}),
        ("both", False, {("ok", 1, 0)}),
    ],
)
def test_an_end_that_was_not_answered_counts_as_what_the_store_has(
    lost: str, forced: bool, expected: set[tuple[str, int, int]]
) -> None:
    """The store recorded it, or never heard of it, and somebody took the names by force meanwhile."""
    told: set[tuple[str, int, int]] = set()

    async def act(stage: Stage) -> None:
        verb = stage.resources["n1"].verb

        def count(what: str) -> int:
            return sum(getattr(stage.resources[name].decider.statistics(), what) for name in TWO)

        for moment_us in range(-8_000, 0, 200):
            before = count("completed"), count("late")
            id = await verb("submit", tenant="x", names="a:E", payload=b"1")
            await stage.until(lambda: bool(stage.held()))
            worker = stage.records()[0].holder.partition(".")[0]
            await stage.sleep(1 + moment_us / 1e6)
            heal = stage.cut_replies(worker) if lost == "reply" else stage.cut(worker)
            if forced:
                await stage.decider("n2" if worker == "n1" else "n1").tasks.force_release("a")
            await stage.sleep(0.2)
            heal()
            await stage.until(lambda: not stage.records(), 10)
            await stage.sleep(1)
            outcome = (await verb("read", id=id))["outcome"]
            told.add((outcome, count("completed") - before[0], count("late") - before[1]))

    play(act, TWO, works=True)
    assert told == expected
