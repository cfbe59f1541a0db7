"""Coroutines started at once behave as tasks do."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from bursar.runtime import eager


async def start(coroutine: object) -> asyncio.Task[object] | None:
    """Start from a callback of the loop, as the network does."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[asyncio.Task[object] | None] = loop.create_future()
    loop.call_soon(lambda: started.set_result(eager.start(loop, coroutine)))  # type: ignore[arg-type]
    return await started


async def test_what_does_not_wait_ends_at_once_without_a_task() -> None:
    seen: list[int] = []

    async def work() -> None:
        seen.append(1)

    assert await start(work()) is None
    assert seen == [1]


async def test_what_waits_goes_on_as_a_task_with_results_and_errors() -> None:
    async def double(value: int) -> int:
        await asyncio.sleep(0)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            value *= 2
        await asyncio.sleep(0.001)
        return value

    task = await start(double(4))
    assert task is not None
    assert await task == 8

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("late")

    task = await start(fail())
    assert task is not None
    with pytest.raises(KeyError):
        await task


async def test_a_timeout_entered_in_the_first_step_ends_the_wait() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "in time"
        return "never"

    task = await start(work())
    assert task is not None
    assert await task == "in time"


async def test_cancelling_reaches_the_coroutine() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = await start(work())
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_context_variables_stay_inside() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def work() -> int:
        variable.set(5)
        await asyncio.sleep(0)
        return variable.get()

    task = await start(work())
    assert task is not None
    assert await task == 5
    assert variable.get() == 0


async def test_what_is_cancelled_before_its_task_ran_leaves_nothing_behind() -> None:
    held: list[str] = []

    async def work() -> None:
        held.append("place")
        try:
            await asyncio.Event().wait()
        finally:
            held.remove("place")

    loop = asyncio.get_running_loop()
    started: asyncio.Future[asyncio.Task[object] | None] = loop.create_future()

    def begin_and_cancel() -> None:
        task = eager.start(loop, work())
        assert task is not None
        task.cancel()  # before the loop gave it a turn
        started.set_result(task)

    loop.call_soon(begin_and_cancel)
    task = await started
    assert task is not None
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert held == []
