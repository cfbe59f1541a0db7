"""Clients of a daemon under seeded faults: the rules of lots hold, and each broken one is found.

`bursar sim door --seeds 1000` runs the long campaign."""

from __future__ import annotations

import pytest
from tests.resources.door_bugs import BUGS

from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.simulation import Simulation

SEEDS = 12
CHUNK = 6
SEEDS_MAX = 20


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_lots_at_clients_keep_their_rules_under_every_fault(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed("door", seed, keep=100)


def test_one_seed_is_one_history() -> None:
    assert run_seed("door", 7).history == run_seed("door", 7).history


@pytest.mark.parametrize("bug", BUGS)
def test_a_broken_rule_is_found(bug: str) -> None:
    scenario, words = BUGS[bug]
    for seed in range(SEEDS_MAX):
        try:
            Simulation("door", scenario(), seed, keep=100).run()
        except RunFailedError as failure:
            assert words in str(failure), failure
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find a door that {bug}")
