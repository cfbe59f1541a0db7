"""Shares where only finished I/O is seen, on a disk that serves first come, first served."""

from __future__ import annotations

import pytest
from fifo_disk import FifoDisk, Job

from bursar.shares.book import TargetBook
from bursar.shares.capacity import CapacityProbe
from bursar.shares.handout import TenantTerms
from bursar.shares.target import Target
from bursar.units import Rate
from bursar.world import MILLISECOND_NS

INTERVAL_NS = 100 * MILLISECOND_NS
TOLD = 200_000


class Run:
    """A book, a probe and a disk, stepped as `Target` steps them."""

    def __init__(self, weights, disk, told=TOLD):
        self.disk = disk
        self.book = TargetBook(
            {name: TenantTerms(weight=weight) for name, weight in weights.items()},
            Rate.of(told or 1000),
            INTERVAL_NS,
        )
        self.target = Target(_Clocked(self), "disk", self.book, self, probe=CapacityProbe(1000, told))
        self.now = 0

    async def collect(self):
        self.now += INTERVAL_NS
        return self.disk.run(INTERVAL_NS / 1e9)

    async def apply(self, handout):
        self.disk.limits = {name: line.rate for name, line in handout.lines.items()}

    async def seconds(self, seconds):
        """What each tenant got in so many seconds, a second."""
        before = {name: job.done for name, job in self.disk.jobs.items()}
        for _ in range(round(seconds * 10)):
            await self.target.step()
            assert sum(self.book.records().values()) == 0
        return {name: (job.done - before.get(name, 0)) / seconds for name, job in self.disk.jobs.items()}


class _Clocked:
    def __init__(self, run):
        self._run = run
        self.clock = self

    def now(self):
        return self._run.now

    def trace(self, *_args, **_fields):
        pass


@pytest.mark.parametrize("part", [0.05, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (3, 1)])
async def test_a_greedy_tenant_gets_all_that_a_steady_one_leaves(weights, part):
    asks = part * TOLD
    share = TOLD * weights[0] / sum(weights)
    disk = FifoDisk(1_000_000, {"greedy": Job()})
    run = Run({"small": weights[0], "greedy": weights[1]}, disk)
    await run.seconds(3)
    disk.jobs["small"] = Job(asks)
    await run.seconds(2)
    got = await run.seconds(4)
    assert sum(got.values()) >= 0.95 * TOLD
    assert sum(got.values()) <= 1.03 * TOLD
    assert got["small"] >= 0.98 * min(asks, share)
    del disk.jobs["small"]
    await run.seconds(2)
    assert (await run.seconds(2))["greedy"] >= 0.95 * TOLD


async def test_a_lender_that_wants_more_has_its_own_part_at_once_and_is_paid_back():
    disk = FifoDisk(1_000_000, {"small": Job(20_000), "greedy": Job()})
    run = Run({"small": 1, "greedy": 1}, disk)
    await run.seconds(5)
    owed = run.book.record("small")
    assert owed > 0
    disk.jobs["small"].rate = None
    got = await run.seconds(1)
    assert got["small"] >= 0.9 * TOLD / 2
    got = await run.seconds(4)
    assert got["small"] > 1.1 * TOLD / 2
    assert 0 <= run.book.record("small") < owed


async def test_credit_is_what_was_lent_and_used():
    """Neither wants its own part: nothing is lent, whatever tokens were handed out."""
    disk = FifoDisk(1_000_000, {"a": Job(20_000), "b": Job(60_000)})
    run = Run({"a": 1, "b": 1}, disk)
    await run.seconds(20)
    assert abs(run.book.record("a")) <= TOLD / 10, "at most what one interval moves"


async def test_credit_is_no_more_than_the_borrower_had_of_it():
    disk = FifoDisk(1_000_000, {"a": Job(20_000), "b": Job(130_000)})
    run = Run({"a": 1, "b": 1}, disk)
    await run.seconds(20)
    assert run.book.record("a") == pytest.approx(20 * 30_000, rel=0.1)


@pytest.mark.parametrize("told", [None, 2 * TOLD, 20 * TOLD])
@pytest.mark.parametrize(("depths", "within"), [((16, 16), 0.1), ((32, 4), 0.2), ((4, 32), 0.2)])
async def test_weights_hold_where_the_told_capacity_is_too_high(told, depths, within):
    disk = FifoDisk(TOLD, {"a": Job(depth=depths[0]), "b": Job(depth=depths[1])})
    run = Run({"a": 1, "b": 3}, disk, told)
    await run.seconds(15 if told is None else 5)
    got = await run.seconds(10)
    assert got["b"] / got["a"] == pytest.approx(3, rel=within)
    assert sum(got.values()) >= 0.9 * TOLD


async def test_a_target_that_is_busy_with_one_tenant_is_not_held_back():
    disk = FifoDisk(TOLD, {"a": Job()})
    run = Run({"a": 1, "b": 3}, disk, 2 * TOLD)
    await run.seconds(2)
    assert (await run.seconds(3))["a"] >= 0.99 * TOLD
