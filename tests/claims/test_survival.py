"""Workers outlive their tasks: whatever one of them does, the others go on."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.claims.calls import call
from tests.claims.stage import Stage, play

from bursar.claims.courier import Instance, new_task
from bursar.claims.model import RESULT_MAX_BYTES, Task
from bursar.claims.requirements import parse
from bursar.claims.tracker import Dispatch, InProcessTracker, Progress, Report
from bursar.errors import Refused, UsageError
from bursar.runtime.functions import Functions
from bursar.runtime.work_thread import WorkThread
from bursar.runtime.world import open_world

numbers = itertools.count()


async def run_one(work: Any, seconds: float = 10) -> Task:
    """The task as it is when it is over, and another one that came after it."""
    world = await open_world("w", store=f"memory://survival-{next(numbers)}")
    instance = Instance(world, "things", tracker=InProcessTracker(work))
    await instance.start()
    for id in ("t1", "t2"):
        await instance.submit(new_task(id=id, tenant="t", needs=parse("a:E"), submitted=0, kept=True))
    async with asyncio.timeout(seconds):
        while (last := await instance.reader.read_released("t2")) is None:
            await asyncio.sleep(0.01)
    assert last.outcome == "ok" and not world.failure.done()
    found = await instance.reader.read_released("t1")
    await instance.stop()
    await world.close()
    assert found is not None
    return found


async def test_a_result_that_is_too_large_fails_its_task_and_nothing_else() -> None:
    async def work(dispatch: Dispatch) -> bytes:
        return b"x" * (1_000_000 if dispatch.id == "t1" else RESULT_MAX_BYTES)

    task = await run_one(work)
    assert task.outcome == "failed" and b"1000000 bytes" in task.result and b"elsewhere" in task.result


@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, KeyError])
async def test_whatever_the_work_raises_ends_it(raised: type[BaseException]) -> None:
    async def work(dispatch: Dispatch) -> bytes:
        if dispatch.id == "t1":
            raise raised
        return b""

    task = await run_one(work)
    assert task.outcome == "failed" and raised.__name__.encode() in task.result


async def test_a_tracker_that_fails_is_asked_again() -> None:
    class Failing:
        def __init__(self) -> None:
            self.asked = 0
            self.is_looked_at = False

        async def dispatch(self, dispatch: Dispatch) -> Report | None:
            raise OSError("out of files")

        async def status(self, dispatch: Dispatch) -> Report | Progress:
            self.asked += 1
            if self.asked == 1:
                raise ValueError("what?")
            return Report("ok") if self.is_looked_at else Progress.RUNNING

        async def cancel(self, dispatch: Dispatch, why: str) -> None:
            raise AssertionError("nobody asked for that")

        async def note(self, id: str) -> str:
            self.is_looked_at = True
            raise KeyError(id)

    world = await open_world("w", store=f"memory://survival-{next(numbers)}")
    instance = Instance(world, "things", tracker=Failing())
    await instance.start()
    await instance.submit(new_task(id="t1", tenant="t", needs=parse("a:E"), submitted=0, kept=True))
    async with asyncio.timeout(10):
        while (task := await instance.reader.read_released("t1")) is None:
            await asyncio.sleep(0.01)
    assert (
        task.outcome == "ok" and "tracker failed" in str(instance.member.problem) and not world.failure.done()
    )
    await instance.stop()
    await world.close()


def test_a_task_that_kills_its_process_is_given_up_and_listed_and_can_be_tried_again() -> None:
    async def act(stage: Stage) -> None:
        verb = stage.resources["n2"].verb
        id = await verb("submit", tenant="x", names="a:E", payload=b"1000", key="bad")
        for attempt in range(1, 4):
            await stage.until(lambda n=attempt: [task.attempt for task in stage.records()] == [n], 30)  # type: ignore[misc]
            holder = stage.records()[0].holder.partition(".")[0]
            stage.go_down(holder, 0.5)
            await stage.until(lambda: len(stage.resources) == 2, 30)
        await stage.until(lambda: not stage.records(), 30)
        verb = stage.resources["n1"].verb
        (dead,) = await verb("dead")
        assert (dead["id"], dead["outcome"], dead["attempt"]) == (id, "dead", 3)
        assert (await verb("read", id=id))["outcome"] == "dead"
        assert await verb("submit", tenant="x", names="a:E", payload=b"1000", key="bad") == id
        assert stage.records() == []  # the same key is the same task
        await verb("retry", id=id)
        await stage.until(lambda: [task.attempt for task in stage.records()] == [4], 30)
        assert await verb("dead") == []
        with pytest.raises(Refused, match="not among"):
            await verb("retry", id=id)

    play(act, ("n1", "n2"), works=True, attempts=3)


def test_by_default_tasks_are_tried_again_and_claims_are_kept() -> None:
    async def act(stage: Stage) -> None:
        claim = await stage.resources["n1"].claim(["b:E"], "x")
        id = await stage.resources["n1"].verb("submit", tenant="x", names="a:E", payload=b"3")
        await stage.until(lambda: stage.begun == [id])
        stage.go_down("n1", 100)
        await stage.until(lambda: stage.begun == [id, id] and stage.held() == [claim.id], 30)

    play(act, ("n1", "n2"), works=True)


def test_a_key_that_is_other_works_is_told_and_another_tenants_is_another_task() -> None:
    async def act(stage: Stage) -> None:
        verb = stage.resources["n1"].verb
        id = await verb("submit", tenant="x", names="a:E", key="k")
        assert await verb("submit", tenant="x", names="a:E", key="k") == id
        for other in ({"tenant": "x", "names": "a:E", "payload": b"x"}, {"tenant": "x", "names": "b:E"}):
            with pytest.raises(UsageError, match="key 'k' is in use"):
                await verb("submit", key="k", **other)
        assert await verb("submit", tenant="y", names="a:E", key="k") != id

    play(act, works=True)


class Blocking:
    """Two workers on one store, whose sessions last a second."""

    def __init__(self, block_s: float) -> None:
        self.begun: list[str] = []
        self._block_s = block_s

    async def work(self, dispatch: Dispatch) -> bytes:
        self.begun.append(dispatch.id)
        time.sleep(self._block_s)  # noqa: ASYNC251  as a driver without await does
        return b""


async def test_work_that_blocks_for_three_sessions_is_done_once(tmp_path: Path) -> None:
    blocking, thread = Blocking(3.5), WorkThread()
    url = f"sqlite://{tmp_path}/store.db"
    worlds = [await open_world(name, store=url, session_timeout_ns=10**9) for name in ("w1", "w2")]
    tracker = InProcessTracker(partial(thread.run, blocking.work))
    workers = [Instance(world, "things", dead_holder="requeue", tracker=tracker) for world in worlds]
    for worker in workers:
        await worker.start()
    await workers[0].submit(new_task(id="t1", tenant="t", needs=parse("a:E"), submitted=0, kept=True))
    async with asyncio.timeout(15):
        while (task := await workers[0].reader.read_released("t1")) is None:
            await asyncio.sleep(0.02)
    assert (task.outcome, task.attempt, blocking.begun) == ("ok", 1, ["t1"])
    for worker, world in zip(workers, worlds, strict=True):
        await worker.stop()
        await world.close()
    thread.stop()


@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit, KeyError])
async def test_whatever_work_in_a_thread_raises_reaches_who_waits_and_the_thread_goes_on(
    raised: type[BaseException],
) -> None:
    thread = WorkThread()

    async def fail() -> bytes:
        raise raised

    async def succeed() -> bytes:
        return b"done"

    with pytest.raises(
        (Exception, asyncio.CancelledError), match=raised.__name__ if raised is SystemExit else None
    ):
        await thread.run(fail)
    assert await thread.run(succeed) == b"done"
    thread.stop()


async def test_a_plain_function_is_a_task_too() -> None:
    functions = Functions()

    def double(number: int) -> int:
        return 2 * number

    functions.register(double, "n-{number}:E", None, None)
    given: dict[str, Any] = {}

    async def verb(name: str, **arguments: Any) -> str:
        given.update(arguments)
        return "t1"

    await functions.submit(verb, double, {"number": 21}, tenant="x")
    dispatch = Dispatch(id="t1", key="t1", tenant="x", payload=given["payload"], attempt=1, fences={})
    assert await call(functions, dispatch) == b"42"


HUGE = [f"{'n' * 180}-{number:04d}:S" for number in range(1000)]


def test_what_can_never_be_granted_is_refused_at_once() -> None:
    async def act(stage: Stage) -> None:
        one = stage.resources["n1"]
        with pytest.raises(UsageError, match="claim fewer at once"):
            await one.verb("submit", tenant="x", names=HUGE)
        with pytest.raises(UsageError, match="claim fewer at once"):
            await one.claim(HUGE, "x", wait=10)
        assert stage.records() == []

    play(act)


async def test_a_record_that_can_never_be_granted_fails_and_its_batch_does_not() -> None:
    """One from another version, or in a store that takes less."""
    world = await open_world("w", store=f"memory://survival-{next(numbers)}")

    async def work(dispatch: Dispatch) -> bytes:
        return b""

    instance = Instance(world, "things", tracker=InProcessTracker(work))
    await instance.start()
    needs = {"t1": parse(HUGE), "t2": parse("m2:E"), "t3": parse("m3:E")}
    for id, needed in needs.items():
        await instance.submit(new_task(id=id, tenant="t", needs=needed, submitted=0, kept=True))
    ends: dict[str, Task] = {}
    async with asyncio.timeout(20):
        while len(ends) < 3:
            await asyncio.sleep(0.02)
            ends = {id: end for id in needs if (end := await instance.reader.read_released(id)) is not None}
    assert [ends[id].outcome for id in needs] == ["failed", "ok", "ok"]
    assert b"fewer names" in ends["t1"].result
    await instance.stop()
    await world.close()
