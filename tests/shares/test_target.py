"""The loop: what it does when the world is not as expected."""

from __future__ import annotations

import asyncio

import pytest

from bursar.errors import FormatError
from bursar.runtime.world import open_world
from bursar.shares.book import TargetBook
from bursar.shares.capacity import CapacityProbe
from bursar.shares.handout import TenantTerms
from bursar.shares.target import Seen, Target
from bursar.units import Rate
from bursar.world import MILLISECOND_NS

INTERVAL_NS = 20 * MILLISECOND_NS


class Script:
    """An enforcer that says what the test tells it to."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.applied = []
        self.released = 0

    async def collect(self):
        answer = self.answers.pop(0) if self.answers else Seen(demand={"a": 5})
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def apply(self, handout):
        self.applied.append(handout)

    async def release(self):
        self.released += 1


@pytest.fixture
async def world(tmp_path):
    world = await open_world("target", state=tmp_path / "state")
    yield world
    await world.close()


def make_target(world, enforcer, **options):
    tenants = {"a": TenantTerms(), "b": TenantTerms(weight=3)}
    book = TargetBook(tenants, Rate.of(1000), INTERVAL_NS)
    return Target(world, "ost0", book, enforcer, **options)


async def test_a_failed_collection_costs_an_interval_and_no_token(world):
    enforcer = Script(
        Seen(demand={"a": 1, "b": 500}),
        FormatError("job_stats line 3 is no number"),
        Seen(demand={"a": 1, "b": 500}, problems=("group x vanished",)),
    )
    target = make_target(world, enforcer)
    first = await target.step()
    records = target.book.records()
    assert await target.step() is None
    assert target.book.records() == records
    third = await target.step()
    assert first.tokens == third.tokens == 20
    assert (target.progress.intervals, target.progress.skipped) == (2, 1)
    assert list(target.progress.problems) == ["job_stats line 3 is no number", "group x vanished"]


async def test_the_loop_hands_out_every_interval_and_removes_its_rules_when_stopped(world):
    enforcer = Script()
    target = make_target(world, enforcer)
    target.start()
    while len(enforcer.applied) < 3:
        await asyncio.sleep(0.005)
    await target.stop()
    count = len(enforcer.applied)
    assert enforcer.released == 1
    assert [handout.number for handout in enforcer.applied] == list(range(1, count + 1))
    await asyncio.sleep(0.06)
    assert len(enforcer.applied) <= count + 1


async def test_a_restart_knows_who_owes_whom(tmp_path):
    records = []
    for life in range(2):
        world = await open_world("target", state=tmp_path / "state")
        target = make_target(
            world, Script(*[Seen(demand={"a": 900, "b": 1})] * 4), journal=world.journal("s")
        )
        target.start()
        records.append(target.book.records())
        if life == 0:
            for _ in range(3):
                await target.step()
            await target.stop()
            records.append(target.book.records())
        await world.close()
    assert records[2] == records[1] != records[0]


def test_an_unknown_capacity_is_found_by_asking_for_more():
    probe = CapacityProbe(100)
    for _ in range(200):
        wanted, can = probe.rate, 5000
        probe.add(min(wanted, can) // 10, 100 * MILLISECOND_NS, backlogged=True)
    assert 4700 <= probe.rate <= 5600
    for _ in range(200):
        probe.add(min(probe.rate, 2000) // 10, 100 * MILLISECOND_NS, backlogged=True)
    assert 1900 <= probe.rate <= 2300
    probe.add(1, 100 * MILLISECOND_NS, backlogged=False)
    assert probe.rate >= 1900, "an idle target is not a slow one"
