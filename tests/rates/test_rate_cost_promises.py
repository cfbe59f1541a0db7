"""Large requests under every fault and then in peace, and what they rest on, taken out."""

from __future__ import annotations

import pytest
from rate_cost_bugs import COST_BUGS

from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.rate_costs import CostlyRateScenario
from bursar.sim.simulation import Simulation

SEEDS = 4
SEEDS_TO_FIND = 8


@pytest.mark.parametrize("seed", range(SEEDS))
def test_large_requests_wait_no_longer_than_stated_and_leave_reservations_whole(seed: int) -> None:
    run_seed("rate_costs", seed, keep=100)


@pytest.mark.parametrize("bug", COST_BUGS)
def test_what_large_requests_rest_on_taken_out_is_found_by_seeds(bug: str) -> None:
    for seed in range(SEEDS_TO_FIND):
        scenario = CostlyRateScenario()
        scenario.decider = COST_BUGS[bug]
        try:
            Simulation("rate_costs", scenario, seed, keep=50).run()
        except RunFailedError as failure:
            assert "has waited" in failure.why or "ever went" in failure.why or "reservation" in failure.why
            return
    pytest.fail(f"{SEEDS_TO_FIND} seeds did not find {bug}")
