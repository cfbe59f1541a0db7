"""The lease holds under every fault, and three planted bugs are found: by seeds and by search."""

from __future__ import annotations

import pytest
from lease_bugs import FINDINGS, SCENARIOS, SMALL_WORLDS

from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.search import Budget, Search
from bursar.sim.simulation import Simulation
from bursar.world import MILLISECOND_NS
from bursar_lab.scenarios.lease import SmallLease

SEEDS_MAX = 50


@pytest.mark.parametrize("seed", range(60))
def test_lease_keeps_its_invariants_under_every_fault(seed: int) -> None:
    run_seed("lease", seed, keep=100)


def test_every_order_of_events_of_a_small_lease_keeps_the_invariants() -> None:
    found = Search(SmallLease()).run()
    assert found.why is None, str(found)
    assert found.complete
    assert found.states > 50_000, "the search visits far fewer states than it did: is it still a search?"


def test_every_order_of_events_with_resends_keeps_the_invariants() -> None:
    world = SmallLease()
    world.horizon_ns = 115 * MILLISECOND_NS
    world.budget = Budget(crashes=0, duplicates=1, drops=1, moves=1)
    found = Search(world).run()
    assert found.why is None, str(found)
    assert found.complete


def first_failure(bug: str) -> RunFailedError | None:
    for seed in range(SEEDS_MAX):
        try:
            Simulation("lease", SCENARIOS[bug](), seed, keep=100).run()
        except RunFailedError as failure:
            return failure
    return None


@pytest.mark.parametrize("bug", FINDINGS)
def test_planted_bug_is_found_by_seeds(bug: str) -> None:
    failure = first_failure(bug)
    assert failure is not None, f"{SEEDS_MAX} seeds did not find {bug}"
    print(f"{bug}: found by seed {failure.seed}, the {failure.seed + 1}. tried")
    assert FINDINGS[bug] in failure.why


@pytest.mark.parametrize("bug", FINDINGS)
def test_planted_bug_is_found_by_search(bug: str) -> None:
    found = Search(SMALL_WORLDS[bug]()).run()
    print(f"{bug}: {found}")
    assert found.why is not None, f"the search did not find {bug}"
    assert FINDINGS[bug] in found.why
    assert len(found.steps) <= 20, "a shortest path is short"
