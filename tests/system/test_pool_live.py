"""Real processes over shared memory: kill -9 of clients and monitor never makes a period spend more
than its capacity. The long run is `bursar experiment pools-live-kill`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bursar.errors import BursarError
from bursar.experiments.pools import place as places
from bursar.experiments.pools.kills import run_kills
from bursar.world import MILLISECOND_NS

SEED = 11
PERIOD_NS = 250 * MILLISECOND_NS
CAPACITY = 40_000
RESERVATIONS = {"C1": 12_000, "C2": 8_000, "C3": 6_000, "C4": 5_000}


def test_killed_clients_and_monitors_never_make_a_period_spend_more_than_its_capacity() -> None:
    """What the living get depends on the machine, and is left to the command."""
    findings = run_kills(4.0, SEED, RESERVATIONS, CAPACITY, PERIOD_NS)
    assert findings["safe"], f"seed {SEED}: {findings['table']}"
    assert findings["killed"] >= 2


def test_a_process_that_does_not_start_or_is_never_ready_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(places, "RECORDS", 8)
    with places.open_place() as place:
        (place.root / "records").unlink()
        with pytest.raises(BursarError, match="did not start"):
            places.run_bare(place, 1, 0.1)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setattr(places, "READY_S", 0.5)
    monkeypatch.setattr(sys, "executable", str(slow))
    with places.open_place() as place, pytest.raises(BursarError, match="was not ready"):
        places.run_bare(place, 1, 0.1)
