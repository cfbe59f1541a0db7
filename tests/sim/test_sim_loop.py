"""The event loop in virtual time."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from bursar.errors import BursarError
from bursar.sim.errors import EndlessError
from bursar.sim.loop import LIFE, Life, VirtualLoop, sleep_until
from bursar.world import SECOND_NS

HOUR_NS = 3600 * SECOND_NS


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop()


def context_of(life: Life) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(LIFE.set, life)
    return context


def test_time_jumps_and_nothing_waits(loop: VirtualLoop) -> None:
    async def work() -> int:
        await asyncio.sleep(3000)
        await sleep_until(loop, loop.now_ns + 1)
        return loop.now_ns

    task = loop.create_task(work())
    loop.run(HOUR_NS)
    assert task.result() == 3000 * SECOND_NS + 1
    assert loop.now_ns == HOUR_NS


def test_a_loop_with_nothing_left_to_run_ends_at_the_time_asked_for(loop: VirtualLoop) -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    task = loop.create_task(wait_for_ever())
    loop.run(5)
    assert loop.now_ns == 5
    assert not task.done()
    loop.close()


def test_equal_times_run_in_the_order_in_which_they_were_set(loop: VirtualLoop) -> None:
    order: list[int] = []
    for number in range(50):
        loop.call_at_ns(100 if number % 2 else 50, order.append, number)
    loop.run(100)
    assert order == [*range(0, 50, 2), *range(1, 50, 2)]


def test_float_timeouts_become_whole_nanoseconds(loop: VirtualLoop) -> None:
    times: list[int] = []

    async def work() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.1)
            times.append(loop.now_ns)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await asyncio.sleep(1)
        times.append(loop.now_ns)

    loop.create_task(work())
    loop.run(HOUR_NS)
    assert times == [100_000_000, 200_000_000, 300_000_000, 1_000_000_000]


def test_gather_runs_in_the_order_given(loop: VirtualLoop) -> None:
    order: list[int] = []

    async def note(number: int) -> int:
        order.append(number)
        await asyncio.sleep(0)
        return number

    async def work() -> list[int]:
        return await asyncio.gather(*(note(number) for number in range(20)))

    task = loop.create_task(work())
    loop.run(1)
    assert task.result() == order == list(range(20))


def test_cancelled_timers_are_not_carried_along(loop: VirtualLoop) -> None:
    for _ in range(10_000):
        loop.call_at_ns(HOUR_NS, print).cancel()
    assert len(loop._timers._heap) < 5_000
    loop.run(2 * HOUR_NS)


def test_an_endless_loop_is_told_from_a_busy_moment(loop: VirtualLoop) -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    loop.create_task(spin())
    with pytest.raises(EndlessError, match="without time passing"):
        loop.run(1)
    loop.close()


def test_the_error_of_a_forgotten_task_ends_the_run(loop: VirtualLoop) -> None:
    async def fail() -> None:
        raise ValueError("nobody looks")

    async def forget() -> None:
        asyncio.get_running_loop().create_task(fail())
        await asyncio.sleep(1)

    loop.create_task(forget())
    with pytest.raises(BursarError, match="nobody looks"):
        loop.run(SECOND_NS)
    loop.close()


def test_a_dead_life_is_never_run_again_and_its_finally_blocks_neither(loop: VirtualLoop) -> None:
    life = Life("a", 1)
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.gather(asyncio.sleep(1), asyncio.wait_for(asyncio.sleep(5), 2))
            done.append("went on")
        finally:
            done.append("finally")

    loop.create_task(work(), context=context_of(life))
    loop.run(SECOND_NS // 2)
    life.kill()
    loop.bury()
    loop.run(HOUR_NS)
    assert done == []
    loop.close()


def test_a_paused_life_goes_on_later_in_the_same_order(loop: VirtualLoop) -> None:
    life = Life("a", 1)
    seen: list[tuple[int, int]] = []
    for number in range(5):
        loop.call_at_ns(
            10 + number, lambda number=number: seen.append((number, loop.now_ns)), context=context_of(life)
        )
    life.pause(100)
    loop.call_at_ns(12, lambda: seen.append((-1, loop.now_ns)))
    loop.run(200)
    assert seen == [(-1, 12), *((number, 100) for number in range(5))]


def test_runs_nest_in_a_running_loop() -> None:
    async def outer() -> VirtualLoop:
        inner = VirtualLoop()
        inner.create_task(asyncio.sleep(100))
        inner.run(HOUR_NS)
        await asyncio.sleep(0)
        return inner

    assert asyncio.run(outer()).now_ns == HOUR_NS
