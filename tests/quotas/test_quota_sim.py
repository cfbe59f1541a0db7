"""A quota over four nodes under every fault: never overspent, and every unit accounted for."""

from __future__ import annotations

import pytest

from bursar.sim.scenarios import run_seed

SEEDS = 100
SEEDS_A_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_a_quota_is_never_exceeded_and_no_unit_is_lost_under_every_fault(first: int) -> None:
    """A failure names its seed and the command that replays it."""
    for seed in range(first, first + SEEDS_A_TEST):
        run_seed("quota", seed, keep=100)
