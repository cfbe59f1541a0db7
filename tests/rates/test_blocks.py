"""Charged durably before it is dispatched: what a killed server's next life reads, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from restart_bugs import BUGS, OFTEN, WORLDS, plant_scenario, plant_small_world

from bursar.rates.blocks import LIVES_MAX, UNBOUNDED, Blocks
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.rate_restarts import RestartingRateScenario, SmallRestart
from bursar.sim.search import Search
from bursar.sim.simulation import Simulation
from bursar.world import SECOND_NS

PERIOD_NS = 60 * SECOND_NS
TENANTS = ("a", "b")
SEEDS = 20
SEEDS_A_TEST = 10
SEEDS_TO_FIND = 30
FIRST = {"counts twice": 6, "forgets what was stated ahead": 3, "spends what is not durable": 1}
"""The seeds that found it first."""


def make_blocks(life: int, records: Iterable[bytes] = (), **options: int) -> Blocks:
    blocks = Blocks(life, TENANTS, period_ns=PERIOD_NS, origin="boot", **options)
    blocks.replay(records)
    return blocks


def flush(blocks: Blocks, journal: list[bytes]) -> None:
    """All that was written is durable."""
    written, blocks.unwritten = blocks.unwritten, []
    journal += written
    blocks.synced(len(journal))


def begin(blocks: Blocks, journal: list[bytes], period: int, *allowances: int) -> list[int]:
    blocks.open_period(period, 100, 100 + PERIOD_NS)
    ceilings = blocks.grant(allowances, [0] * len(allowances), 100 + PERIOD_NS)
    flush(blocks, journal)
    return ceilings


def spend(
    blocks: Blocks, index: int, allowance: int, dispatched: int, ceiling: int
) -> tuple[int, int] | None:
    """One token: (dispatched, ceiling) after it, or None if only the disk keeps it back."""
    if dispatched >= ceiling:
        raised = blocks.reach(index, allowance, dispatched, 1)
        if raised is None:
            assert blocks.is_short(index, allowance, dispatched, 1) or dispatched >= allowance
            return None
        ceiling = raised
    return dispatched + 1, ceiling


def test_nothing_goes_before_its_line_is_durable() -> None:
    blocks = make_blocks(1)
    blocks.open_period(1, 0, PERIOD_NS)
    assert blocks.grant([1200, 0], [0, 0], PERIOD_NS) == [0, 0]
    assert blocks.reach(0, 1200, 0, 1) is None
    assert blocks.is_short(0, 1200, 0, 1)
    assert not blocks.is_short(0, 1200, 1200, 1), "what is used up is not waited for"
    flush(blocks, [])
    assert blocks.reach(0, 1200, 0, 1) == 10, "half a second's part of 1200 a minute"


def test_nobody_waits_for_a_disk_that_keeps_up_and_a_crash_costs_two_steps() -> None:
    journal: list[bytes] = []
    blocks = make_blocks(1)
    begin(blocks, journal, 1, 1200, 0)
    dispatched = ceiling = 0
    while dispatched < 1200:
        after = spend(blocks, 0, 1200, dispatched, ceiling)
        assert after is not None, f"waited for the disk after {dispatched}"
        if after[1] > ceiling:
            flush(blocks, journal)  # in the background, while a step is spent
        dispatched, ceiling = after
        held = make_blocks(2, journal).resume(1)
        assert held is not None and dispatched <= held[0] <= dispatched + 21
    assert len(journal) < 130, "a line for each step"


def test_who_has_outrun_the_disk_goes_on_when_it_has_caught_up() -> None:
    journal: list[bytes] = []
    blocks = make_blocks(1)
    begin(blocks, journal, 1, 1200, 0)
    dispatched = ceiling = 0
    while (after := spend(blocks, 0, 1200, dispatched, ceiling)) is not None:
        dispatched, ceiling = after
    assert dispatched == 20
    flush(blocks, journal)
    assert spend(blocks, 0, 1200, dispatched, ceiling) is not None


def test_a_large_request_is_charged_whole_and_the_next_one_with_it() -> None:
    journal: list[bytes] = []
    blocks = make_blocks(1)
    begin(blocks, journal, 1, 1200, 0)
    assert blocks.reach(0, 1200, 0, 100) is None
    flush(blocks, journal)
    assert blocks.reach(0, 1200, 0, 100) == 100
    assert blocks.reach(0, 1200, 100, 100) == 200, "no wait any more"
    assert blocks.reach(0, 1200, 1150, 100) is None, "more than is left is never charged"


def test_a_period_begins_with_what_was_stated_ahead() -> None:
    journal: list[bytes] = []
    blocks = make_blocks(1)
    begin(blocks, journal, 1, 1200, 0)
    blocks.open_period(2, 0, PERIOD_NS)
    assert blocks.grant([1200, 0], [0, 0], PERIOD_NS) == [10, 0], "without waiting for the disk"
    following = make_blocks(2, journal)
    assert following.resume(2) == [20, 0], "it may have been dispatched"
    assert following.resume(3) == [0, 0]
    assert following.resume(1) == [20, 0]


def test_a_life_that_goes_on_begins_the_next_period_with_what_the_one_before_stated_ahead() -> None:
    journal: list[bytes] = []
    begin(make_blocks(1), journal, 1, 1200, 0)
    heir = make_blocks(2, journal)
    assert heir.resume(1) == [20, 0]
    heir.open_period(2, 0, PERIOD_NS)
    assert heir.grant([1200, 0], [0, 0], PERIOD_NS) == [10, 0], "without waiting for the disk"


def test_a_period_that_was_not_foreseen_waits_for_its_first_lines() -> None:
    journal: list[bytes] = []
    blocks = make_blocks(1)
    begin(blocks, journal, 1, 1200, 0)
    blocks.open_period(4, 0, PERIOD_NS)
    assert blocks.grant([1200, 0], [0, 0], PERIOD_NS) == [0, 0]


def test_who_has_no_limit_is_not_written_down() -> None:
    journal: list[bytes] = []
    blocks = make_blocks(1)
    assert begin(blocks, journal, 1, UNBOUNDED, UNBOUNDED) == [UNBOUNDED, UNBOUNDED]
    assert blocks.reach(0, UNBOUNDED, 10**9, 1) is None
    assert not blocks.is_short(0, UNBOUNDED, 10**9, 1)
    heir = make_blocks(2, journal)
    assert heir.resume(1) == [0, 0]
    assert heir.span == (100, 100 + PERIOD_NS), "the period is known all the same"


def test_times_count_only_by_the_clock_that_they_were_read_from() -> None:
    journal: list[bytes] = []
    begin(make_blocks(1), journal, 1, 1200, 0)
    other = Blocks(2, TENANTS, period_ns=PERIOD_NS, origin="another boot")
    other.replay(journal)
    assert other.resume(1) == [20, 0]
    assert other.span == (0, 0)


def test_a_life_goes_on_where_two_before_it_did() -> None:
    journal: list[bytes] = []
    begin(make_blocks(1), journal, 1, 1200, 100)
    second = make_blocks(3, journal)
    assert second.past.lives == (1,)
    assert second.resume(1) == [20, 8]
    journal2 = list(journal)
    second.grant([1200, 100], [20, 8], PERIOD_NS)
    written, second.unwritten = second.unwritten, []
    third = make_blocks(4, journal2 + written)
    assert third.past.lives == (1, 3)
    assert third.resume(1) == [40, 16]


def test_a_life_that_began_anew_answers_for_itself_alone() -> None:
    """What the one before it charged is not in its levels."""
    journal: list[bytes] = []
    begin(make_blocks(1), journal, 7, 1200, 0)
    second = make_blocks(2, journal)
    assert second.resume(5) is None, "of a period so long ago nothing is known"
    begin(second, journal, 7, 600, 0)
    third = make_blocks(3, journal)
    assert third.past.lives == (2,)
    assert third.resume(7) == [10, 0]


def test_a_store_that_was_set_up_anew_counts_periods_from_one() -> None:
    journal: list[bytes] = []
    begin(make_blocks(1), journal, 90, 1200, 0)
    blocks = make_blocks(2, journal)
    begin(blocks, journal, 1, 600, 0)
    heir = make_blocks(3, journal)
    assert heir.resume(1) == [10, 0]


def test_a_short_journal_says_the_same() -> None:
    journal: list[bytes] = []
    blocks = make_blocks(1)
    for period in (1, 2, 3):
        begin(blocks, journal, period, 1200, 100)
    assert blocks.reach(0, 1200, 10, 1) == 20
    journal += blocks.unwritten
    long, short = make_blocks(2, journal), make_blocks(2, blocks.compact())
    assert long.past.lives == short.past.lives == (1,)
    for period in (3, 4, 5):
        assert long.resume(period) == short.resume(period)
        assert long.span == short.span
    assert len(blocks.compact()) == 2


def test_only_so_many_lives_are_remembered() -> None:
    records = [line for life in range(1, 100) for line in make_blocks(life).unwritten]
    assert make_blocks(100, records).past.lives == tuple(range(100 - LIVES_MAX, 100))


def test_a_new_tenant_is_charged_like_the_others() -> None:
    journal: list[bytes] = []
    blocks = make_blocks(1)
    begin(blocks, journal, 1, 1200, 0)
    blocks.add_tenant(2, "c")
    blocks.grant([1200, 0, 1200], [0, 0, 0], PERIOD_NS)
    flush(blocks, journal)
    assert blocks.reach(2, 1200, 0, 1) == 10


# -- under faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_no_tenant_passes_its_limit_while_servers_are_killed_within_a_period(first: int) -> None:
    """With and without a journal, unsynced lines lost."""
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed("rate_restarts", seed, keep=100)


def test_servers_do_go_on_with_their_period_in_these_runs() -> None:
    resumed = 0
    for seed in range(5):
        scenario = RestartingRateScenario()
        Simulation("rate_restarts", scenario, seed, faults=OFTEN, keep=10).run()
        resumed += scenario.resumed
    assert resumed > 10


@pytest.mark.parametrize("bug", BUGS)
def test_each_mistake_is_found_by_seeds(bug: str) -> None:
    for seed in (FIRST.get(bug, 0), *range(SEEDS_TO_FIND)):
        try:
            Simulation("rate_restarts", plant_scenario(bug), seed, keep=50, faults=OFTEN).run()
        except RunFailedError as failure:
            assert "limit" in failure.why
            return
    pytest.fail(f"{SEEDS_TO_FIND} seeds did not find it")


def test_every_order_of_events_around_a_restart_keeps_the_limit() -> None:
    found = Search(SmallRestart()).run()
    assert found.why is None, str(found)
    assert found.complete
    assert found.states > 10_000, "far fewer states than there were: is it still a search?"


@pytest.mark.parametrize("bug", WORLDS)
def test_a_mistake_is_found_by_search(bug: str) -> None:
    found = Search(plant_small_world(bug)).run()
    assert found.why is not None and "limit" in found.why
