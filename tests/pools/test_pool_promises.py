"""The promise of a pool under every fault: tokens spent in a period never exceed its capacity."""

from __future__ import annotations

import re

import pytest
from pool_bugs import BUGS, FOUND_BY_SEARCH, TOLD, plant, plant_small

from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.pool import SmallPool
from bursar.sim.search import Budget, Search
from bursar.sim.simulation import Simulation

SEEDS = 60
SEEDS_A_TEST = 10
SEEDS_TO_FIND = 40
FIRST = {
    "adds to the old": (57,),
    "gives back twice": (5,),
    "ignores the period": (8,),
    "lends for nothing": (4,),
    "the paper's overwritten pool word": (5,),
}
"""The seeds that found what is rarer."""


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_no_period_spends_more_than_its_capacity_under_every_fault(first: int) -> None:
    """A failure names its seed and the command that replays it."""
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed("pool", seed, keep=100)


def test_every_order_of_operations_of_a_small_pool_is_safe() -> None:
    world = SmallPool()
    world.budget = Budget(crashes=0, duplicates=0, moves=11)
    found = Search(world).run()
    assert found.why is None and found.complete, str(found)
    assert found.states > 10_000


def find(bug: str) -> RunFailedError | None:
    for seed in (*FIRST.get(bug, ()), *range(SEEDS_TO_FIND)):
        try:
            Simulation("pool", plant(bug), seed, keep=50).run()
        except RunFailedError as failure:
            return failure
    return None


@pytest.mark.parametrize("bug", BUGS)
def test_each_rule_taken_out_is_found_by_seeds(bug: str) -> None:
    failure = find(bug)
    assert failure is not None, f"{SEEDS_TO_FIND} seeds did not find {bug}"
    if bug in TOLD:
        assert re.search(TOLD[bug], failure.why), failure.why
    else:
        assert "tokens were spent in period" in failure.why or "were issued of" in failure.why


@pytest.mark.parametrize("bug", FOUND_BY_SEARCH)
def test_a_lost_update_is_found_by_search(bug: str) -> None:
    world = plant_small(bug)
    world.budget = Budget(crashes=0, duplicates=0, moves=12)
    found = Search(world).run()
    assert found.why is not None and "spent in period 1" in found.why
