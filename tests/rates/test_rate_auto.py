"""A capacity of "auto" through the front door, in virtual time: the course of `rates-auto`."""

from __future__ import annotations

import random

import pytest
from virtual import open_rate, run

from bursar.world import MILLISECOND_NS, SECOND_NS, World
from bursar_lab.experiments.rates_auto.backend import Backend
from bursar_lab.experiments.rates_auto.course import Course, Found, Time, write_policy

RATE = 200.0


def run_course(capacity: str, workers: int) -> list[Found]:
    found: list[Found] = []

    async def body(world: World) -> None:
        door, rate = await open_rate(world, write_policy(capacity, RATE))

        async def read() -> float:
            return rate.statistics().servers["a"].capacity

        clock = Time(world.clock.now, world.clock.sleep, world.spawn)
        backend = Backend(RATE, workers, clock.now, clock.sleep)
        found.extend(await Course(clock, door, backend, read, int(2.2 * SECOND_NS)).run())

    run(body, seconds=60)
    return found


@pytest.mark.parametrize("workers", [1, 10])
def test_a_capacity_is_learnt_and_reservations_are_met_as_if_it_were_given(workers: int) -> None:
    learnt = run_course("auto", workers)
    told = [(each.change, round(each.error, 3), each.met, round(each.used, 3)) for each in learnt]
    assert all(abs(each.error) <= 0.1 for each in learnt), told
    assert all(each.met is None or each.met >= 0.99 for each in learnt), told
    assert all(each.used >= 0.95 for each in learnt), told


def test_a_server_that_recovers_meets_reservations_though_the_estimate_lags() -> None:
    """Bound by its concurrency; at a moment at which a dip falls into the recovery: what requests take was
    then put at four times the truth, and a reservation met to 73 %."""
    found: list[Found] = []

    async def body(world: World) -> None:
        late = random.Random(3400)
        door, rate = await open_rate(world, write_policy("auto", 500.0))

        async def read() -> float:
            return rate.statistics().servers["a"].capacity

        async def sleep(duration_ns: int) -> None:
            await world.clock.sleep(duration_ns + int(late.random() * 2 * MILLISECOND_NS))

        clock = Time(world.clock.now, sleep, world.spawn)
        backend = Backend(500.0, 20, clock.now, clock.sleep)
        course = Course(clock, door, backend, read, int(3.4 * SECOND_NS))
        for change in (course._start, course._slow_down, course._recover):
            await change()
            found.append(await course._watch(change.__name__))

    run(body, seconds=30)
    assert all(abs(each.error) <= 0.1 for each in found), found
    assert found[-1].met is not None and found[-1].met >= 0.99, found
