"""A minute of bad weather: a fleet, its users, its operators and its faults, through the public door."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS_MAX = 300
TIMED = {"answers", "reservations", "liveness"}
"""Promises about time: beside other tests on two processors they say more of the machine. Campaigns of
storms, which have the machine to themselves, judge them too."""


@pytest.mark.needs("redis")
def test_a_storm_of_every_kind_breaks_no_promise(tmp_path: Path) -> None:
    folder = tmp_path / "storm"
    command = [sys.executable, "-m", "bursar", "storm", "all", "--minutes", "1", "--seed", "1"]
    done = subprocess.run(
        [*command, "--out", str(folder)], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    verdict = json.loads((folder / "verdict.json").read_text())
    broken = {name: count for name, count in verdict["breaches_by_promise"].items() if name not in TIMED}
    assert not broken, verdict["breaches"][:3]
    assert "BREACH" not in done.stdout, done.stdout
    judged = verdict["judged"]
    assert all(judged[name] for name in ("answers", "rates", "pools", "shares", "quotas", "claims")), judged
