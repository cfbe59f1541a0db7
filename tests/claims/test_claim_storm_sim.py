"""Everything that befalls workers, at once."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from bursar.claims.doing import Doing
from bursar.claims.tracker import Report
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.claim_storm import StormClaimScenario
from bursar.sim.simulation import Simulation

SEEDS = int(os.environ.get("BURSAR_CLAIM_STORM_SEEDS", "8"))
CAUGHT_WITHIN = 10


def test_every_task_ends_whatever_befalls_its_worker() -> None:
    befell: Counter[str] = Counter()
    for seed in range(SEEDS):
        scenario = StormClaimScenario()
        Simulation("claim_storm", scenario, seed, keep=50).run()
        befell += scenario.befell
    assert set(befell) == {"ends", "grows", "dies", "blocks", "away"}, befell


async def tells_nobody(self: Doing, task: object, report: Report) -> None:
    """The end of a task stays with whoever did it."""


@pytest.mark.parametrize(
    ("part", "method", "mistake", "says"),
    [
        (Report, "bounded", lambda self: self, "too large, and it is ok"),
        (Doing, "_record_end", tells_nobody, "still (owned|shared)|never finished|not removed"),
    ],
)
def test_a_mistake_is_caught(
    part: type, method: str, mistake: object, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, method, mistake)
    with pytest.raises(RunFailedError, match=says):
        for seed in range(CAUGHT_WITHIN):
            run_seed("claim_storm", seed, keep=50)
