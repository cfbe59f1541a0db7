"""Real processes over shared memory: kill -9 of clients and monitor never makes a period spend more
than its capacity. The long run is `bursar experiment pools-live-kill`."""

from __future__ import annotations

from bursar.world import MILLISECOND_NS
from bursar_lab.experiments.pools.kills import run_kills

SEED = 11
PERIOD_NS = 250 * MILLISECOND_NS
CAPACITY = 40_000
RESERVATIONS = {"C1": 12_000, "C2": 8_000, "C3": 6_000, "C4": 5_000}


def test_killed_clients_and_monitors_never_make_a_period_spend_more_than_its_capacity() -> None:
    """What the living get depends on the machine, and is left to the command."""
    findings = run_kills(4.0, SEED, RESERVATIONS, CAPACITY, PERIOD_NS)
    assert findings["safe"], f"seed {SEED}: {findings['table']}"
    assert findings["killed"] >= 2
