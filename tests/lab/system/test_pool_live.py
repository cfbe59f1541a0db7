"""Real processes over shared memory: kill -9 of clients and monitor never makes a period spend more
than its capacity. The long run is `bursar experiment pools-live-kill`."""

from __future__ import annotations

import pytest

from bursar.world import MILLISECOND_NS
from bursar_lab.experiments.pools.kills import run_kills
from bursar_lab.experiments.pools.processes import open_words, run

SEED = 11
PERIOD_NS = 250 * MILLISECOND_NS
CAPACITY = 40_000
RESERVATIONS = {"C1": 12_000, "C2": 8_000, "C3": 6_000, "C4": 5_000}


def test_killed_clients_and_monitors_never_make_a_period_spend_more_than_its_capacity() -> None:
    """What the living get depends on the machine, and is left to the command."""
    findings = run_kills(4.0, SEED, RESERVATIONS, CAPACITY, PERIOD_NS)
    assert findings["safe"], f"seed {SEED}: {findings['table']}"
    assert findings["killed"] >= 2


@pytest.mark.parametrize("where", ["shm", pytest.param("redis", marks=pytest.mark.needs("redis"))])
def test_three_programs_share_one_pool_while_one_and_then_the_leader_are_killed(where: str) -> None:
    """`bursar.connect` in each, with one policy file. The long run is `bursar experiment
    pools-live-programs`, which also judges what the greedy one gets: here the machine is busy."""
    with open_words(where) as url, run(url, 6, 0.5) as found:
        never_above, met, _ = found.bars(where)
        assert never_above["met"], found.rows()
        assert met["met"], found.rows()
        assert [tenant for tenant, _ in found.kills] and all(map(found.whole, ("acme", "globex")))
