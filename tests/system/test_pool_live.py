"""Real processes over shared memory: kill -9 of clients and monitor never makes a period issue more
than its capacity. The long run is `bursar experiment pools-live-kill`."""

from __future__ import annotations

from bursar.experiments.pools.live import run_kills

SEED = 11


def test_killed_clients_and_monitors_never_make_a_period_spend_more_than_its_capacity() -> None:
    findings = run_kills(4.0, SEED)
    assert findings["safe"], f"seed {SEED}: {findings['table']}"
    assert findings["killed"] >= 1
