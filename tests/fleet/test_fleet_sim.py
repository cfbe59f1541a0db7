"""A fleet under seeded faults: nobody mints under terms that are over, and each broken rule is found.

`bursar sim fleet --seeds 10000` runs the long campaign."""

from __future__ import annotations

import pytest
from fleet_bugs import BUGS

from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.fleet import FleetScenario
from bursar.sim.simulation import Simulation

SEEDS = 60
CHUNK = 30
SEEDS_MAX = 60


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nobody_mints_under_terms_that_are_over(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed("fleet", seed, keep=100)


def test_the_scenario_mints_and_changes_terms() -> None:
    scenario = FleetScenario()
    Simulation("fleet", scenario, 14, keep=100).run()
    assert scenario.minted > 20
    assert max(follower.view.head for follower in scenario.followers.values()) > 5


def test_one_seed_is_one_history() -> None:
    assert run_seed("fleet", 7).history == run_seed("fleet", 7).history


@pytest.mark.parametrize("bug", BUGS)
def test_a_broken_rule_is_found(bug: str) -> None:
    scenario, words = BUGS[bug]
    for seed in range(SEEDS_MAX):
        try:
            Simulation("fleet", scenario(), seed, keep=100).run()
        except RunFailedError as failure:
            assert words in str(failure), failure
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find a fleet that {bug}")
