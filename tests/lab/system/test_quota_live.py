"""Real daemons, killed and cut off from each other: every unit stays accounted for."""

from __future__ import annotations

import json

import pytest

from bursar_lab.experiments.quotas.faults import run_faults


@pytest.mark.needs("netns", "openssl")
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_daemons_that_are_killed_and_cut_off_lose_and_make_no_unit(mode: str) -> None:
    """`bursar experiment quotas-live` does it with twenty for a minute."""
    found = run_faults(nodes=4, seconds=3.0, mode=mode)
    assert all(bar["met"] for bar in found["bars"]), json.dumps(found, indent=1)
    assert found["told to tenants"] > 0 and found["kills"] >= 2
