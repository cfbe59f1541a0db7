"""The share under seeded faults: both sums hold, debts are paid, and planted bugs are found.

`bursar sim share --seeds 10000` runs the long campaign."""

from __future__ import annotations

import pytest
from share_bugs import BUGS

from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.simulation import Simulation

SEEDS = 50
CHUNK = 25
SEEDS_MAX = 40
FIRST_TO_FIND = {"charges nothing for lots": 97, "forgets strangers": 9}
"""Where few seeds find it, the search begins at one that does."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_tokens_equal_the_capacity_and_records_sum_to_zero_under_every_fault(first):
    for seed in range(first, first + CHUNK):
        run_seed("share", seed, keep=100)


def test_one_seed_is_one_history():
    assert run_seed("share", 7).history == run_seed("share", 7).history


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(bug):
    scenario, words = BUGS[bug]
    first = FIRST_TO_FIND.get(bug, 0)
    for seed in range(first, first + SEEDS_MAX):
        try:
            Simulation("share", scenario(), seed, keep=100).run()
        except RunFailedError as failure:
            assert words in str(failure), failure
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find a target that {bug}")
