"""A capacity of "auto" through the front door, in virtual time: the course of `rates-auto`."""

from __future__ import annotations

import pytest
from virtual import open_rate, run

from bursar.world import SECOND_NS, World
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
